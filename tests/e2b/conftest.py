"""A real server of the program under test, and clients that know nothing but environment variables."""

import importlib.metadata
import os
import re
import tempfile

import pytest
import server as support
from server import wait_for  # noqa: F401: the tests take it from here

SDK = tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("e2b"))[:2])

needs_new_sdk = pytest.mark.skipif(SDK < (2, 51), reason="this SDK has no such call")


class Server(support.Server):
    def environment(self, key=None):
        return {
            "E2B_API_KEY": key or self.key,
            "E2B_API_URL": f"{self.url}/e2b",
            "E2B_SANDBOX_URL": f"{self.url}/e2b",
            "E2B_VOLUME_API_URL": f"{self.url}/e2b",
        }


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
            server.leave()


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
