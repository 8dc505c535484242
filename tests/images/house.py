"""A server with all that belongs to images: what it is asked, what it has, and what it leaves."""

import contextlib
import os
import pathlib
import sqlite3
import subprocess
import threading
import time
import urllib.request

from server import PROGRAM, Server, wait_for


class House(Server):
    """`settings` is the text of its configuration."""

    def __init__(self, folder, settings=""):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cove.toml").write_text(settings)
        super().__init__(folder, "--config", str(folder / "cove.toml"))

    @property
    def pool(self):
        return self.data / "pool"

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COVE_")}
        return {**kept, "COVE_URL": self.url, "COVE_API_KEY": self.key, "HOME": str(self.data.parent), **more}

    def cove(self, *words, code=0, environment=None, seconds=120, **rest):
        """The program as people use it. Gives what it printed; `code` is how it must end."""
        command = [PROGRAM, *(str(word) for word in words)]
        rest = {"stdin": subprocess.DEVNULL, **rest} if "input" not in rest else rest
        done = subprocess.run(
            command, env=self.environment(**(environment or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, **rest
        )
        said, told = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert done.returncode == code, f"{words}: {done.returncode}\n{said}\n{told}\n{self.said()[-3000:]}"
        return said if code == 0 else told

    def start_build(self, name, source, key=None, **rest):
        """Begins one; gives the paths of the template and the build."""
        status, told = self.ask("POST", "/api/templates", key or self.key, {"name": name, "from": source, **rest})
        assert status == 202, (status, told)
        return f"/api/templates/{told['template']['id']}", f"/api/templates/{told['template']['id']}/builds/{told['build']['id']}"

    def end_of(self, build, seconds=120, key=None):
        """The build when it has ended."""
        def ended():
            self.check_alive()
            status, told = self.ask("GET", build, key or self.key)
            assert status == 200, (status, told)
            return told if told["state"] in ("ready", "error", "cancelled") else None

        return wait_for(ended, seconds, f"the end of {build}")

    def build(self, name, source, expect="ready", seconds=120, key=None, **rest):
        """A build to its end; gives it, and its log as one text."""
        _, build = self.start_build(name, source, key, **rest)
        ended = self.end_of(build, seconds, key)
        assert ended["state"] == expect, (name, ended, self.said()[-3000:])
        return ended, self.log_of(build, key)

    def log_of(self, build, key=None):
        _, lines = self.ask("GET", f"{build}/logs", key or self.key)
        return "\n".join(line["message"] for line in lines)

    def refused(self, name, source, **rest):
        """A build that must fail; gives the sentence."""
        ended, _ = self.build(name, source, expect="error", **rest)
        return ended["failure"]["message"]

    def import_archive(self, name, data, key=None, **query):
        """Sends an archive; gives the status, and the build's path or what was said."""
        words = "&".join(f"{word}={value}" for word, value in {"name": name, **query}.items())
        status, told = self.ask("POST", f"/api/images/import?{words}", key or self.key, data, {"Content-Type": "application/x-tar"})
        if status != 202:
            return status, told
        return status, f"/api/templates/{told['template']['id']}/builds/{told['build']['id']}"

    def take(self, name, data, **query):
        """An archive that becomes a template."""
        status, build = self.import_archive(name, data, **query)
        assert status == 202, (status, build)
        ended = self.end_of(build)
        assert ended["state"] == "ready", ended
        return ended

    def start_push(self, name, image, key=None, **rest):
        """Begins one; gives its path."""
        status, told = self.ask("POST", f"/api/templates/{name}/push", key or self.key, {"image": image, **rest})
        assert status == 202, (status, told)
        return f"/api/pushes/{told['id']}"

    def push(self, name, image, expect="done", key=None, **rest):
        """A push to its end; gives it."""
        push = self.start_push(name, image, key, **rest)
        ended = self.pushed(push, key=key)
        assert ended["state"] == expect, (ended, self.said()[-3000:])
        return ended

    def pushed(self, push, seconds=120, key=None):
        """The push when it has ended."""
        def ended():
            self.check_alive()
            status, told = self.ask("GET", push, key or self.key)
            assert status == 200, (status, told)
            return told if told["state"] != "pushing" else None

        return wait_for(ended, seconds, f"the end of {push}")

    def create(self, template, key=None, **rest):
        status, told = self.ask("POST", "/api/sandboxes", key or self.key, {"template": template, **rest})
        assert status == 201, (template, status, told)
        return told["id"]

    def exec(self, sandbox, line, **rest):
        body = {"shell": line, "timeout_seconds": 100, **rest}
        status, told = self.ask("POST", f"/api/sandboxes/{sandbox}/exec", self.key, body)
        assert status == 200, (line, status, told)
        return told

    def within(self, sandbox, line, **rest):
        """What a command prints that succeeds."""
        told = self.exec(sandbox, line, **rest)
        assert told["exit"]["status"] == 0, (line, told)
        return told["stdout"]

    def remove(self, *sandboxes):
        for sandbox in sandboxes:
            self.ask("DELETE", f"/api/sandboxes/{sandbox}", self.key)

    def shown(self, template, line, **rest):
        """What a command prints in a new sandbox of a template."""
        sandbox = self.create(template)
        try:
            return self.within(sandbox, line, **rest)
        finally:
            self.remove(sandbox)

    def status_of(self, path):
        return self.ask("GET", path, self.key)

    def is_well(self):
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def rows(self, sql, *values):
        """Read straight from the database: it is in WAL mode, so nobody waits for anybody."""
        with contextlib.closing(sqlite3.connect(f"file:{self.data}/cove.db?mode=ro", uri=True, timeout=20)) as database:
            return database.execute(sql, values).fetchall()

    def files(self):
        """Names on the disk: layers, drafts, uppers, and what is spooled."""
        def names(folder):
            return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

        layers = [name for name in names(self.pool / "layers") if not name.endswith(".json")]
        return {
            "layers": layers,
            "drafts": names(self.pool / "drafts"),
            "uppers": names(self.pool / "uppers"),
            "spool": names(self.data / "spool"),
        }

    def unfinished(self):
        """What the database says is under way: it must be empty when nobody does anything."""
        return {
            "layers": self.rows("SELECT id, state FROM layers WHERE state <> 'ready'"),
            "work": self.rows("SELECT layer, user_id FROM layer_uses WHERE user_kind = 'work'"),
            "jobs": self.rows("SELECT kind, subject, state, error FROM jobs WHERE state IN ('queued', 'running') AND (kind LIKE 'build%' OR kind LIKE 'image%')"),
            # One that waits to be started is given up after an hour.
            "builds": self.rows("SELECT id, state FROM builds WHERE state = 'building'"),
            "sandboxes": self.rows("SELECT id, state FROM sandboxes WHERE pool LIKE 'build/%' AND state <> 'destroyed'"),
        }

    def is_settled(self):
        """Nothing is under way, and the disk has what the database knows: no less, and no more."""
        files, rows = self.files(), {name for (name,) in self.rows("SELECT id FROM layers WHERE state = 'ready'")}
        is_idle = not any(self.unfinished().values()) and not files["drafts"] and not files["spool"]
        return is_idle and set(files["layers"]) == rows

    def settles(self, seconds=50):
        """Within a round of the server's upkeep."""
        try:
            wait_for(self.is_settled, seconds, "all that was under way to be gone")
        except AssertionError:
            files, ready = self.files(), {name for (name,) in self.rows("SELECT id FROM layers WHERE state = 'ready'")}
            without_row, without_files = set(files["layers"]) - ready, ready - set(files["layers"])
            raise AssertionError(
                f"left: {self.unfinished()}\ndrafts {files['drafts']} spool {files['spool']}\n"
                f"layers that no row has: {without_row}\nrows whose layers are gone: {without_files}\n{self.said()[-3000:]}"
            ) from None

    def check_alive(self):
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.said()[-2000:]}"

    def peak(self):
        """The most memory that the server had since `forget_peak`, in MiB."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10

    def is_idle(self):
        """Whether it uses less than a quarter of a processor, for a second."""
        def used():
            return sum(int(word) for word in pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])

        before = used()
        time.sleep(1)
        return used() - before < os.sysconf("SC_CLK_TCK") / 4

    def forget_peak(self):
        """proc(5): 5 sets the peak to what it is now."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def kill(self):
        """As a crash: no word before."""
        self.process.kill()
        self.process.wait(30)

    def leave(self):
        """Sandboxes outlive a server: none of a test's own may."""
        if self.process.poll() is None:
            _, listed = self.ask("GET", "/api/sandboxes?limit=100", self.key)
            self.remove(*(item["id"] for item in listed["items"]))
        super().leave()


class Under(threading.Thread):
    """Something that goes on meanwhile; `result` or `error` when it has ended."""

    def __init__(self, act):
        super().__init__(daemon=True)
        self.act, self.result, self.error = act, None, None
        self.start()

    def run(self):
        try:
            self.result = self.act()
        except Exception as error:  # noqa: BLE001: whoever joins looks
            self.error = error


def read_all(server, path, pause=0.0):
    """A body as it comes, to its end. A stream that breaks off is an error."""
    request = urllib.request.Request(server.url + path, headers={"Authorization": f"Bearer {server.key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        pieces = []
        while piece := answer.read(64 << 10):
            pieces.append(piece)
            time.sleep(pause)
        return b"".join(pieces)
