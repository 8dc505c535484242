"""What the SDKs do not show: both encodings, the shapes of errors, routing by host and header, previews, WebSockets."""

import base64
import http.client
import json
import os
import socket
import struct

import pytest
from conftest import wait_for


def call(server, sandbox, method, path, body=b"", headers=None, port=49983, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    sent = {"X-Access-Token": token(sandbox), **(headers or {})}
    if host:
        sent["Host"] = host
    else:
        sent |= {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def token(sandbox):
    return sandbox._envd_access_token


def rpc(server, sandbox, name, message, kind="application/json", **headers):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return call(server, sandbox, "POST", name, body, {"Content-Type": kind, **headers})


def envelope(payload):
    return struct.pack(">BI", 0, len(payload)) + payload


def envelopes(raw):
    while raw:
        flags, length = struct.unpack(">BI", raw[:5])
        yield flags, raw[5 : 5 + length]
        raw = raw[5 + length :]


def test_binary_protobuf_is_spoken(server, sandbox):
    # StatRequest{path(1)="/tmp"}
    status, raw, headers = rpc(server, sandbox, "/filesystem.Filesystem/Stat", b"\x0a\x04/tmp", "application/proto")
    assert (status, headers["Content-Type"]) == (200, "application/proto")
    # StatResponse{entry(1){name(1)="tmp", type(2)=directory, path(3)="/tmp"…}}
    assert b"\x0a\x03tmp\x10\x02\x1a\x04/tmp" in raw


def test_a_binary_stream_starts_a_process(server, sandbox):
    # StartRequest{process(1){cmd(1)="/bin/echo", args(2)="hi"}, stdin(4)=false}
    config = b"\x0a\x09/bin/echo\x12\x02hi"
    message = b"\x0a" + bytes([len(config)]) + config + b"\x20\x00"
    status, raw, headers = rpc(
        server, sandbox, "/process.Process/Start", envelope(message), "application/connect+proto"
    )
    assert (status, headers["Content-Type"]) == (200, "application/connect+proto")
    events = list(envelopes(raw))
    assert any(b"hi\n" in payload for flags, payload in events if flags == 0)
    assert events[-1] == (2, b"{}")


def test_errors_of_both_kinds_of_call(server, sandbox):
    status, raw, _ = rpc(server, sandbox, "/filesystem.Filesystem/Stat", {"path": "/nowhere"})
    assert (status, json.loads(raw)["code"]) == (404, "not_found")
    status, raw, _ = rpc(server, sandbox, "/filesystem.Filesystem/Stat", b"{not json")
    assert (status, json.loads(raw)["code"]) == (400, "invalid_argument")
    message = envelope(json.dumps({"process": {"pid": 999999}}).encode())
    status, raw, _ = rpc(server, sandbox, "/process.Process/Connect", message, "application/connect+json")
    assert status == 200
    assert json.loads(list(envelopes(raw))[-1][1])["error"]["code"] == "not_found"
    assert rpc(server, sandbox, "/process.Process/List", b"{}", "text/plain")[0] == 415
    assert rpc(server, sandbox, "/process.Process/Nothing", b"{}")[0] == 501


def test_a_silent_stream_is_kept_alive(server, sandbox):
    process = {"process": {"cmd": "/bin/sleep", "args": ["2.5"]}, "stdin": False}
    status, raw, _ = rpc(
        server,
        sandbox,
        "/process.Process/Start",
        envelope(json.dumps(process).encode()),
        "application/connect+json",
        **{"Keepalive-Ping-Interval": "1"},
    )
    assert status == 200
    assert [payload for _, payload in envelopes(raw)].count(b'{"event":{"keepalive":{}}}') == 2


def test_a_wrong_token_opens_nothing(server, sandbox):
    for headers in ({"X-Access-Token": "wrong"}, {"X-Access-Token": None}):
        for method, path in [
            ("POST", "/process.Process/List"),
            ("POST", "/filesystem.Filesystem/Stat"),
            ("GET", "/envs"),
            ("GET", "/metrics"),
            ("GET", "/files?path=/etc/passwd"),
            ("POST", "/files/compose"),
        ]:
            body = b"{}" if method == "POST" else b""
            status, raw, _ = call(
                server, sandbox, method, path, body, {"Content-Type": "application/json", **headers}
            )
            assert (status, json.loads(raw)["code"]) == (401, 401), path
    assert call(server, sandbox, "GET", "/health", headers={"X-Access-Token": None})[0] == 204


def test_internal_routes_are_not_there(server, sandbox):
    for path in ("/init", "/freeze", "/upgrade"):
        assert call(server, sandbox, "POST", path, b"{}")[0] == 404


def test_environment_and_figures(server, create):
    sandbox = create(envs={"A": "b"})
    assert json.loads(call(server, sandbox, "GET", "/envs")[1])["A"] == "b"
    figures = json.loads(call(server, sandbox, "GET", "/metrics")[1])
    assert figures["cpu_count"] >= 1 and 0 < figures["mem_used"] <= figures["mem_total"]


def test_pieces_are_composed(server, sandbox):
    sandbox.files.write("1.part", "one ")
    sandbox.files.write("2.part", "two")
    body = json.dumps({"source_paths": ["1.part", "2.part"], "destination": "whole.txt"}).encode()
    assert call(server, sandbox, "POST", "/files/compose", body, {"Content-Type": "application/json"})[0] == 200
    assert sandbox.files.read("whole.txt") == "one two"
    assert not sandbox.files.exists("1.part")


def test_half_of_the_routing_headers_is_an_error(server, sandbox):
    # With neither header the request is for the server itself, which has no such page.
    assert call(server, sandbox, "GET", "/health", host="127.0.0.1")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/health", headers={"E2b-Sandbox-Id": sandbox.sandbox_id})
    answer = connection.getresponse()
    assert (answer.status, b"E2b-Sandbox-Port" in answer.read()) == (400, True)


def test_a_dead_sandbox_is_not_found_by_the_proxy(server, create):
    sandbox = create()
    sandbox.kill()
    status, raw, _ = call(server, sandbox, "GET", "/health")
    assert (status, json.loads(raw)["message"]) == (502, "The sandbox was not found")


@pytest.fixture
def site(sandbox):
    """A web server in the sandbox."""
    sandbox.files.write("site/index.html", "from inside")
    sandbox.commands.run("python3 -m http.server 8001 --directory site", background=True)
    wait_for(lambda: "8001" in sandbox.commands.run("cat /proc/net/tcp | awk '{print $2}' | grep -i 1F41 && echo 8001 || true").stdout)
    return sandbox


def test_get_host_leads_to_a_web_server_inside(server, site):
    host = site.get_host(8001)
    assert host == f"8001-{site.sandbox_id}.localhost:{server.port}"
    assert call(server, site, "GET", "/", host=host)[:2] == (200, b"from inside")
    assert call(server, site, "GET", "/", port=8001)[:2] == (200, b"from inside")


def test_a_closed_port_is_told_with_those_that_are_open(server, site):
    status, raw, _ = call(server, site, "GET", "/", port=8002)
    told = json.loads(raw)
    assert (status, told["message"], told["port"]) == (502, "The sandbox is running but port is not open", 8002)
    assert 8001 in told["openPorts"]
    page = call(server, site, "GET", "/", port=8002, headers={"Accept": "text/html"})[1]
    assert page.startswith(b"<!doctype html>")


HEAD = """
import socket
server = socket.create_server(("127.0.0.1", 8004))
while True:
    peer, _ = server.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head and (more := peer.recv(4096)):
        head += more
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(head) + head)
    peer.close()
"""


def test_the_program_inside_sees_the_host_that_was_chosen(server, create):
    sandbox = create(network={"mask_request_host": "${PORT}.internal.example"})
    sandbox.files.write("head.py", HEAD)
    sandbox.commands.run("python3 head.py", background=True)
    host = f"8004-{sandbox.sandbox_id}.localhost:{server.port}"

    def head():
        status, body, _ = call(server, sandbox, "GET", "/", host=host)
        return body.decode() if status == 200 else None

    seen = wait_for(head, 10, "the program inside")
    # Letter by letter: there are programs that look for no other spelling.
    assert "\r\nHost: 8004.internal.example\r\n" in seen, seen
    assert f"\r\nX-Forwarded-Host: {host}\r\n" in seen, seen


def test_private_traffic_needs_its_token(server, create):
    sandbox = create(network={"allow_public_traffic": False})
    sandbox.commands.run("python3 -m http.server 8001", background=True)
    assert sandbox.traffic_access_token
    shown = {"E2B-Traffic-Access-Token": sandbox.traffic_access_token}
    wait_for(lambda: call(server, sandbox, "GET", "/", port=8001, headers=shown)[0] == 200, 10, "the web server")
    assert call(server, sandbox, "GET", "/", port=8001)[0] == 403
    assert call(server, sandbox, "GET", "/", port=8001, headers={"E2B-Traffic-Access-Token": "wrong"})[0] == 403


ECHO = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8003))
while True:
    peer, _ = server.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += peer.recv(4096)
    key = [line.split(b": ")[1] for line in head.split(b"\\r\\n") if line.lower().startswith(b"sec-websocket-key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    peer.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                 b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    while data := peer.recv(4096):
        peer.sendall(data)
"""


def test_websockets_pass_both_ways(server, sandbox):
    sandbox.files.write("echo.py", ECHO)
    sandbox.commands.run("python3 echo.py", background=True)

    def upgraded():
        peer = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        key = base64.b64encode(os.urandom(16)).decode()
        peer.sendall(
            f"GET /chat HTTP/1.1\r\nHost: {sandbox.get_host(8003)}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            piece = peer.recv(4096)
            if not piece:
                return None
            head += piece
        return peer if b" 101 " in head.split(b"\r\n")[0] else None

    peer = wait_for(upgraded, 10, "an upgraded connection")
    for message in (b"\x81\x85\0\0\0\0hello", b"\x82\x81\0\0\0\0x"):
        peer.sendall(message)
        seen = b""
        while len(seen) < len(message):
            seen += peer.recv(4096)
        assert seen == message
    peer.close()
