"""A real server of the program under test."""

import tempfile

import pytest
import server as support


class Server(support.Server):
    @property
    def api(self):
        return f"{self.url}/vercel/api"

    def call(self, method, path, body=None, key=None):
        return self.ask(method, f"/vercel/api{path}", key or self.key, body)


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="cove-vercel-", ignore_cleanup_errors=True) as folder:
        server = Server(folder)
        try:
            yield server
        finally:
            _, left = server.ask("GET", "/api/sandboxes?limit=1000", server.key)
            for sandbox in left["items"]:
                server.ask("DELETE", f"/api/sandboxes/{sandbox['id']}", server.key)
            server.leave()
