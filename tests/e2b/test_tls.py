"""A domain over https and nothing else: what remains when the URL variables are gone from the SDKs.

Servers and clients live in a world of their own (see support/world.py), where every name below the domain leads to
loopback. The clients know `E2B_API_KEY`, `E2B_DOMAIN` and whom to trust.
"""

import hashlib
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile

import pytest
from conftest import Server, needs_new_sdk
from server import PROGRAM, wait_for
from world import World

DOMAIN = "sbx.example"
PACKAGES = os.environ["E2B_NODE_PACKAGES"]  # run.sh sets it
HERE = pathlib.Path(__file__).parent


@pytest.fixture
def place():
    """A folder with a short name: sockets are in it, whose paths the kernel limits."""
    with tempfile.TemporaryDirectory(prefix="cove-e2b-", ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"), DOMAIN)
    yield world
    world.end()


class Secure(Server):
    """A server in the world, with TLS; asked through the world's own curl."""

    def __init__(self, world, folder, address, *flags):
        self.world, self.address = world, address
        super().__init__(folder, "--tls", address, "--domain", DOMAIN, *flags, inside=world.inside)

    def trust(self, bundle=None, alone=None):
        """What a client needs, by the server's own word."""
        port = self.address.rsplit(":")[-1]
        folder = self.data / "tls"
        return {
            "E2B_API_KEY": self.key,
            "E2B_DOMAIN": DOMAIN if port == "443" else f"{DOMAIN}:{port}",
            "SSL_CERT_FILE": str(bundle or folder / "bundle.pem"),
            "NODE_EXTRA_CA_CERTS": str(alone or folder / "authority.pem"),
        }

    def python(self, script, environment=None, **more):
        return self.world.run(sys.executable, "-c", script, environment={**(environment or self.trust()), **more})

    def curl(self, url, *arguments, trust=None):
        """Status, HTTP version and body."""
        trust = trust or self.trust()["SSL_CERT_FILE"]
        end = "\n%{http_code} %{http_version}"
        done = self.world.run("curl", "--silent", "--max-time", "20", "--cacert", trust, "-w", end, *arguments, url)
        body, _, last = done.stdout.rpartition("\n")
        status, version = last.split()
        return int(status), version, body

    def call(self, method, host, path, key=None, body=None, headers=None):
        arguments = ["--request", method]
        for name, value in {"X-API-Key": key, **(headers or {})}.items():
            if value is not None:
                arguments += ["--header", f"{name}: {value}"]
        if body is not None:
            arguments += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        status, _, told = self.curl(f"https://{host}{path}", *arguments)
        return status, told

    def create(self, key=None, **wanted):
        body = {"templateID": "base", "timeout": 120, **wanted}
        status, told = self.call("POST", f"api.{DOMAIN}", "/v2/sandboxes", key or self.key, body)
        assert status == 201, told
        return json.loads(told)

    def another_organisation(self):
        name = f"other-{os.urandom(4).hex()}"
        bearer = {"Authorization": f"Bearer {self.key}"}
        self.call("POST", DOMAIN, "/api/organisations", None, {"id": name, "name": name}, bearer)
        wanted = {"name": "k", "scope": "write", "organisation": name}
        return json.loads(self.call("POST", DOMAIN, "/api/keys", None, wanted, bearer)[1])["secret"]


@pytest.fixture(scope="module")
def secure(world):
    """At the port that https has anyway, with the local authority."""
    with tempfile.TemporaryDirectory(prefix="cove-e2b-", ignore_cleanup_errors=True) as folder:
        server = Secure(world, folder, "127.0.0.1:443")
        yield server
        server.leave()


WHOLE_STORY = """
import httpx, os, ssl
from e2b import Sandbox

assert not [name for name in os.environ if name.endswith("_URL")]
sandbox = Sandbox.create(timeout=60)
try:
    assert sandbox.commands.run("echo hi").stdout == "hi\\n"
    sandbox.files.write("notes.txt", "over https")
    assert sandbox.files.read("notes.txt") == "over https"
    trusted = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    signed = sandbox.download_url("notes.txt")
    assert signed.startswith("https://49983-" + sandbox.sandbox_id), signed
    assert httpx.get(signed, verify=trusted).text == "over https"
    sandbox.commands.run("python3 -m http.server 8000 -d /home/user", background=True)
    host = sandbox.get_host(8000)
    assert host == f"8000-{sandbox.sandbox_id}.{os.environ['E2B_DOMAIN']}", host
    sandbox.commands.run("until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done", timeout=20)
    page = httpx.get(f"https://{host}/notes.txt", verify=trusted)
    assert (page.status_code, page.text) == (200, "over https"), page
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.commands.run("cat notes.txt").stdout == "over https"
    assert sandbox.sandbox_id in [each.sandbox_id for each in Sandbox.list().next_items()]
finally:
    assert sandbox.kill()
print("whole story")
"""

ASYNC_STORY = """
import asyncio
from e2b import AsyncSandbox

async def main():
    sandbox = await AsyncSandbox.create(timeout=60)
    lines = []
    done = await sandbox.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=lines.append)
    assert "".join(lines) == done.stdout == "1\\n2\\n3\\n"
    names = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(20)))
    assert [each.stdout for each in names] == [f"{n}\\n" for n in range(20)]
    assert await sandbox.kill()
    print("whole story")

asyncio.run(main())
"""


@pytest.mark.parametrize("story", [WHOLE_STORY, ASYNC_STORY], ids=["sync", "async"])
def test_the_python_sdk_needs_a_domain_and_whom_to_trust(secure, story):
    done = secure.python(story)
    assert done.stdout.endswith("whole story\n"), done.stdout + done.stderr


def test_the_python_sdk_speaks_either_version_of_http(secure):
    for version in ("1.1", "2"):
        done = secure.python(ASYNC_STORY, E2B_HTTP_VERSION=version)
        assert done.stdout.endswith("whole story\n"), done.stdout + done.stderr


def test_who_does_not_trust_the_authority_is_not_served(secure):
    environment = {**secure.trust(), "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}
    done = secure.python(WHOLE_STORY, environment)
    assert done.returncode != 0 and "whole story" not in done.stdout


def test_the_javascript_sdk_needs_a_domain_and_whom_to_trust(secure):
    suite = HERE / "tls.test.mjs"
    environment = {**secure.trust(), "E2B_NODE_PACKAGES": PACKAGES}
    done = secure.world.run("node", "--test", "--test-reporter=tap", str(suite), environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_http_2_is_agreed_on_in_the_handshake(secure):
    status, version, _ = secure.curl(f"https://api.{DOMAIN}/health", "--http2")
    assert (status, version) == (204, "2")
    assert secure.curl(f"https://api.{DOMAIN}/health", "--http1.1")[:2] == (204, "1.1")


WEBSOCKET = """
import asyncio, base64, os, ssl, struct, sys

async def main(host, trust):
    context = ssl.create_default_context(cafile=trust)
    context.set_alpn_protocols(["http/1.1"])
    reader, writer = await asyncio.open_connection(host.split(":")[0], 443, ssl=context)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write((f"GET /echo HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
                  f"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: {key}\\r\\n\\r\\n").encode())
    head = await asyncio.wait_for(reader.readuntil(b"\\r\\n\\r\\n"), 10)
    assert head.startswith(b"HTTP/1.1 101"), head
    frame = bytes([0x81, 0x80 | 5]) + bytes(4) + b"hello"
    writer.write(frame)
    assert await asyncio.wait_for(reader.readexactly(len(frame)), 10) == frame
    print("echoed")

asyncio.run(main(*sys.argv[1:]))
"""


def test_websockets_pass_over_https(secure):
    from test_wire import ECHO

    made = secure.create()
    script = f"""
from e2b import Sandbox
sandbox = Sandbox.connect({made["sandboxID"]!r})
sandbox.files.write("echo.py", {ECHO!r})
sandbox.commands.run("python3 echo.py", background=True)
sandbox.commands.run("until grep -q ':1F43 ' /proc/net/tcp; do sleep 0.05; done", timeout=20)
print(sandbox.get_host(8003))
"""
    started = secure.python(script)
    host = started.stdout.strip()
    assert host, started.stderr
    trust = secure.trust()["SSL_CERT_FILE"]
    done = secure.world.run(sys.executable, "-c", WEBSOCKET, host, trust)
    assert done.stdout == "echoed\n", done.stdout + done.stderr
    assert secure.call("DELETE", f"api.{DOMAIN}", f"/sandboxes/{made['sandboxID']}", secure.key)[0] == 204


def test_links_of_other_doors_are_https_too(secure):
    made = secure.create()
    bearer = {"Authorization": f"Bearer {secure.key}"}
    path = f"/api/sandboxes/{made['sandboxID']}/ports/8000/link"
    status, told = secure.call("GET", DOMAIN, path, headers=bearer)
    assert (status, json.loads(told)["url"].split("/api/")[0]) == (200, f"https://{DOMAIN}")
    secure.call("DELETE", f"api.{DOMAIN}", f"/sandboxes/{made['sandboxID']}", secure.key)


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_host_that_is_not_ours_is_sent_away(secure, version):
    health = f"https://api.{DOMAIN}/health"
    for host in ("evil.example", f"evil{DOMAIN}", f"a.b.{DOMAIN}", "example"):
        assert secure.curl(health, version, "--header", f"Host: {host}")[0] == 421, host
    for path in ("/", "/api/sandboxes", "/metrics"):
        assert secure.curl(f"https://www.{DOMAIN}{path}", version)[0] == 404, path
    assert secure.curl(f"https://3000-tooshort.{DOMAIN}/", version)[0] == 404
    assert secure.curl(f"https://99999-{'a' * 20}.{DOMAIN}/", version)[0] == 400
    status, _, told = secure.curl(f"https://3000-{'a' * 20}.{DOMAIN}/", version)
    assert (status, json.loads(told)["message"]) == (502, "The sandbox was not found")


def test_cannot_reach_anothers_sandbox_by_its_host_name(secure):
    stranger = secure.another_organisation()
    mine, theirs = secure.create(network={"allowPublicTraffic": False}), secure.create(stranger)
    api, id = f"api.{DOMAIN}", mine["sandboxID"]
    for method, path in [
        ("GET", f"/sandboxes/{id}"),
        ("DELETE", f"/sandboxes/{id}"),
        ("POST", f"/v2/sandboxes/{id}/connect"),
        ("POST", f"/sandboxes/{id}/pause"),
        ("GET", f"/v2/sandboxes/{id}/logs"),
        ("GET", f"/sandboxes/{id}/metrics"),
    ]:
        assert secure.call(method, api, path, stranger)[0] == 404, path
    listed = json.loads(secure.call("GET", api, "/v2/sandboxes", stranger)[1])
    assert [each["sandboxID"] for each in listed] == [theirs["sandboxID"]]

    daemon = f"49983-{id}.{DOMAIN}"
    for token in (theirs["envdAccessToken"], stranger, secure.key, None):
        headers = {"X-Access-Token": token}
        assert secure.call("POST", daemon, "/process.Process/List", stranger, {}, headers)[0] == 401, token
        assert secure.call("GET", daemon, "/files?path=/etc/hostname", stranger, None, headers)[0] == 401, token
    # The name decides, whatever the headers say: another's daemon is not reached through one's own host.
    headers = {"X-Access-Token": theirs["envdAccessToken"], "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49983"}
    own = secure.call("POST", f"49983-{theirs['sandboxID']}.{DOMAIN}", "/process.Process/List", None, {}, headers)
    assert own[0] == 200 and "processes" in (own[1] or '{"processes"'), own
    assert secure.call("POST", DOMAIN, "/process.Process/List", None, {}, headers)[0] == 401

    interpreter = f"49999-{id}.{DOMAIN}"
    code = {"code": "1"}
    headers = {"X-Access-Token": theirs["envdAccessToken"]}
    assert secure.call("POST", interpreter, "/execute", None, code, headers)[0] in (401, 403)
    for token in (theirs.get("trafficAccessToken"), theirs["envdAccessToken"], None):
        headers = {"e2b-traffic-access-token": token}
        assert secure.call("GET", f"8000-{id}.{DOMAIN}", "/", None, None, headers)[0] == 403, token
    headers = {"e2b-traffic-access-token": mine["trafficAccessToken"]}
    assert secure.call("GET", f"8000-{id}.{DOMAIN}", "/", None, None, headers)[0] == 502
    assert secure.call("DELETE", api, f"/sandboxes/{id}", secure.key)[0] == 204
    assert secure.call("DELETE", api, f"/sandboxes/{theirs['sandboxID']}", stranger)[0] == 204


def shown(server):
    """The fingerprint of the certificate that the server shows at this moment."""
    script = "import ssl,sys; print(ssl.get_server_certificate((sys.argv[1], int(sys.argv[2]))))"
    host, port = server.address.rsplit(":", 1)
    pem = server.world.run(sys.executable, "-c", script, host, port).stdout
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.strip())).hexdigest()


def tls(server, *arguments):
    done = server.world.run(PROGRAM, "tls", *arguments, "--data", str(server.data))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cove_tls_tells_what_to_trust_and_what_is_shown(secure):
    told = json.loads(tls(secure, "--json"))
    assert told["shown"]["sha256"] == shown(secure)
    assert told["domain"] == DOMAIN
    assert {DOMAIN, f"*.{DOMAIN}"} <= set(told["shown"]["names"])
    lines = tls(secure, "env").splitlines()
    environment = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert sorted(environment) == ["E2B_DOMAIN", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"]
    done = secure.python(ASYNC_STORY, {**environment, "E2B_API_KEY": secure.key})
    assert done.stdout.endswith("whole story\n"), done.stderr
    text = tls(secure)
    assert shown(secure) in text and "export E2B_DOMAIN=" + DOMAIN in text


def test_a_renewed_authority_is_still_trusted_until_its_key_changes(secure, tmp_path):
    old = tmp_path / "old.pem"
    old.write_bytes((secure.data / "tls" / "authority.pem").read_bytes())
    health = f"https://api.{DOMAIN}/health"
    before = shown(secure)
    tls(secure, "renew")
    wait_for(lambda: shown(secure) != before, 20, "a certificate by the renewed authority")
    assert secure.curl(health, trust=str(old))[0] == 204
    before = shown(secure)
    tls(secure, "renew", "--new-key")
    wait_for(lambda: shown(secure) != before, 20, "a certificate by the new authority")
    assert secure.curl(health, trust=str(old))[0] == 0, "the old authority must not vouch for the new key"
    assert secure.curl(health)[0] == 204


def certify(folder, name):
    """A certificate as an operator has it, signed by itself."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
        + ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},DNS:*.{name}"]
        + ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", str(key), "-out", str(chain)],
        check=True,
        capture_output=True,
    )
    return chain, key


def test_a_certificate_of_the_operators_is_shown_and_read_again(world, place):
    chain, key = certify(place, DOMAIN)
    flags = ["--tls-certificate", str(chain), "--tls-key", str(key)]
    server = Secure(world, place, "127.0.0.1:7443", *flags)
    try:
        # The domain carries the port here, for both SDKs.
        environment = server.trust(bundle=chain, alone=chain)
        done = server.python(WHOLE_STORY, environment)
        assert done.stdout.endswith("whole story\n"), done.stdout + done.stderr
        suite = str(HERE / "tls.test.mjs")
        environment |= {"E2B_NODE_PACKAGES": PACKAGES}
        done = world.run("node", "--test", "--test-reporter=tap", suite, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not (server.data / "tls" / "authority-key.pem").exists(), "nobody asked for an authority"
        told = json.loads(tls(server, "--json"))
        assert (told["authority"], told["shown"]["sha256"]) == (None, shown(server))

        first = shown(server)
        chain.write_text("no certificate")
        wait_for(lambda: "the last one stays" in server.said(), 20, "a word in the log")
        assert shown(server) == first
        certify(place, DOMAIN)
        wait_for(lambda: shown(server) != first, 20, "the new certificate")
        status, _, _ = server.curl(f"https://api.{DOMAIN}:7443/health", trust=str(chain))
        assert status == 204
    finally:
        server.leave()


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(place):
    (place / "a").mkdir(), (place / "b").mkdir()
    chain, _ = certify(place / "a", DOMAIN)
    _, key = certify(place / "b", DOMAIN)
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data", str(place / "data"), "--tls", "127.0.0.1:0"]
    done = subprocess.run(
        [PROGRAM, *arguments, "--tls-certificate", str(chain), "--tls-key", str(key)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"{chain} holds no usable certificate for this key" in done.stderr


@needs_new_sdk
def test_names_below_localhost_need_no_dns(place):
    """Today's Python SDK finds `*.localhost` by itself: no DNS, no world."""
    server = Server(place, "--tls", "127.0.0.1:0")
    try:
        environment = dict(line.split("=", 1) for line in server.said().replace("  export ", "\n").splitlines() if "=" in line)
        assert environment["E2B_DOMAIN"].startswith("cove.localhost:")
        clean = {"PATH": os.environ["PATH"], "HOME": "/tmp", "E2B_API_KEY": server.key}
        clean |= {name: environment[name].strip() for name in ("E2B_DOMAIN", "SSL_CERT_FILE")}
        done = subprocess.run(
            [sys.executable, "-c", ASYNC_STORY], env=clean, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.endswith("whole story\n"), done.stdout + done.stderr
    finally:
        server.leave()
