//! The guest where its socket lies among the sandbox's own files, as in a container.

use std::io::Write as _;
use std::process::{Command as Program, Stdio};

use cove_protocol::frame;
use cove_protocol::{FailureKind, Kind, Reply, Request};

use crate::client::{Guest, PATIENCE};

const TOKEN: &str = "0123456789abcdef";

fn with_token() -> Guest {
    Guest::start_with(&format!("{{\"token\":\"{TOKEN}\"}}"), &[])
}

#[test]
fn only_whoever_shows_the_token_is_served() {
    let guest = with_token();
    assert_eq!(guest.call(&Request::Ping).unwrap_err().kind, FailureKind::PermissionDenied);
    for wrong in ["", "0123456789abcdee", "0123456789abcdef0"] {
        let mut host = guest.connect();
        host.send(Kind::Token, wrong.as_bytes());
        host.send_json(Kind::Request, &Request::Ping);
        assert_eq!(host.reply().unwrap_err().kind, FailureKind::PermissionDenied, "{wrong:?}");
    }
    let mut host = guest.connect();
    host.send(Kind::Token, TOKEN.as_bytes());
    host.send_json(Kind::Request, &Request::Ping);
    assert!(matches!(host.reply(), Ok(Reply::Pong { .. })));
}

#[test]
fn a_second_program_carries_a_connection_through_its_streams() {
    let guest = with_token();
    let mut carrier = Program::new(env!("CARGO_BIN_EXE_cove-guest"))
        .args(["--through", &guest.path("guest.sock")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = carrier.stdin.take().unwrap();
    frame::write(&mut to, Kind::Token, TOKEN.as_bytes()).unwrap();
    frame::write_json(&mut to, Kind::Request, &Request::Ping).unwrap();
    to.flush().unwrap();
    let mut from = carrier.stdout.take().unwrap();
    let answer = frame::read(&mut from).unwrap().unwrap();
    assert!(matches!(answer.parse(), Ok(Reply::Pong { .. })), "{answer:?}");
    // The guest has closed: so does the one in between, though nobody closed its input.
    assert!(frame::read(&mut from).unwrap().is_none());
    let begun = std::time::Instant::now();
    while carrier.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it goes on");
        std::thread::yield_now();
    }
    drop(to);
}

#[test]
fn without_a_guest_it_says_so() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("none");
    let said = Program::new(env!("CARGO_BIN_EXE_cove-guest")).arg("--through").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && text.starts_with("cove-guest: connect to "), "{text}");
}
