"""A real server of the program under test, and clients that know nothing but environment variables."""

import importlib.metadata
import os
import pathlib
import re
import tempfile

import pytest
import server as support
from server import wait_for  # noqa: F401: the tests take it from here

SDK = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("daytona"))[:2])

needs_newest_sdk = pytest.mark.skipif(SDK < (0, 220), reason="this SDK has no such call")


def printed(answer):
    """What a command printed. The oldest SDK takes the last line's end away itself."""
    text = answer.result
    return text if SDK >= (0, 190) or not text else text + "\n"


class Server(support.Server):
    @property
    def api(self):
        return f"{self.url}/daytona/api"


def built_templates():
    """Where the template `code-interpreter` was built, by the tests of another dialect; None where it was not."""
    cache = pathlib.Path(os.environ.get("COVE_CACHE") or pathlib.Path.home() / ".cache/cove")
    notes = sorted(cache.glob("templates-*/templates/code-interpreter.json"), key=os.path.getmtime)
    return notes[-1].parent.parent if notes else None


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="cove-daytona-", ignore_cleanup_errors=True) as folder:
        if built := built_templates():
            data = pathlib.Path(folder) / "data"
            data.mkdir()
            for name in ("layers", "templates"):
                (data / name).symlink_to(built / name)
        server = Server(folder)
        os.environ.update(DAYTONA_API_URL=server.api, DAYTONA_API_KEY=server.key)
        try:
            yield server
        finally:
            _, left = server.ask("GET", "/daytona/api/sandbox?limit=200", server.key)
            for sandbox in left["items"]:
                server.ask("DELETE", f"/daytona/api/sandbox/{sandbox['id']}", server.key)
            server.leave()


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
