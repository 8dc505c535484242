"""A real server of the program under test, and clients that know nothing but environment variables."""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import tempfile

import applicable
import pytest
import server as support
from server import wait_for  # noqa: F401: the tests take it from here

SDK = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("e2b"))[:2])

needs_new_sdk = applicable.needs(2, 51)
# The code interpreter's SDK is tested beside the newest one alone.
collect_ignore = ["test_code_interpreter.py", "test_template.py"] if SDK < (2, 51) else []


def pytest_collection_modifyitems(config, items):
    applicable.deselect(config, items, SDK)


class Server(support.Server):
    def environment(self, key=None):
        return {
            "E2B_API_KEY": key or self.key,
            "E2B_API_URL": f"{self.url}/e2b",
            "E2B_SANDBOX_URL": f"{self.url}/e2b",
            "E2B_VOLUME_API_URL": f"{self.url}/e2b",
        }


# What the SDKs name where a registry would be asked: no test needs the internet.
SETTINGS = """
[images]
aliases = "e2bdev/base=template:base, ubuntu:22.04=template:base"
"""


@contextlib.contextmanager
def serving(templates=None):
    """A server that the SDKs find by their environment variables while it is there."""
    with tempfile.TemporaryDirectory(prefix="cove-e2b-", ignore_cleanup_errors=True) as folder:
        if templates:
            data = pathlib.Path(folder) / "data"
            data.mkdir()
            for name in ("layers", "templates"):
                (data / name).symlink_to(pathlib.Path(templates) / name)
        settings = pathlib.Path(folder) / "cove.toml"
        settings.write_text(SETTINGS)
        server = Server(folder, "--config", str(settings))
        before = {name: os.environ.get(name) for name in server.environment()}
        os.environ.update(server.environment())
        try:
            yield server
        finally:
            for left in sandboxes(server):
                server.ask("DELETE", f"/e2b/sandboxes/{left}", server.key)
            server.leave()
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def built_server(server):
    """One that has the template `code-interpreter`, built once by run.sh; the SDKs are led to it for the whole module."""
    with serving(os.environ["COVE_TEMPLATES"]) as server:
        yield server


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


@pytest.fixture
def stranger(server):
    """A key of another organisation."""
    return server.another_organisation()


def name(word):
    """One that no other test has."""
    return f"{word}-{os.urandom(4).hex()}"
