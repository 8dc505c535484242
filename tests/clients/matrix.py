#!/usr/bin/env python3
"""Clients in the wild against a server of the program under test: every client of clients.toml, each in the versions named there.

    matrix.py prepare [--all]       fetches the packages of the slice, or of all, and ends
    matrix.py run [--all] [WORD…]   runs the slice, or all, or those whose name contains a word

Each client has packages of its own and a key of an organisation of its own, so that it lists what it made and nothing else.
Server and clients live in a world without other hosts (support/world.py): a client that would call its vendor's cloud
with our key fails here, and is seen to. What is known to stumble is written beside the client, with the reason and whose it
is; a client that stumbles otherwise fails the run. `run --all` writes the table of docs/clients.md, and so fails also for
what is written down as stumbling and no longer does.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import server as support  # noqa: E402
import table  # noqa: E402
from world import World  # noqa: E402

CACHE = pathlib.Path(os.environ.get("COVE_CACHE") or pathlib.Path.home() / ".cache/cove") / "clients"
UV = "0.13.8"
DOMAIN = "sbx.example"
AT_ONCE = 2
SECONDS_EACH = 300
SECONDS_IN_ALL = int(os.environ.get("COVE_CLIENTS_SECONDS", "2700"))


class Strictly(enum.Enum):
    """What a run holds its clients to: that they work, or that what is written of them is true to the letter."""

    WORKS = 1
    TABLE = 2


@dataclasses.dataclass
class Client:
    """One client in one version, and what is expected of it."""

    name: str
    version: str
    language: str
    door: str
    # How it is told where the server is: `url`, `domain` or `open`, as clients.toml says.
    reached: str
    scenario: str
    packages: list
    before: str
    # Step to reason and fault, for what is known to stumble.
    stumbles: dict
    in_slice: bool
    settings: dict

    @property
    def folder(self):
        words = " ".join([self.name, self.version])
        return CACHE / re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")

    def __str__(self):
        return f"{self.name} {self.version}"


def clients(words=(), everything=True):
    found = []
    read = tomllib.loads((HERE / "clients.toml").read_text())
    for entry in read["client"]:
        for reached in ("open", "domain", "url"):
            for version in entry.get(reached, []):
                stumbles = {}
                for known in entry.get("stumbles", []):
                    if version in known.get("versions", [version]) and known.get("reached", reached) == reached:
                        stumbles |= {step: (known["reason"], known["fault"]) for step in known["steps"]}
                found.append(
                    Client(
                        name=entry["name"],
                        version=version,
                        language=entry.get("language", "python"),
                        door=entry["door"],
                        reached=reached,
                        scenario=entry["scenario"],
                        packages=[package.format(version=version) for package in entry["packages"]]
                        + entry.get("also", {}).get(version, []),
                        before=read["packages_before"],
                        stumbles=stumbles,
                        in_slice=version in entry.get("slice", []),
                        settings=entry.get("settings", {}),
                    )
                )
    wanted = [client for client in found if everything or client.in_slice]
    return [client for client in wanted if not words or any(word in str(client) for word in words)]


# --- packages


def run(*command, **kwargs):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **kwargs)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:4]))} …: {(done.stderr or done.stdout).strip()[-600:]}")


def uv():
    """A fast installer, so that fifty environments share their files instead of having copies."""
    folder = CACHE / f"uv-{UV}"
    program = folder / "bin/uv"
    if not program.exists():
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin/pip", "install", "--quiet", f"uv=={UV}")
    return program


def install(client):
    """A folder is complete for what was asked of it then; asked for something else it is made again."""
    note = client.folder / "complete"
    asked = f"{client.language} {client.packages} {client.before}"
    if note.exists() and note.read_text() == asked:
        return
    shutil.rmtree(client.folder, ignore_errors=True)
    if client.language == "python":
        environment = {**os.environ, "UV_CACHE_DIR": str(CACHE / "uv-files"), "UV_SYSTEM_CERTS": "1"}
        if index := os.environ.get("PIP_INDEX_URL"):
            environment.setdefault("UV_DEFAULT_INDEX", index)
        run(uv(), "venv", "--quiet", "--python", "/usr/bin/python3", client.folder, env=environment)
        command = [uv(), "pip", "install", "--quiet", "--python", client.folder / "bin/python"]
        run(*command, *client.packages, env=environment)
    else:
        client.folder.mkdir(parents=True)
        (client.folder / "package.json").write_text('{"private": true, "type": "module"}')
        command = ["npm", "install", "--silent", "--no-progress", "--ignore-scripts", f"--before={client.before}"]
        run(*command, *client.packages, cwd=client.folder)
    note.write_text(asked)


def prepare(wanted):
    """Installs what is missing; returns what could not be, with the reason."""
    uv()
    failed = {}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        under_way = {pool.submit(install, client): client for client in wanted}
        for done in concurrent.futures.as_completed(under_way):
            if error := done.exception():
                failed[str(under_way[done])] = f"cannot be installed: {error}"
    return failed


# --- one server, many clients


class Server(support.Server):
    """Plain HTTP and TLS for a wildcard domain, on one data directory."""

    def __init__(self, folder, domain=DOMAIN, port=443, switches=()):
        self.domain = domain if port == 443 else f"{domain}:{port}"
        data = pathlib.Path(folder) / "data"
        data.mkdir(parents=True)
        if templates := os.environ.get("COVE_TEMPLATES"):
            for name in ("layers", "templates"):
                (data / name).symlink_to(pathlib.Path(templates) / name)
        inside = ["env", *switches] if switches else []
        super().__init__(folder, "--tls", f"127.0.0.1:{port}", "--domain", domain, inside=inside)

    def environment(self, client, key):
        tls = self.data / "tls"
        trust = {
            "SSL_CERT_FILE": tls / "bundle.pem",
            "REQUESTS_CA_BUNDLE": tls / "bundle.pem",
            "NODE_EXTRA_CA_CERTS": tls / "authority.pem",
        }
        if client.door == "daytona":
            base = f"https://{self.domain}" if client.reached == "domain" else self.url
            told = {"DAYTONA_API_KEY": key, "DAYTONA_API_URL": f"{base}/daytona/api"}
        elif client.reached != "url":
            told = {"E2B_API_KEY": key, "E2B_DOMAIN": self.domain}
        else:
            told = {"E2B_API_KEY": key, "E2B_API_URL": f"{self.url}/e2b", "E2B_SANDBOX_URL": f"{self.url}/e2b"}
        return {name: str(value) for name, value in {**trust, **told, **client.settings}.items()}

    def left(self, key):
        """Sandboxes that the key's organisation still has."""
        _, found = self.ask("GET", "/api/sandboxes", key)
        entries = found.get("items", found.get("sandboxes", [])) if isinstance(found, dict) else found
        return [sandbox["id"] for sandbox in entries]


def command_of(client, folder):
    if client.language == "python":
        return [client.folder / "bin/python", "-B", HERE / "scenarios" / client.scenario]
    # Packages are found from where the script lies.
    place = client.folder / "scenario"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for script in (HERE / "scenarios").glob("*.mjs"):
        shutil.copy(script, place)
    return ["node", place / client.scenario]


def try_out(server, client, folder):
    """Runs a client's scenario; returns step to error, where None is a step that worked."""
    folder.mkdir()
    key = server.another_organisation()
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        **server.environment(client, key),
    }
    log = folder / "log"
    with open(log, "w") as said:
        try:
            done = subprocess.run(
                [str(word) for word in command_of(client, folder)],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                timeout=SECONDS_EACH,
            )
            out, ended = done.stdout, f"ended with {done.returncode}"
        except subprocess.TimeoutExpired as error:
            out, ended = (error.stdout or b"").decode(), f"did not end within {SECONDS_EACH} s"
    steps = {}
    for line in out.splitlines():
        report = json.loads(line)
        steps[report["step"]] = report["error"]
    # `delete` is the last step of every scenario.
    if "delete" not in steps and "create" in steps and not steps["create"]:
        steps["end"] = f"{ended}: {tail(log)}"
    if not steps:
        steps["create"] = f"{ended}: {tail(log)}"
    for sandbox in server.left(key):
        steps["delete"] = steps.get("delete") or f"sandbox {sandbox} was left running"
        server.ask("DELETE", f"/api/sandboxes/{sandbox}", key)
    return steps


def tail(log):
    return " ".join(log.read_text().strip().splitlines()[-2:])[-400:]


def judge(client, steps):
    """What is worse than expected of a client, and what is better, as sentences."""
    worse = [f"{step}: {error}" for step, error in steps.items() if error and step not in client.stumbles]
    mended = [step for step in client.stumbles if step in steps and not steps[step]]
    return worse, [f"{step}: works now; take it out of clients.toml" for step in mended]


def run_all(wanted, problems, strictly):
    """Runs them; `strictly`, as for the table, also counts what works though it is written down as stumbling."""
    results, failed = {}, 0
    began = time.monotonic()
    with contextlib.ExitStack() as ending:
        folder = pathlib.Path(
            ending.enter_context(tempfile.TemporaryDirectory(prefix="cove-clients-", ignore_cleanup_errors=True))
        )
        server = Server(folder / "server")
        ending.callback(server.leave)
        opened = None
        if any(client.reached == "open" for client in wanted):
            opened = Server(folder / "open", f"open.{DOMAIN}", 8443, ["COVE_E2B_TOKENS_OPTIONAL=true"])
            ending.callback(opened.leave)

        def one(number, client):
            if problem := problems.get(str(client)):
                return {"install": problem}, 0.0
            start = time.monotonic()
            if start - began > SECONDS_IN_ALL:
                return {"start": f"not reached within {SECONDS_IN_ALL} s"}, 0.0
            chosen = opened if client.reached == "open" else server
            return try_out(chosen, client, folder / str(number)), time.monotonic() - start

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            under_way = [(client, pool.submit(one, n, client)) for n, client in enumerate(wanted)]
            for client, done in under_way:
                steps, seconds = done.result()
                worse, better = judge(client, steps)
                results[str(client)] = steps
                wrong = bool(worse or (better and strictly is Strictly.TABLE))
                failed += wrong
                print(f"{'FAILED' if wrong else 'ok    '} {client} ({client.door}, {client.reached}) {seconds:.1f} s")
                for sentence in worse + better:
                    print(f"       {sentence}")
                sys.stdout.flush()
    return results, failed


def inside(arguments):
    """The same program in a world of its own, with an end to it."""
    with tempfile.TemporaryDirectory(prefix="cove-world-") as folder:
        world = World(folder, DOMAIN)
        try:
            command = [*world.inside, sys.executable, "-B", str(pathlib.Path(__file__).resolve()), *arguments]
            return subprocess.run(command, env={**os.environ, "COVE_WORLD": DOMAIN}).returncode
        finally:
            world.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "run"])
    parser.add_argument("--all", action="store_true", help="every client, not only the slice")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    wanted = clients(asked.words, asked.all or bool(asked.words))
    if "COVE_WORLD" in os.environ:
        problems = json.loads(os.environ["COVE_PROBLEMS"])
        results, failed = run_all(wanted, problems, Strictly.TABLE if asked.all else Strictly.WORKS)
        passed = len(wanted) - failed
        if asked.all and not asked.words:
            table.write(wanted, results)
        elif drift := table.drift(clients()):
            print(f"FAILED docs/clients.md is not of today's list: {', '.join(drift)}; make test-long writes it")
            failed += 1
        print(f"{passed} passed, {failed} failed")
        return 1 if failed else 0
    problems = prepare(wanted)
    if asked.what == "prepare":
        for client, reason in problems.items():
            print(f"{client}: {reason}", file=sys.stderr)
        return 1 if problems else 0
    os.environ["COVE_PROBLEMS"] = json.dumps(problems)
    return inside(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
