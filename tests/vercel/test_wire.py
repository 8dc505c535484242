"""What no SDK shows: sessions that are over, names that nobody knows, who may do what."""

import json
import urllib.request


def made(server, **asked):
    status, whole = server.call("POST", "/v3/sandboxes?teamId=team_1", {"projectId": "prj_1", **asked})
    assert status == 200, whole
    return whole


def removed(server, whole):
    status, _ = server.call("DELETE", f"/v2/sandboxes/{whole['sandbox']['name']}?projectId=prj_1")
    assert status == 200


def test_what_a_call_does_not_know_is_refused_by_name(server):
    status, refused = server.call("POST", "/v3/sandboxes", {"timeuot": 1})
    assert (status, refused["error"]["code"]) == (400, "bad_request")
    assert "unknown field `timeuot`: did you mean `timeout`?" in refused["error"]["message"]
    status, refused = server.call("GET", "/v2/sandboxes?limti=1")
    assert status == 400 and "did you mean `limit`?" in refused["error"]["message"], refused
    for asked, word in [
        ({"networkId": "net_1"}, "networkId"),
        ({"keepLastSnapshots": {"count": 2}}, "keepLastSnapshots"),
        ({"ports": list(range(1, 17))}, "ports"),
        ({"tags": {str(n): "x" for n in range(6)}}, "tags"),
        ({"networkPolicy": {"allow": ["github.com"]}}, "github.com"),
        ({"mounts": {"/data": {"drive": "d", "mode": "snapshot"}}}, "mounts"),
        ({"runtime": "node22", "image": "node:22"}, "exclude"),
        ({"timeout": 0}, "timeout"),
    ]:
        status, refused = server.call("POST", "/v3/sandboxes", asked)
        assert status in (400, 501) and word in refused["error"]["message"], (asked, status, refused)


def test_a_session_that_is_over_is_gone_and_the_next_one_goes_on(server):
    whole = made(server, name="sessions")
    first = whole["session"]["id"]
    command = {"command": "true", "args": []}
    status, told = server.call("POST", f"/v2/sandboxes/sessions/{first}/stop")
    assert status == 200 and told["session"]["status"] == "stopped", told
    status, refused = server.call("POST", f"/v2/sandboxes/sessions/{first}/cmd", command)
    assert (status, refused["error"]["code"]) == (410, "sandbox_stopped")
    # Looking does not wake it.
    status, told = server.call("GET", "/v2/sandboxes/sessions?name=sessions")
    assert [session["status"] for session in told["sessions"]] == ["stopped"]
    status, told = server.call("GET", "/v2/sandboxes/sessions/" + first)
    assert told["session"]["status"] == "stopped"
    status, none = server.call("GET", "/v2/sandboxes/sessions?name=nobody")
    assert (status, none["sessions"]) == (200, [])
    assert server.call("GET", "/v2/sandboxes/sessions/nobody")[0] == 404
    assert server.call("GET", "/v2/sandboxes/nobody")[0] == 404
    name = whole["sandbox"]["name"]
    status, again = server.call("GET", f"/v2/sandboxes/{name}?resume=true")
    assert status == 200 and again["resumed"] and again["session"]["id"] != first, again
    status, _ = server.call("POST", f"/v2/sandboxes/sessions/{again['session']['id']}/cmd", command)
    assert status == 200
    status, refused = server.call("POST", f"/v2/sandboxes/sessions/{first}/cmd", command)
    assert status == 410, "the first one stays over"
    removed(server, whole)


def test_lines_have_the_one_content_type_that_the_sdk_takes(server):
    whole = made(server)
    request = urllib.request.Request(
        f"{server.api}/v2/sandboxes/sessions/{whole['session']['id']}/cmd",
        method="POST",
        data=json.dumps({"command": "sh", "args": ["-c", "printf 'a\\n'; exit 3"], "wait": True, "logs": True}).encode(),
        headers={"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.read().splitlines()]
    assert lines[0]["command"]["exitCode"] is None
    assert {"stream": "stdout", "data": "a\n"} in lines
    assert lines[-1]["command"]["exitCode"] == 3 and lines[-1]["command"]["durationMs"] >= 0
    assert lines[0]["command"]["cwd"] == "/vercel/sandbox"
    removed(server, whole)


def test_a_stranger_finds_nothing_and_a_reader_changes_nothing(server):
    whole = made(server, name="private")
    session, stranger = whole["session"]["id"], server.another_organisation()
    for method, path in [
        ("GET", "/v2/sandboxes/private"),
        ("GET", f"/v2/sandboxes/sessions/{session}"),
        ("POST", f"/v2/sandboxes/sessions/{session}/stop"),
        ("POST", "/v2/sandboxes/private/fork"),
        ("DELETE", "/v2/sandboxes/private"),
    ]:
        assert server.call(method, path, key=stranger)[0] == 404, path
    _, reader = server.ask("POST", "/api/keys", server.key, {"name": "r", "scope": "read"})
    assert server.call("GET", "/v2/sandboxes/private", key=reader["secret"])[0] == 200
    assert server.call("GET", "/v2/sandboxes/private?resume=true", key=reader["secret"])[0] == 403
    assert server.call("DELETE", "/v2/sandboxes/private", key=reader["secret"])[0] == 403
    assert server.ask("GET", "/vercel/api/v2/sandboxes")[0] == 401
    removed(server, whole)


def test_what_is_not_offered_is_said(server):
    whole = made(server)
    status, refused = server.call("POST", f"/v2/sandboxes/sessions/{whole['session']['id']}/interactive", {})
    assert status == 501 and "terminals are not offered" in refused["error"]["message"], refused
    assert server.call("GET", "/v2/sandboxes/snapshots/tree")[0] == 501
    assert server.call("GET", "/v1/sandboxes")[0] == 404
    removed(server, whole)
