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
SDK = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("daytona"))[:2])

needs_newest_sdk = pytest.mark.skipif(SDK < (0, 220), reason="this SDK has no such call")


def printed(answer):
    """What a command printed. The oldest SDK takes the last line's end away itself."""
    text = answer.result
    return text if SDK >= (0, 190) or not text else text + "\n"


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
        self.api = f"{self.url}/daytona/api"
        self.data = pathlib.Path(folder) / "data"
        self.log = open(pathlib.Path(folder) / "server.log", "w+")
        self.start()
        self.key = (self.data / "api-key").read_text().strip()

    def start(self):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(self.data)],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        wait_for(self.ready, 60, f"a ready server (see {self.log.name})")

    def ready(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log.read()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def ask(self, method, path, key=None, body=None, headers=None):
        """A plain request; gives the status and the decoded body."""
        sent = dict(headers or {})
        if key:
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


def decoded(raw):
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="cove-daytona-", ignore_cleanup_errors=True) as folder:
        server = Server(folder)
        os.environ.update(DAYTONA_API_URL=server.api, DAYTONA_API_KEY=server.key)
        try:
            yield server
        finally:
            _, left = server.ask("GET", "/daytona/api/sandbox?limit=200", server.key)
            for sandbox in left["items"]:
                server.ask("DELETE", f"/daytona/api/sandbox/{sandbox['id']}", server.key)
            server.stop()
            server.log.close()


@pytest.fixture(scope="session")
def daytona(server):
    from daytona import Daytona

    return Daytona()


@pytest.fixture(scope="session")
def sandbox(daytona):
    """One for all tests that leave it as they found it."""
    sandbox = daytona.create()
    yield sandbox
    daytona.delete(sandbox)


@pytest.fixture
def fresh(daytona):
    """One that a test may stop, change or end."""
    sandbox = daytona.create()
    yield sandbox
    try:
        daytona.delete(sandbox)
    except Exception as error:  # the test may have ended it
        assert "not exist" in str(error) or "not found" in str(error), error


def state(sandbox):
    return str(getattr(sandbox.state, "value", sandbox.state))
