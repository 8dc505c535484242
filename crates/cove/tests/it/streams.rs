//! A stream ends when the right that opened it ends: every kind, at every door, on every server, within a second.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use cove_testkit::postgres::Postgres;
use cove_testkit::server::KEY;
use cove_testkit::wait::{LIMIT, until};
use serde_json::{Value, json};

/// What is promised.
const SOON: Duration = Duration::from_secs(1);

/// In the sandbox: answers with a body that never ends, or as an upgraded connection that never speaks.
const NEVER_ENDS: &str = r#"
import socket, threading
listener = socket.create_server(("127.0.0.1", 8000), backlog=2000)
def serve(client):
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(65536)
        if not piece: return
        head += piece
    if b"upgrade:" in head.lower():
        client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
    else:
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
    while client.recv(65536): pass
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// A request that stays open.
pub struct Stream {
    name: String,
    pub socket: TcpStream,
}

impl Stream {
    /// Sends the head and the body as they are, and waits for the answer's header with this status.
    pub fn open(address: &str, name: &str, head: &str, body: &[u8], status: &str) -> Stream {
        let stream = Stream::send(address, name, head, body);
        let heard = stream.header();
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}")), "{name}: {heard}");
        stream
    }

    /// The answer's header, and what came with it.
    pub fn header(&self) -> String {
        let (mut socket, name) = (&self.socket, &self.name);
        let mut heard = Vec::new();
        while !heard.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut piece = [0; 4096];
            let count = socket.read(&mut piece).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(count > 0, "{name} was refused: {}", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&heard).into_owned()
    }

    pub fn send(address: &str, name: &str, head: &str, body: &[u8]) -> Stream {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let head = head.trim().replace('\n', "\r\n");
        let host =
            if head.to_lowercase().contains("\r\nhost:") { String::new() } else { format!("Host: {address}\r\n") };
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        socket.write_all(format!("{head}\r\n{host}{length}\r\n").as_bytes()).unwrap();
        socket.write_all(body).unwrap();
        Stream { name: name.to_owned(), socket }
    }

    /// What comes in the next moment.
    fn heard(&self) -> String {
        self.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut piece = [0; 4096];
        let count = (&self.socket).read(&mut piece).unwrap_or(0);
        String::from_utf8_lossy(&piece[..count]).into_owned()
    }

    pub fn is_open(&self) -> bool {
        self.socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let mut socket = &self.socket;
        let mut piece = [0; 65536];
        loop {
            match socket.read(&mut piece) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        }
    }

    #[track_caller]
    pub fn ends_by(&self, deadline: Instant) {
        let mut socket = &self.socket;
        let mut piece = [0; 65536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).unwrap();
            match socket.read(&mut piece) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("{} was still open", self.name)
                }
                Err(_) => return,
            }
            assert!(Instant::now() < deadline, "{} still speaks", self.name);
        }
    }
}

pub const UPGRADE: &str = "Connection: Upgrade\nUpgrade: raw";
pub const WEBSOCKET: &str = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

/// A text frame of a client; masked with zeros, which changes nothing.
fn text_frame(text: &str) -> Vec<u8> {
    assert!(text.len() < 126);
    let mut frame = vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// A sandbox in which something listens that never ends.
pub fn sandbox(server: &TestServer, body: Value) -> String {
    let made = server.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json();
    let id = made["id"].as_str().unwrap().to_owned();
    let command = json!({"command": ["python3", "-c", NEVER_ENDS], "background": true});
    server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&command)).expect_status(200);
    until("the listener in the sandbox", LIMIT, || {
        let ports = server.request("GET", &format!("/api/sandboxes/{id}/ports"), None).expect_status(200);
        ports.text().contains("8000")
    });
    id
}

fn key(server: &TestServer, extra: Value) -> (String, String) {
    let mut body = json!({"name": "k", "scope": "write"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let made = server.request("POST", "/api/keys", Some(&body)).expect_status(201).json();
    (made["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned())
}

/// Every kind of stream that an API key opens, through this server.
fn by_key(address: &str, id: &str, session: &str, secret: &str) -> Vec<Stream> {
    let auth = format!("Authorization: Bearer {secret}");
    let get = |name: &str, path: String, more: &str, status: &str| {
        let more = if more.is_empty() { String::new() } else { format!("\n{more}") };
        Stream::open(address, name, &format!("GET {path} HTTP/1.1\n{auth}{more}"), b"", status)
    };
    let api = format!("/api/sandboxes/{id}");
    let toolbox = format!("/daytona/toolbox/{id}");
    let exec = json!({"shell": "sleep 60"}).to_string();
    let exec = exec.as_bytes();
    let post = format!("POST {api}/exec HTTP/1.1\n{auth}\nContent-Type: application/json");
    let events = get("Socket.IO", "/daytona/api/socket.io/?EIO=4&transport=websocket".into(), WEBSOCKET, "101");
    (&events.socket).write_all(&text_frame(&format!("40{}", json!({"token": secret})))).unwrap();
    until("Socket.IO to take the key", LIMIT, || events.heard().contains("40{"));
    vec![
        events,
        get("exec stream", format!("{api}/exec/stream"), WEBSOCKET, "101"),
        get("events", "/api/events/follow".into(), "", "200"),
        get("watch", format!("{api}/files/watch?path=/home/user"), "", "200"),
        get("session", format!("/api/sessions/{session}/stream"), WEBSOCKET, "101"),
        Stream::send(address, "long exec", &post, exec),
        get("preview", format!("{api}/ports/8000/proxy/"), "", "200"),
        get("upgraded preview", format!("{api}/ports/8000/proxy/"), UPGRADE, "101"),
        get("terminal", format!("{toolbox}/process/pty/create-connect?id=p{}", next()), WEBSOCKET, "101"),
        get("toolbox proxy", format!("{toolbox}/proxy/8000/x"), UPGRADE, "101"),
        get("Daytona preview", format!("/daytona/preview/{id}/8000/"), UPGRADE, "101"),
    ]
}

fn next() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Every kind of stream that opens without a key, with the sandbox's own tokens.
fn by_token(address: &str, id: &str, tokens: &Value) -> Vec<Stream> {
    let access = tokens["access_token"].as_str().unwrap();
    let traffic = tokens["traffic_token"].as_str().unwrap();
    let start = json!({"process": {"cmd": "sleep", "args": ["60"]}}).to_string();
    let mut envelope = vec![0];
    envelope.extend_from_slice(&(start.len() as u32).to_be_bytes());
    envelope.extend_from_slice(start.as_bytes());
    let daemon = format!(
        "POST /process.Process/Start HTTP/1.1\nHost: 49983-{id}.localhost\nX-Access-Token: {access}\n\
         Content-Type: application/connect+json\nConnect-Protocol-Version: 1"
    );
    let head = |name: &str, head: String| Stream::open(address, name, &head, b"", "101");
    vec![
        Stream::open(address, "E2B process", &daemon, &envelope, "200"),
        head(
            "E2B preview",
            format!("GET / HTTP/1.1\nHost: 8000-{id}.localhost\nE2b-Traffic-Access-Token: {traffic}\n{UPGRADE}"),
        ),
        head(
            "native preview",
            format!("GET /api/sandboxes/{id}/ports/8000/proxy/ HTTP/1.1\nX-Cove-Traffic-Token: {traffic}\n{UPGRADE}"),
        ),
        head(
            "Daytona preview",
            format!("GET /daytona/preview/{id}/8000/ HTTP/1.1\nX-Daytona-Preview-Token: {traffic}\n{UPGRADE}"),
        ),
        head(
            "Daytona terminal",
            format!(
                "GET /daytona/toolbox/{id}/process/pty/create-connect?id=t{} HTTP/1.1\n\
                 X-Daytona-Preview-Token: {access}\n{WEBSOCKET}",
                next()
            ),
        ),
    ]
}

#[track_caller]
fn all_open(streams: &[Stream]) {
    for stream in streams {
        assert!(stream.is_open(), "{} ended by itself", stream.name);
    }
}

/// Does it, and all must have ended a second later.
#[track_caller]
fn all_end(streams: Vec<Stream>, act: impl FnOnce()) {
    all_open(&streams);
    act();
    let begun = Instant::now();
    for stream in &streams {
        stream.ends_by(begun + SOON);
    }
}

fn session_on(server: &TestServer, id: &str) -> String {
    let made = server.request("POST", "/api/sessions", Some(&json!({"sandbox_id": id}))).expect_status(201).json();
    made["session_id"].as_str().unwrap().to_owned()
}

fn revoke(server: &TestServer, key: &str) {
    server.request("DELETE", &format!("/api/keys/{key}"), None).expect_status(204);
}

#[test]
fn a_revoked_key_ends_its_streams_at_every_door_and_no_others() {
    let server = TestServer::start();
    let id = sandbox(&server, json!({}));
    let session = session_on(&server, &id);
    let ((key, secret), (_, other)) = (key(&server, json!({})), key(&server, json!({})));
    let kept = by_key(server.address(), &id, &session, &other);
    all_end(by_key(server.address(), &id, &session, &secret), || revoke(&server, &key));
    all_open(&kept);
}

#[test]
fn a_deleted_organisation_ends_its_streams() {
    let server = TestServer::start();
    server.request("POST", "/api/organisations", Some(&json!({"id": "gone", "name": "g"}))).expect_status(201);
    let (_, secret) = key(&server, json!({"organisation": "gone", "scope": "admin"}));
    let auth = format!("Authorization: Bearer {secret}");
    let events = format!("GET /api/events/follow HTTP/1.1\n{auth}");
    let events = Stream::open(server.address(), "events", &events, b"", "200");
    let socket = format!("GET /daytona/api/socket.io/?EIO=4&transport=websocket HTTP/1.1\n{auth}\n{WEBSOCKET}");
    let socket = Stream::open(server.address(), "Socket.IO", &socket, b"", "101");
    (&socket.socket).write_all(&text_frame(&format!("40{}", json!({"token": secret})))).unwrap();
    until("Socket.IO to take the key", LIMIT, || socket.heard().contains("40{"));
    all_end(vec![events, socket], || {
        server.request("DELETE", "/api/organisations/gone", None).expect_status(204);
    });
    server.request("DELETE", "/api/organisations/default", None).expect_status(409);
}

#[test]
fn a_key_that_expires_takes_its_streams_with_it() {
    let server = TestServer::start();
    let id = sandbox(&server, json!({}));
    let session = session_on(&server, &id);
    let begun = Instant::now();
    let (_, secret) = key(&server, json!({"expires_in_seconds": 3}));
    let streams = by_key(server.address(), &id, &session, &secret);
    for stream in &streams {
        stream.ends_by(begun + Duration::from_secs(3) + SOON);
    }
    assert!(begun.elapsed() > Duration::from_millis(2900), "not before its time");
}

#[test]
fn new_tokens_and_a_closed_door_end_what_came_in_without_a_key() {
    let server = TestServer::start();
    let id = sandbox(&server, json!({}));
    let url = format!("/api/sandboxes/{id}");
    let tokens = server.request("GET", &format!("{url}/tokens"), None).expect_status(200).json();
    all_end(by_token(server.address(), &id, &tokens), || {
        server.request("POST", &format!("{url}/tokens"), None).expect_status(200);
    });

    let public = |public: bool| {
        server.request("PUT", &format!("{url}/visibility"), Some(&json!({"public": public}))).expect_status(200);
    };
    public(true);
    let visitor = format!("GET / HTTP/1.1\nHost: 8000-{id}.localhost\n{UPGRADE}");
    let visitor = Stream::open(server.address(), "visitor", &visitor, b"", "101");
    all_end(vec![visitor], || public(false));

    let link = format!("{url}/ports/8000/link?expires_in_seconds=2");
    let begun = Instant::now();
    let link = server.request("GET", &link, None).expect_status(200).json();
    let path = link["url"].as_str().unwrap().strip_prefix(&server.url()).unwrap().to_owned();
    let guest = Stream::open(server.address(), "signed link", &format!("GET {path} HTTP/1.1\n{UPGRADE}"), b"", "101");
    guest.ends_by(begun + Duration::from_secs(2) + SOON);
}

#[test]
fn a_key_that_another_server_revokes_ends_its_streams_here() {
    let Some(database) = Postgres::start() else { return };
    let start = || TestServer::start_in(&[], &[("DATABASE_URL", database.url())]);
    let (one, two) = (start(), start());
    let id = sandbox(&one, json!({}));
    let session = session_on(&one, &id);
    let (key, secret) = key(&two, json!({}));
    // Some are answered where they came in, some are sent on.
    let mut streams = by_key(one.address(), &id, &session, &secret);
    streams.extend(by_key(two.address(), &id, &session, &secret));
    all_end(streams, || revoke(&two, &key));
    // And it opens nothing there any more.
    let bearer = format!("Bearer {secret}");
    let headers = [("authorization", bearer.as_str())];
    let again = cove_testkit::http::request(one.address(), "GET", "/api/whoami", &headers, None).unwrap();
    assert_eq!(again.status, 401, "{}", again.text());
}

#[test]
fn a_server_that_is_told_to_end_ends_within_about_a_second() {
    let mut server = TestServer::start();
    let id = sandbox(&server, json!({}));
    let session = session_on(&server, &id);
    let tokens = server.request("GET", &format!("/api/sandboxes/{id}/tokens"), None).expect_status(200).json();
    let mut streams = by_key(server.address(), &id, &session, KEY);
    streams.extend(by_token(server.address(), &id, &tokens));
    all_open(&streams);
    let begun = Instant::now();
    server.stop();
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(2500), "it took {took:?}");
    for stream in streams {
        stream.ends_by(Instant::now() + SOON);
    }
}

#[test]
fn a_rotated_configured_key_opens_nothing_and_one_made_by_hand_still_does() {
    const NEW: &str = "e2b_00000000000000000000000000000000000000ff";
    let mut server = TestServer::start();
    let (_, made) = key(&server, json!({"scope": "operator", "name": "first"}));
    let whoami = |server: &TestServer, secret: &str| {
        let bearer = format!("Bearer {secret}");
        let headers = [("authorization", bearer.as_str())];
        cove_testkit::http::request(server.address(), "GET", "/api/whoami", &headers, None).unwrap().status
    };
    assert_eq!((whoami(&server, KEY), whoami(&server, &made)), (200, 200));
    server.restart_in(&[("COVE_API_KEY", NEW)]);
    assert_eq!((whoami(&server, KEY), whoami(&server, &made), whoami(&server, NEW)), (401, 200, 200));
    // And back: what the configuration names is good.
    server.restart_in(&[]);
    assert_eq!((whoami(&server, KEY), whoami(&server, &made), whoami(&server, NEW)), (200, 200, 401));
}
