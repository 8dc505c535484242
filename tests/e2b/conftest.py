"""A real server of the program under test, and clients that know nothing but environment variables."""

import importlib.metadata
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest

PROGRAM = os.environ.get("COVE_BIN", "cove")
SDK = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("e2b"))[:2])

needs_new_sdk = pytest.mark.skipif(SDK < (2, 51), reason="this SDK has no such call")


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


class Server:
    """`cove serve` on loopback with a data directory of its own."""

    def __init__(self, folder):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data = pathlib.Path(folder) / "data"
        self.log = open(pathlib.Path(folder) / "server.log", "w+")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(self.data)],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        wait_for(self.ready, 60, f"a ready server (see {self.log.name})")
        self.key = (self.data / "api-key").read_text().strip()

    def ready(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log.read()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def environment(self, key=None):
        return {
            "E2B_API_KEY": key or self.key,
            "E2B_API_URL": f"{self.url}/e2b",
            "E2B_SANDBOX_URL": f"{self.url}/e2b",
            "E2B_VOLUME_API_URL": f"{self.url}/e2b",
        }

    def another_organisation(self):
        """A key of an organisation that has nothing to do with the first."""
        name = f"other-{os.urandom(4).hex()}"
        _, made = self.ask("POST", "/api/organisations", self.key, {"id": name, "name": name})
        _, key = self.ask("POST", "/api/keys", self.key, {"name": "k", "scope": "write", "organisation": name})
        return key["secret"]

    def ask(self, method, path, key=None, body=None, headers=None):
        """A plain request; gives the status and the decoded body."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if key:
            sent.setdefault("X-API-Key", key)
            sent.setdefault("Authorization", f"Bearer {key}")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, decoded(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, decoded(error.read())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        # The disks of sandboxes outlive the server on purpose; these have no owner any more.
        for pool in self.data.rglob("pool"):
            if os.path.ismount(pool):
                subprocess.run(["umount", str(pool)], check=True)


def decoded(raw):
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="cove-e2b-", ignore_cleanup_errors=True) as folder:
        server = Server(folder)
        os.environ.update(server.environment())
        try:
            yield server
        finally:
            for left in sandboxes(server):
                server.ask("DELETE", f"/e2b/sandboxes/{left}", server.key)
            server.stop()


def sandboxes(server):
    status, found = server.ask("GET", "/e2b/v2/sandboxes", server.key)
    return [sandbox["sandboxID"] for sandbox in found] if status == 200 else []


@pytest.fixture
def create(server):
    """Makes sandboxes and ends them after the test."""
    from e2b import Sandbox

    made = []

    def make(*args, **kwargs):
        kwargs.setdefault("timeout", 60)
        sandbox = Sandbox.create(*args, **kwargs)
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def sandbox(create):
    return create()
