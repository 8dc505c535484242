"""How long a person waits who uses the Python SDK of E2B, beside those who use no sandbox, or bubblewrap.

    e2b_against_others.py COVE [--rounds N] [--json FILE]

Two servers of the program run side by side: one without a warm pool, one with. Rounds are interleaved with a plain fork+exec
and with bubblewrap running the same command, so that a busy moment of the machine hits all of them alike; the ratios count, not
the milliseconds. The SDK lies in $COVE_CACHE/e2b, where the tests keep it too.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

VERSION = "2.63.0"
UNCOUNTED = 3
STEPS = ("create", "run", "kill", "whole")
COMMAND = ["/bin/sh", "-c", "echo hi"]
ROOT = pathlib.Path(__file__).resolve().parent.parent


def sdk_python():
    """A Python that has the SDK; installed where it is missing."""
    cache = pathlib.Path(os.environ.get("COVE_CACHE", pathlib.Path.home() / ".cache/cove")) / "e2b"
    for folder in (cache / f"python-{VERSION}", cache / f"bench-{VERSION}"):
        if (folder / "complete").exists():
            break
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "--quiet", f"e2b=={VERSION}"], check=True)
        (folder / "complete").touch()
    return str(folder / "bin/python")


def with_sdk():
    """This program again, with the Python that has the SDK."""
    python = sdk_python()
    os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def bubblewrap():
    if not shutil.which("bwrap"):
        return None
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
    return argv + ["--"] + COMMAND


def plain(argv):
    start = time.perf_counter()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b"hi\n"
    return {"whole": time.perf_counter() - start}


def through_sdk(environment):
    """One round of `e2b_sdk.py`; the SDK reads its environment anew with each sandbox."""
    import e2b_sdk

    os.environ.update(environment)
    return e2b_sdk.once()


def figures(samples):
    told = {}
    for step in STEPS:
        values = sorted(sample[step] * 1000 for sample in samples if step in sample)
        if values:
            p95 = values[min(len(values) - 1, int(len(values) * 0.95))]
            told[step] = {"p50_ms": round(statistics.median(values), 3), "p95_ms": round(p95, 3)}
    return told


def measure(servers, rounds):
    """Every contender in turn, round after round."""
    contenders = {"fork + exec": lambda: plain(COMMAND)}
    if bubblewrap():
        contenders["bubblewrap"] = lambda: plain(bubblewrap())
    for name, server in servers.items():
        url = f"{server.url}/e2b"
        environment = {"E2B_API_KEY": server.key, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}
        contenders[name] = lambda environment=environment: through_sdk(environment)
    samples = {name: [] for name in contenders}
    for number in range(-UNCOUNTED, rounds):
        for name, once in contenders.items():
            sample = once()
            if number >= 0:
                samples[name].append(sample)
    return samples


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("cove")
    arguments.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "60")))
    arguments.add_argument("--json", metavar="FILE")
    arguments = arguments.parse_args()
    try:
        import e2b  # noqa: F401
    except ImportError:
        with_sdk()
    sys.path.insert(0, str(ROOT / "tests/support"))
    import server as support

    support.PROGRAM = os.path.abspath(arguments.cove)
    with tempfile.TemporaryDirectory(prefix="cove-bench-", ignore_cleanup_errors=True) as folder:
        servers = {}
        try:
            for name in ("cove, cold", "cove, warm pool"):
                place = pathlib.Path(folder) / name.split()[-1]
                place.mkdir()
                servers[name] = support.Server(place)
            warm = servers["cove, warm pool"]
            warm.ask("PUT", "/api/pools/base", warm.key, {"size": 8})
            ready = lambda: warm.ask("GET", "/api/pools", warm.key)[1][0]["ready"] == 8
            support.wait_for(ready, 30, "a full pool")
            samples = measure(servers, arguments.rounds)
            pool = warm.ask("GET", "/api/pools", warm.key)[1][0]
            warm.ask("DELETE", "/api/pools/base", warm.key)
            support.wait_for(lambda: not warm.ask("GET", "/api/pools", warm.key)[1], 30, "an end of the pool")
        finally:
            for each in servers.values():
                each.leave()
    report = {name: figures(of) for name, of in samples.items()}
    base = report["fork + exec"]["whole"]["p50_ms"]
    wrapped = report.get("bubblewrap", {}).get("whole", {}).get("p50_ms")
    for told in report.values():
        told["to_fork_exec"] = round(told["whole"]["p50_ms"] / base, 2)
        told["to_bubblewrap"] = round(told["whole"]["p50_ms"] / wrapped, 2) if wrapped else None
    whole = {"rounds": arguments.rounds, "sdk": VERSION, "pool_hits": pool["hits"], "pool_misses": pool["misses"]}
    whole["contenders"] = report
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(whole, indent=1) + "\n")
    print(table(whole))


def table(whole):
    lines = [
        f"## create, `echo hi`, kill through the Python SDK of E2B {whole['sdk']}",
        "",
        f"{whole['rounds']} rounds, interleaved; milliseconds. The pool served {whole['pool_hits']} creations and missed"
        f" {whole['pool_misses']}.",
        "",
        "| | create p50 | run p50 | kill p50 | whole p50 | whole p95 | to fork + exec | to bubblewrap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, told in whole["contenders"].items():
        cells = [f"{told[step]['p50_ms']:.2f}" if step in told else "" for step in STEPS]
        ratio = f"{told['to_bubblewrap']}×" if told["to_bubblewrap"] else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {told['whole']['p95_ms']:.2f} | {told['to_fork_exec']}× | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
