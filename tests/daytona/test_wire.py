"""What the SDKs hide: statuses, refusals, tenants, the events' socket."""

import base64
import json
import os
import socket
import threading

from conftest import wait_for


def test_without_a_good_key_nothing_is_told(server, sandbox):
    for path in ["/daytona/api/sandbox", f"/daytona/api/sandbox/{sandbox.id}", f"/daytona/toolbox/{sandbox.id}/work-dir"]:
        for key in [None, "dtn_nonsense"]:
            status, said = server.ask("GET", path, key)
            assert (status, said["statusCode"], said["code"]) == (401, 401, "UNAUTHORIZED"), path
            assert (said["path"], said["method"]) == (path, "GET")


def test_another_tenants_sandbox_does_not_exist(server, sandbox):
    other = server.another_organisation()
    _, mine = server.ask("GET", f"/daytona/api/sandbox/{sandbox.id}", other)
    _, none = server.ask("GET", "/daytona/api/sandbox/aaaaaaaaaaaaaaaaaaaa", other)
    assert mine["statusCode"] == none["statusCode"] == 404
    assert mine["message"].replace(sandbox.id, "X") == none["message"].replace("a" * 20, "X")
    assert server.ask("GET", "/daytona/api/sandbox", other)[1]["items"] == []
    calls = [("DELETE", ""), ("POST", "/stop"), ("POST", "/start"), ("GET", "/ports/80/preview-url"), ("GET", "/signing-key")]
    for method, path in calls:
        assert server.ask(method, f"/daytona/api/sandbox/{sandbox.id}{path}", other)[0] == 404
    assert server.ask("POST", f"/daytona/toolbox/{sandbox.id}/process/execute", other, {"command": "id"})[0] == 404
    assert server.ask("GET", f"/daytona/preview/{sandbox.id}/80/", other)[0] == 404


def test_bodies_as_the_sdks_send_them(server, sandbox):
    base = f"/daytona/api/sandbox/{sandbox.id}"
    kind = {"Content-Type": "application/json"}
    assert server.ask("POST", f"{base}/last-activity", server.key, b"", kind) == (201, None)
    toolbox = f"/daytona/toolbox/{sandbox.id}"
    assert server.ask("POST", f"{toolbox}/env", server.key, b'{"set":{"A":"1"}}', {"Content-Type": ""})[0] == 200
    status, said = server.ask("POST", f"{toolbox}/process/execute", server.key, b"{not json")
    assert (status, said["code"]) == (400, "INVALID_REQUEST_BODY")
    # The path of SDKs before 0.128.
    old = f"/daytona/api/toolbox/{sandbox.id}/toolbox/process/execute"
    assert server.ask("POST", old, server.key, {"command": "echo old"})[1]["result"] == "old\n"
    assert server.ask("GET", f"{base}/toolbox-proxy-url", server.key)[1] == {"url": f"{server.url}/daytona/toolbox"}


def test_a_sandbox_that_sleeps_says_so(server, fresh):
    fresh.stop()
    status, said = server.ask("POST", f"/daytona/toolbox/{fresh.id}/process/execute", server.key, {"command": "id"})
    assert (status, said["code"], said["source"]) == (409, "SANDBOX_NOT_RUNNING", "DAYTONA_PROXY")
    assert "stopped" in said["message"]


def test_calls_that_are_not_offered_say_so(server, sandbox):
    toolbox = f"/daytona/toolbox/{sandbox.id}"
    for path in ["/lsp/start", "/computeruse/start"]:
        status, said = server.ask("POST", toolbox + path, server.key, {})
        assert (status, said["code"]) == (501, "NOT_IMPLEMENTED")
    status, said = server.ask("GET", "/daytona/api/nosuch", server.key)
    assert (status, said["code"]) == (404, "NOT_FOUND")


def test_two_hundred_questions_at_once_all_get_an_answer(server):
    statuses = []
    def ask():
        statuses.append(server.ask("GET", f"/daytona/api/sandbox/{os.urandom(8).hex()}", server.key)[0])
    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [404] * 200


class Listener:
    """Socket.IO by hand, as far as the SDKs speak it."""

    def __init__(self, server, key):
        self.line = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        nonce = base64.b64encode(os.urandom(16)).decode()
        self.line.sendall(
            f"GET /daytona/api/socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {nonce}\r\n\r\n".encode()
        )
        self.stream = self.line.makefile("rb")
        assert b"101" in self.stream.readline()
        while self.stream.readline() != b"\r\n":
            pass
        assert self.next().startswith("0{")
        self.send("40" + json.dumps({"token": key}))

    def send(self, text):
        payload, mask = text.encode(), b"\0\0\0\0"
        self.line.sendall(bytes([0x81, 0x80 | 126]) + len(payload).to_bytes(2, "big") + mask + payload)

    def next(self):
        first, length = self.stream.read(2)
        if length == 126:
            length = int.from_bytes(self.stream.read(2), "big")
        elif length == 127:
            length = int.from_bytes(self.stream.read(8), "big")
        body = self.stream.read(length)
        return body.decode() if first & 15 == 1 else ""


def test_those_who_listen_hear_of_their_own_sandboxes_alone(server, daytona):
    mine, theirs = Listener(server, server.key), Listener(server, server.another_organisation())
    assert mine.next().startswith("40{") and theirs.next().startswith("40{")
    made = daytona.create()
    packet = mine.next()
    assert packet.startswith('42["sandbox.created"')
    assert json.loads(packet[2:])[1]["id"] == made.id
    daytona.delete(made)
    heard = []
    def gone():
        heard.append(json.loads(mine.next()[2:])[1])
        return heard[-1].get("newState") == "destroyed"
    wait_for(gone, what="the last event")
    assert {event["sandbox"]["id"] for event in heard} == {made.id}
    theirs.line.settimeout(0.5)
    try:
        assert not theirs.next(), "another tenant's event was heard"
    except TimeoutError:
        pass


def test_a_listener_without_a_good_key_is_sent_away(server):
    assert Listener(server, "nonsense").next().startswith('44{"message":"Unauthorized"')
