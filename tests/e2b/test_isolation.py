"""Two organisations: what is one's does not exist for the other, by any route."""

import http.client
import json

import pytest


@pytest.fixture(scope="module")
def stranger(server):
    return server.another_organisation()


@pytest.fixture(scope="module")
def stranger_sandbox(server, stranger):
    status, made = server.ask("POST", "/e2b/v2/sandboxes", stranger, {"templateID": "base", "timeout": 300})
    assert status == 201
    yield made
    server.ask("DELETE", f"/e2b/sandboxes/{made['sandboxID']}", stranger)


ROUTES = [
    ("GET", "/e2b/sandboxes/{id}", None),
    ("DELETE", "/e2b/sandboxes/{id}", None),
    ("POST", "/e2b/sandboxes/{id}/connect", {"timeout": 10}),
    ("POST", "/e2b/v2/sandboxes/{id}/connect", {}),
    ("POST", "/e2b/sandboxes/{id}/resume", {}),
    ("POST", "/e2b/sandboxes/{id}/pause", {}),
    ("POST", "/e2b/sandboxes/{id}/timeout", {"timeout": 1}),
    ("POST", "/e2b/sandboxes/{id}/refreshes", {"duration": 60}),
    ("PUT", "/e2b/sandboxes/{id}/network", {}),
    ("GET", "/e2b/sandboxes/{id}/metrics", None),
    ("GET", "/e2b/sandboxes/{id}/logs", None),
    ("GET", "/e2b/v2/sandboxes/{id}/logs", None),
    ("POST", "/e2b/sandboxes/{id}/snapshots", {}),
    ("POST", "/e2b/sandboxes/{id}/fork", {}),
    # At the root, for clients that cannot live with a prefix.
    ("GET", "/sandboxes/{id}", None),
    ("DELETE", "/sandboxes/{id}", None),
]


@pytest.mark.parametrize("method,path,body", ROUTES)
def test_cannot_reach_anothers_sandbox_through_the_api(server, create, stranger, method, path, body):
    sandbox = create()
    status, told = server.ask(method, path.format(id=sandbox.sandbox_id), stranger, body)
    assert status == 404, (status, told)
    nobody = server.ask(method, path.format(id="a" * 20), stranger, body)[0]
    assert nobody == status, "another's sandbox must look like none"
    assert sandbox.is_running()


def test_cannot_list_or_measure_anothers_sandboxes(server, create, stranger):
    sandbox = create(metadata={"mark": "mine"})
    for path in ("/e2b/sandboxes", "/e2b/v2/sandboxes", "/e2b/v2/sandboxes?metadata=mark%3Dmine"):
        status, found = server.ask("GET", path, stranger)
        assert status == 200
        assert sandbox.sandbox_id not in [each["sandboxID"] for each in found]
    status, told = server.ask("GET", f"/e2b/sandboxes/metrics?sandbox_ids={sandbox.sandbox_id}", stranger)
    assert (status, told) == (200, {"sandboxes": {}})


def test_cannot_use_ones_own_token_at_anothers_daemon(server, create, stranger_sandbox):
    sandbox = create()
    for token in (stranger_sandbox["envdAccessToken"], sandbox.sandbox_id, "", server.key):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        headers = {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": token,
            "Content-Type": "application/json",
        }
        connection.request("POST", "/process.Process/List", b"{}", headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["code"]) == (401, 401)


def test_cannot_repeat_anothers_creation(server, stranger):
    headers = {"Idempotency-Key": "the-same-key-for-both"}
    body = {"templateID": "base", "timeout": 30}
    _, mine = server.ask("POST", "/e2b/v2/sandboxes", server.key, body, headers)
    _, theirs = server.ask("POST", "/e2b/v2/sandboxes", stranger, body, headers)
    assert mine["sandboxID"] != theirs["sandboxID"]
    server.ask("DELETE", f"/e2b/sandboxes/{mine['sandboxID']}", server.key)
    server.ask("DELETE", f"/e2b/sandboxes/{theirs['sandboxID']}", stranger)


def test_cannot_fetch_from_anothers_watcher(server, create, stranger_sandbox):
    sandbox = create()
    watch = sandbox.files.watch_dir("/tmp")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {
        "E2b-Sandbox-Id": stranger_sandbox["sandboxID"],
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": stranger_sandbox["envdAccessToken"],
        "Content-Type": "application/json",
    }
    body = json.dumps({"watcherId": watch._watcher_id}).encode()
    connection.request("POST", "/filesystem.Filesystem/GetWatcherEvents", body, headers)
    assert connection.getresponse().status == 404
    watch.stop()
