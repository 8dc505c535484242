//! A private sandbox's page in a real browser: the link that `cove link` prints, and all that the page loads afterwards.

use std::process::Command;

use cove_testkit::TestServer;
use cove_testkit::wait::{LIMIT, until};

/// A page with absolute links to a style and a script, a WebSocket, and a picture that comes when all the rest was seen:
/// so the page has loaded only then.
const PROGRAM: &str = r#"
import base64, hashlib, http.server, threading
seen = threading.Event()
PAGE = b"""<!doctype html><link rel=stylesheet href=/style.css><body><p id=out>nothing yet</p><script src=/app.js></script><img src=/last.svg>"""
SCRIPT = b"""
const said = [];
const socket = new WebSocket('ws://' + location.host + '/socket');
socket.onmessage = async (message) => {
  said.push('socket: ' + message.data);
  said.push('color: ' + getComputedStyle(document.body).color);
  said.push('address: ' + location.href);
  said.push('cookie: [' + document.cookie + ']');
  said.push('headers: ' + await (await fetch('/headers')).text());
  document.getElementById('out').textContent = said.join(' | ');
  await fetch('/seen');
};
socket.onerror = () => { document.getElementById('out').textContent = 'no socket'; fetch('/seen'); };
"""
class Page(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words): pass
    def give(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        path = self.path
        if path == "/": self.give("text/html", PAGE)
        elif path == "/style.css": self.give("text/css", b"body { color: rgb(1, 2, 3) }")
        elif path == "/app.js": self.give("text/javascript", SCRIPT)
        elif path == "/headers": self.give("text/plain", ", ".join("%s=%s" % pair for pair in self.headers.items()).encode())
        elif path == "/seen": seen.set(); self.give("text/plain", b"")
        elif path == "/last.svg": seen.wait(60); self.give("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>")
        elif path == "/socket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            self.wfile.write(b"\x81\x05hello")
            self.wfile.flush()
            self.rfile.read(1)
            self.close_connection = True
        else: self.send_error(404)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Page).serve_forever()
"#;

#[test]
fn a_link_shows_a_private_page_with_its_style_its_script_and_its_socket() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    server.cove(["exec", "-d", "box", "--", "python3", "-c", PROGRAM]).finish().expect_success();
    until("it listens", LIMIT, || server.cove(["ports", "box"]).finish().expect_success().stdout.contains("8000"));
    let link = server.cove(["link", "box", "8000"]).finish().expect_success().stdout.trim().to_owned();
    assert!(link.starts_with("http://8000-") && link.contains("/?cove_token="), "{link}");

    let profile = tempfile::tempdir().unwrap();
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display())).arg(&link);
    let shown = chromium.output().expect("chromium is installed by scripts/setup");
    let (page, log) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    let (place, token) = link.split_once("?cove_token=").unwrap();
    for words in ["socket: hello", "color: rgb(1, 2, 3)", &format!("address: {place} "), "cookie: []"] {
        assert!(page.contains(words), "{words} is not on the page:\n{page}\n{log}");
    }
    assert!(!page.contains("cove_token") && !page.contains(token), "the program heard the token:\n{page}");
}
