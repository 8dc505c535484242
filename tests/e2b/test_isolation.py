"""Two organisations: what is one's does not exist for the other, by any route."""

import http.client
import json
import urllib.parse

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


def by_host(server, port, id, method="GET", path="/", body=None, headers=None):
    """A request to `{port}-{id}.localhost` on the server's own port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    sent = {"Host": f"{port}-{id}.localhost:{server.port}", "Content-Type": "application/json", **(headers or {})}
    connection.request(method, path, body, sent)
    return connection.getresponse().status


def test_cannot_reach_anothers_sandbox_by_host_name(server, create, stranger, stranger_sandbox):
    sandbox = create(secure=True, network={"allow_public_traffic": False})
    id, token = sandbox.sandbox_id, stranger_sandbox["envdAccessToken"]
    keys = {"X-Access-Token": token, "X-API-Key": stranger, "Authorization": f"Bearer {stranger}"}
    assert by_host(server, 49983, id, "POST", "/process.Process/List", b"{}", keys) == 401
    assert by_host(server, 49983, id, "GET", "/files?path=/etc/hostname", None, keys) == 401
    assert by_host(server, 49999, id, "POST", "/execute", b'{"code":"1"}', keys) in (401, 403)
    assert by_host(server, 49999, id, "GET", "/contexts", None, keys) == 403
    assert by_host(server, 8000, id, "GET", "/", None, {**keys, "E2b-Traffic-Access-Token": token}) == 403


def test_cannot_read_anothers_file_with_a_signature_of_ones_own(server, create, stranger_sandbox):
    import base64
    import hashlib

    sandbox = create(secure=True)
    sandbox.files.write("mine.txt", "secret")
    token = stranger_sandbox["envdAccessToken"]
    made = hashlib.sha256(f"/home/user/mine.txt:read:user:{token}".encode()).digest()
    signature = "v1_" + base64.b64encode(made).decode().rstrip("=")
    query = f"/files?path=/home/user/mine.txt&username=user&signature={urllib.parse.quote(signature, safe=str())}"
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    assert server.ask("GET", query, None, None, headers)[0] == 401
    assert by_host(server, 49983, sandbox.sandbox_id, "GET", query) == 401
    # Without a sandbox's name it is the signer's own file that is meant, and that one has none.
    assert server.ask("GET", query)[0] in (401, 404)


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
