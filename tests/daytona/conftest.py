"""A real server of the program under test, and clients that know nothing but environment variables."""

import importlib.metadata
import os
import pathlib
import re
import tempfile

import applicable
import pytest
import server as support
from server import wait_for  # noqa: F401: the tests take it from here

SDK = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("daytona"))[:2])

needs_newest_sdk = applicable.needs(0, 220)

# What `Image.debian_slim("3.12")` names. No test reaches a registry: here it is the host's own programs.
ALIAS = "python:3.12.10-slim-bookworm"
SETTINGS = f"""
[images]
aliases = "{ALIAS}=template:base"
"""
# Other packages that build on the SDK come with the newest one.
collect_ignore = ["test_packages.py"] if SDK < (0, 220) else []


def pytest_collection_modifyitems(config, items):
    applicable.deselect(config, items, SDK)


def printed(answer):
    """What a command printed. The oldest SDK takes the last line's end away itself."""
    text = answer.result
    return text if SDK >= (0, 190) or not text else text + "\n"


def commands(sandbox):
    """The command lines of all processes. `ps` lists itself: where it does not, it did not work."""
    listed = sandbox.process.exec("ps -eo args=")
    assert listed.exit_code == 0 and "ps -eo args=" in listed.result, listed.result
    return listed.result


class Server(support.Server):
    @property
    def api(self):
        return f"{self.url}/daytona/api"


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="cove-daytona-", ignore_cleanup_errors=True) as folder:
        # Where run.sh built the template `code-interpreter`.
        built, data = pathlib.Path(os.environ["COVE_TEMPLATES"]), pathlib.Path(folder) / "data"
        data.mkdir()
        for name in ("layers", "templates"):
            (data / name).symlink_to(built / name)
        settings = pathlib.Path(folder) / "cove.toml"
        settings.write_text(SETTINGS)
        server = Server(folder, "--config", str(settings))
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
