"""deploy/nginx.conf and deploy/Caddyfile before a server of deploy/cove.toml: E2B's SDK by domain, previews, WebSockets.

All of it in a world of its own, where names below example.com lead to loopback and port 443 is free.
"""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT
from server import PROGRAM, Server, wait_for
from world import World

PROXIES = pathlib.Path(os.environ["COVE_PROXIES"])
NAMES = "DNS:cove.example.com,DNS:sbx.example.com,DNS:*.sbx.example.com"


class Behind(Server):
    """At the address of deploy/cove.toml."""

    def __init__(self, folder, world):
        self.port, self.url = 7070, "http://127.0.0.1:7070"
        self.data = folder / "data"
        self.log = open(folder / "server.log", "w+")
        self.flags, self.inside = ("--config", str(ROOT / "deploy/cove.toml"), "--data", str(self.data)), world.inside
        self.start()
        self.key = (self.data / "api-key").read_text().strip()

    def start(self):
        self.process = subprocess.Popen(
            [*self.inside, PROGRAM, "serve", *self.flags], stdout=self.log, stderr=subprocess.STDOUT
        )
        wait_for(self.ready, 60, f"a ready server (see {self.log.name})")


def certificate(folder):
    """A chain for the names, signed by an authority of the test's own: authority.pem."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=authority", "-keyout", "authority-key.pem", "-out", "authority.pem"]
    signed = ["-CA", "authority.pem", "-CAkey", "authority-key.pem", "-addext", "basicConstraints=CA:FALSE"]
    leaf = ["-subj", "/CN=cove.example.com", "-addext", f"subjectAltName={NAMES}", "-keyout", "key.pem", "-out", "chain.pem"]
    for arguments in (authority, [*signed, *leaf]):
        subprocess.run([*made, *arguments], check=True, capture_output=True, cwd=folder)


def nginx(folder):
    text = (ROOT / "deploy/nginx.conf").read_text().replace("/etc/ssl/cove", str(folder))
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; user root;\nevents {{}}\nhttp {{ access_log off;\n{places}{text}\n}}\n"
    )
    return [PROXIES / "usr/sbin/nginx", "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf"]


def caddy(folder):
    text = (ROOT / "deploy/Caddyfile").read_text().replace("/etc/ssl/cove", str(folder))
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text)
    return [PROXIES / "usr/bin/caddy", "run", "--adapter", "caddyfile", "--config", folder / "Caddyfile"]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def front(request, place):
    certificate(place)
    world = World(place, "example.com")
    server = Behind(place, world)
    command = [str(word) for word in [*world.inside, *request.param(place)]]
    log = open(place / "proxy.log", "w+")
    proxy = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(place)})
    asked = ["curl", "-sf", "--cacert", str(place / "authority.pem"), "https://cove.example.com/healthz"]
    try:
        wait_for(lambda: world.run(*asked).returncode == 0, 20, f"the proxy:\n{(place / 'proxy.log').read_text()}")
        yield world, server, place
    finally:
        proxy.terminate()
        proxy.wait(20)
        # A test that failed may have left some.
        told = {"COVE_URL": server.url, "COVE_API_KEY": server.key, "HOME": str(place)}
        if left := world.run(PROGRAM, "ls", "-q", environment=told).stdout.split():
            world.run(PROGRAM, "rm", *left, environment=told)
        server.leave()
        world.end()


STORY = """
import base64, os, socket, ssl, urllib.request
from e2b import Sandbox

trusted = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
sandbox = Sandbox.create(timeout=120)
assert sandbox.commands.run("echo hi").stdout == "hi\\n"
sandbox.files.write("big", b"x" * 3_000_000)
assert len(sandbox.files.read("big", format="bytes")) == 3_000_000

# A page and a WebSocket of a program inside, at a host name of its own.
sandbox.files.write("serve.py", '''
import http.server, hashlib, base64
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"),
                                ("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(bytes([0x81, 5]) + b"hello")
            self.close_connection = True
            return
        body = (self.headers["X-Forwarded-Proto"] + " " + self.headers["Host"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
''')
sandbox.commands.run("python3 serve.py", background=True)
sandbox.commands.run("until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done", timeout=20)
host = sandbox.get_host(8000)
assert host == f"8000-{sandbox.sandbox_id}.sbx.example.com", host
page = urllib.request.urlopen(f"https://{host}/page", context=trusted).read().decode()
assert page == f"https {host}", page
raw = trusted.wrap_socket(socket.create_connection((host, 443)), server_hostname=host)
key = base64.b64encode(os.urandom(16)).decode()
raw.sendall(f"GET /ws HTTP/1.1\\r\\nHost: {host}\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
            f"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: {key}\\r\\n\\r\\n".encode())
seen = b""
while not seen.endswith(b"hello"):
    more = raw.recv(4096)
    assert more, seen
    seen += more
assert seen.startswith(b"HTTP/1.1 101"), seen
sandbox.kill()
"""


def test_clients_previews_and_websockets_come_through(front):
    world, server, place = front
    told = {"E2B_API_KEY": server.key, "E2B_DOMAIN": "sbx.example.com", "SSL_CERT_FILE": str(place / "authority.pem")}
    done = world.run(sys.executable, "-c", STORY, environment=told)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_itself_comes_through(front):
    world, server, place = front
    told = {
        "COVE_API_KEY": server.key,
        "COVE_URL": "https://cove.example.com",
        "SSL_CERT_FILE": str(place / "authority.pem"),
        "HOME": str(place),
    }
    for arguments in (["create", "--name", "box"], ["exec", "box", "--", "echo", "hi"], ["rm", "box"]):
        done = world.run(PROGRAM, *arguments, environment=told)
        assert done.returncode == 0, (arguments, done.stdout + done.stderr)


def test_the_counts_of_the_server_are_not_for_everybody(front):
    world, _, place = front
    asked = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", str(place / "authority.pem")]
    assert world.run(*asked, "https://cove.example.com/metrics").stdout == "404"
    assert world.run(*asked, "https://cove.example.com/healthz").stdout == "200"
