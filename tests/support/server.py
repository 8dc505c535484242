"""A real server of the program under test, for the tests of every dialect."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

PROGRAM = os.environ.get("COVE_BIN", "cove")


def wait_for(condition, seconds=15, what="the condition"):
    """Polls until `condition()` is true; a bounded wait, never a fixed sleep."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come true within {seconds} s")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def decoded(raw):
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw


class Server:
    """`cove serve` on loopback with a data directory of its own. `inside` is a command that enters another world first."""

    def __init__(self, folder, *flags, inside=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data = pathlib.Path(folder) / "data"
        self.log = open(pathlib.Path(folder) / "server.log", "w+")
        self.flags, self.inside = flags, list(inside)
        self.start()
        self.key = (self.data / "api-key").read_text().strip()

    def start(self):
        listen = ["--listen", f"127.0.0.1:{self.port}", "--data", str(self.data)]
        self.process = subprocess.Popen(
            [*self.inside, PROGRAM, "serve", *listen, *self.flags], stdout=self.log, stderr=subprocess.STDOUT
        )
        wait_for(self.ready, 60, f"a ready server (see {self.log.name})")

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.said()[-4000:]}")
        if self.inside:
            asked = [*self.inside, "curl", "--silent", "--fail", "--max-time", "2", f"{self.url}/healthz"]
            return subprocess.run(asked, capture_output=True).returncode == 0
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def said(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def ask(self, method, path, key=None, body=None, headers=None):
        """A plain request; gives the status and the decoded body."""
        sent = dict(headers or {})
        if key:
            sent.setdefault("X-API-Key", key)
            sent.setdefault("Authorization", f"Bearer {key}")
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        url = path if path.startswith("http") else self.url + path
        request = urllib.request.Request(url, method=method, data=data, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, decoded(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, decoded(error.read())

    def another_organisation(self):
        """A key of an organisation that has nothing to do with the first."""
        name = f"other-{os.urandom(4).hex()}"
        self.ask("POST", "/api/organisations", self.key, {"id": name, "name": name})
        _, key = self.ask("POST", "/api/keys", self.key, {"name": "k", "scope": "write", "organisation": name})
        return key["secret"]

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def leave(self):
        """Stops for good. Sandboxes' disks outlive a server on purpose; these have no owner any more."""
        self.stop()
        self.log.close()
        for pool in self.data.rglob("pool"):
            if os.path.ismount(pool):
                subprocess.run(["umount", str(pool)], check=True)
