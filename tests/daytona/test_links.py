"""Ports from outside, and who may see them."""

import pytest


@pytest.fixture(scope="module")
def web(sandbox):
    """A page on port 8200 that says what it was asked."""
    code = (
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        if self.path == '/away':\n"
        "            self.send_response(302); self.send_header('Location', '/there'); self.end_headers(); return\n"
        "        token = self.headers.get('x-daytona-preview-token', 'none')\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(f'{self.path} {token}'.encode())\n"
        "http.server.HTTPServer(('127.0.0.1', 8200), H).serve_forever()\n"
    )
    sandbox.fs.upload_file(code.encode(), "/tmp/web.py")
    sandbox.process.exec("python3 /tmp/web.py >/dev/null 2>&1 & for i in $(seq 100); do "
                         "(: </dev/tcp/127.0.0.1/8200) 2>/dev/null && break; sleep 0.1; done")
    yield sandbox
    sandbox.process.exec("pkill -f /tmp/web.py")


def test_a_private_port_wants_its_token(server, web):
    link = web.get_preview_link(8200)
    assert link.url.startswith(server.url)
    assert server.ask("GET", link.url + "/")[0] == 401
    assert server.ask("GET", link.url + "/", headers={"x-daytona-preview-token": "wrong"})[0] == 401
    shown = {"x-daytona-preview-token": link.token}
    assert server.ask("GET", link.url + "/a%20b?x=1", headers=shown) == (200, b"/a%20b?x=1 none")
    assert server.ask("GET", f"{link.url}/q?DAYTONA_SANDBOX_AUTH_KEY={link.token}") == (200, b"/q none")
    assert server.ask("GET", link.url + "/k", server.key) == (200, b"/k none")
    # A redirect of the page stays in the preview.
    assert server.ask("GET", link.url + "/away", headers=shown) == (200, b"/there none")


def test_a_link_to_a_port_does_not_open_the_toolbox(server, web):
    token = web.get_preview_link(8200).token
    path = f"/daytona/toolbox/{web.id}/files/info?path=/tmp"
    assert server.ask("GET", path, headers={"x-daytona-preview-token": token})[0] == 401
    # The token that browsers ask for does.
    own = web.get_preview_link(1).token
    assert server.ask("GET", path, headers={"x-daytona-preview-token": own})[0] == 200


def test_a_signed_link_opens_one_port_until_it_is_ended(server, web):
    link = web.create_signed_preview_url(8200, 60)
    assert server.ask("GET", link.url + "/page") == (200, b"/page none")
    assert server.ask("GET", link.url.replace("/8200~", "/8201~") + "/")[0] == 401
    web.expire_signed_preview_url(8200, link.token)
    assert server.ask("GET", link.url + "/page")[0] == 401


def test_a_port_where_nothing_listens_says_so(server, web):
    link = web.get_preview_link(8299)
    status, said = server.ask("GET", link.url + "/", server.key)
    assert (status, "nothing listens" in said["message"]) == (502, True)
