//! What there is to attack: two organisations, sandboxes that sleep and one that serves a page, keys of every kind.

use std::cell::OnceCell;
use std::io;
use std::time::{Duration, Instant};

use cove_probe::Verdict;
use serde_json::{Value, json};

use super::routes::Walked;
use super::wire::{self, Answer};
use crate::complaint::Complaint;
use crate::measure::own_server::OwnServer;

/// Where the program in the open sandbox listens.
pub const PORT: u16 = 8000;

/// A program that shows what it was sent, and sets the cookies that it was told to.
const PROGRAM: &str = r#"
import socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", 8000))
s.listen(64)
while True:
    c, _ = s.accept()
    try:
        c.settimeout(5)
        h = b""
        while b"\r\n\r\n" not in h:
            d = c.recv(65536)
            if not d:
                break
            h += d
        lines = h.split(b"\r\n\r\n")[0].split(b"\r\n")
        cookies = [b"Set-Cookie: " + l.split(b": ", 1)[1] for l in lines if l.lower().startswith(b"x-set-cookie: ")]
        head = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(h), b"Connection: close"] + cookies
        c.sendall(b"\r\n".join(head) + b"\r\n\r\n" + h)
    except OSError:
        pass
    finally:
        c.close()
"#;

pub struct House {
    pub address: String,
    /// A file of the host that no sandbox may see.
    pub database: String,
    /// The owner's, for everything.
    pub key: String,
    pub reader: String,
    pub revoked: String,
    /// Another organisation's, for everything of its own.
    pub stranger: String,
    /// Sleeps, and would wake for a request; its ports ask for a token.
    pub private: String,
    /// Sleeps, and would wake; made through E2B's door.
    pub public: String,
    /// Runs; its ports are open to all.
    pub open: String,
    /// Runs; its ports ask for a token.
    pub closed: String,
    pub access_token: String,
    pub traffic_token: String,
    pub session: String,
    pub revoked_id: String,
    pub webhook: String,
    /// Whether a program answers at the port of the two that run.
    pub serves: bool,
    pub walked: OnceCell<Walked>,
}

impl House {
    pub fn furnish(server: &OwnServer) -> Result<House, Complaint> {
        let (url, key) = (&server.api.url, server.api.key.as_str());
        let address = url.trim_start_matches("http://").to_owned();
        let owner = Owner { address: &address, key };
        let sandbox = |body: Value| owner.make("/api/sandboxes", body, "id");
        let private = sandbox(json!({"name": "private", "timers": {"auto_resume": true}}))?;
        let public = owner.make("/e2b/sandboxes", json!({"templateID": "base", "timeout": 3600}), "sandboxID")?;
        owner.ask("PATCH", &format!("/api/sandboxes/{public}/timers"), json!({"auto_resume": true}))?;
        let open = sandbox(json!({"name": "open", "public": true}))?;
        let closed = sandbox(json!({"name": "closed"}))?;
        for id in [&open, &closed] {
            let program = json!({"command": ["python3", "-c", PROGRAM], "background": true});
            // Where the template has no such program the probes that need one say so.
            let _absent = owner.ask("POST", &format!("/api/sandboxes/{id}/exec"), program);
        }
        let tokens = owner.ask("GET", &format!("/api/sandboxes/{closed}/tokens"), Value::Null)?;
        let session = owner.make("/api/sessions", json!({}), "session_id")?;
        let webhook = owner.make("/api/webhooks", json!({"url": "http://127.0.0.1:1/"}), "id")?;
        let reader = owner.make("/api/keys", json!({"name": "reader", "scope": "read"}), "secret")?;
        let dead = owner.ask("POST", "/api/keys", json!({"name": "dead", "scope": "admin"}))?;
        let (revoked_id, revoked) = (text(&dead, "id"), text(&dead, "secret"));
        owner.ask("DELETE", &format!("/api/keys/{revoked_id}"), Value::Null)?;
        owner.make("/api/organisations", json!({"id": "stranger", "name": "stranger"}), "id")?;
        let body = json!({"name": "stranger", "scope": "admin", "organisation": "stranger"});
        let stranger = owner.make("/api/keys", body, "secret")?;
        for id in [&private, &public] {
            let paused = owner.ask("POST", &format!("/api/sandboxes/{id}/pause"), Value::Null);
            // Where processes cannot be frozen it sleeps without them.
            if paused.is_err() {
                owner.ask("POST", &format!("/api/sandboxes/{id}/stop"), Value::Null)?;
            }
        }
        let mut house = House {
            key: key.to_owned(),
            database: server.data().join("cove.db").display().to_string(),
            access_token: text(&tokens, "access_token"),
            traffic_token: text(&tokens, "traffic_token"),
            walked: OnceCell::new(),
            serves: false,
            address,
            reader,
            revoked,
            stranger,
            private,
            public,
            open,
            closed,
            session,
            revoked_id,
            webhook,
        };
        house.serves = house.program_answers();
        Ok(house)
    }

    /// Waits a moment for the program to listen.
    fn program_answers(&self) -> bool {
        let began = Instant::now();
        let shown = [("x-cove-traffic-token", self.traffic_token.as_str())];
        let ready = |id: &str| self.at(id, "GET", "/", &shown).is_ok_and(|answer| answer.status == 200);
        while began.elapsed() < Duration::from_secs(5) {
            if ready(&self.open) && ready(&self.closed) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// The verdict of a probe that needs the program, where there is none.
    pub fn without_program() -> (Verdict, String) {
        (Verdict::NotApplicable, "no python3 in the sandbox to answer at a port".into())
    }

    /// A request with a key, or none.
    pub fn ask(&self, key: Option<&str>, method: &str, path: &str, body: &Value) -> io::Result<Answer> {
        let bearer = key.map(|key| format!("Bearer {key}"));
        let mut headers: Vec<(&str, &str)> = vec![("content-type", "application/json")];
        if let (Some(bearer), Some(key)) = (&bearer, key) {
            headers.extend([("authorization", bearer.as_str()), ("x-api-key", key)]);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, &headers, &body)
    }

    /// With these headers and a host.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Answer> {
        let all = [&[("host", self.address.as_str()), ("connection", "close")], headers].concat();
        wire::once(&self.address, wire::written(method, path, &all, body).as_bytes())
    }

    /// To the program's port of a sandbox, by host name.
    pub fn at(&self, id: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
        self.at_port(id, PORT, method, path, headers, "")
    }

    pub fn at_port(
        &self,
        id: &str,
        port: u16,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Answer> {
        let own = self.address.rsplit(':').next().unwrap_or_default();
        let host = format!("{port}-{id}.localhost:{own}");
        let all = [&[("host", host.as_str()), ("connection", "close")], headers].concat();
        wire::once(&self.address, wire::written(method, path, &all, body).as_bytes())
    }

    /// Whether what slept sleeps still.
    pub fn sleeps(&self) -> bool {
        [&self.private, &self.public].into_iter().all(|id| {
            let told = self.ask(Some(&self.key), "GET", &format!("/api/sandboxes/{id}"), &Value::Null);
            told.is_ok_and(|answer| ["paused", "stopped"].contains(&text(&answer.json(), "state").as_str()))
        })
    }

    /// A key that was made a moment ago, and its id.
    pub fn fresh_key(&self, scope: &str) -> Option<(String, String)> {
        let made =
            self.ask(Some(&self.key), "POST", "/api/keys", &json!({"name": "fresh", "scope": scope})).ok()?.json();
        Some((made["id"].as_str()?.to_owned(), made["secret"].as_str()?.to_owned()))
    }
}

pub fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

struct Owner<'a> {
    address: &'a str,
    key: &'a str,
}

impl Owner<'_> {
    fn ask(&self, method: &str, path: &str, body: Value) -> Result<Value, Complaint> {
        let bearer = format!("Bearer {}", self.key);
        let headers = [("host", self.address), ("connection", "close"), ("authorization", bearer.as_str())];
        let headers = [&headers[..], &[("x-api-key", self.key), ("content-type", "application/json")]].concat();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = wire::once(self.address, wire::written(method, path, &headers, &body).as_bytes());
        let answer = answer.map_err(|error| Complaint::failed(format!("{method} {path}: {error}")))?;
        if !(200..300).contains(&answer.status) {
            return Err(Complaint::failed(format!("{method} {path}: {} {}", answer.status, answer.beginning())));
        }
        Ok(answer.json())
    }

    fn make(&self, path: &str, body: Value, field: &str) -> Result<String, Complaint> {
        Ok(text(&self.ask("POST", path, body)?, field))
    }
}
