//! Crowds that would lock the owner out: idle connections, strangers at a preview, streams of one tenant, half messages. The
//! server may open few files, and its owner is answered all the same.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use cove_testkit::http::{self, Answer};
use cove_testkit::program::cove_path;
use cove_testkit::server::KEY;
use cove_testkit::wait::{LIMIT, until};
use serde_json::json;

use crate::streams::{Stream, UPGRADE, WEBSOCKET, sandbox};

/// An owner is answered by then.
const SOON: Duration = Duration::from_secs(20);

/// A server that may open 512 files.
fn small() -> TestServer {
    let words = ["sh", "-c", "ulimit -n 512; exec \"$@\"", "sh"];
    TestServer::start_by(words.map(Into::into).into(), |_| cove_path())
}

#[track_caller]
fn owner_is_answered(server: &TestServer, secret: &str) -> Answer {
    let begun = Instant::now();
    let bearer = format!("Bearer {secret}");
    let headers = [("authorization", bearer.as_str())];
    let answer = http::request(server.address(), "GET", "/api/sandboxes", &headers, None).expect("an answer");
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    answer.expect_status(200)
}

fn tenant(server: &TestServer) -> String {
    server.request("POST", "/api/organisations", Some(&json!({"id": "tenant", "name": "t"}))).expect_status(201);
    let key = json!({"name": "k", "organisation": "tenant", "scope": "write"});
    let key = server.request("POST", "/api/keys", Some(&key)).expect_status(201).json();
    key["secret"].as_str().unwrap().to_owned()
}

/// Opens as many as it gets; the rest must get a `Retry-After`.
fn as_many_as_allowed(address: &str, wanted: usize, head: &str) -> Vec<Stream> {
    let mut open = Vec::new();
    for number in 0..wanted {
        let stream = Stream::send(address, &format!("number {number}"), head, b"");
        let heard = stream.header();
        if heard.starts_with("HTTP/1.1 503") {
            assert!(heard.to_lowercase().contains("retry-after: "), "{heard}");
        } else {
            assert!(heard.starts_with("HTTP/1.1 101") || heard.starts_with("HTTP/1.1 200"), "{heard}");
            open.push(stream);
        }
    }
    assert!(!open.is_empty() && open.len() < wanted, "{} of {wanted} are open", open.len());
    open
}

#[test]
fn connections_that_ask_for_nothing_give_way() {
    let server = small();
    let idle: Vec<TcpStream> = (0..600).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    owner_is_answered(&server, KEY);
    drop(idle);
    // Half a header is no more than nothing.
    let halves: Vec<TcpStream> = (0..600)
        .map(|_| {
            let mut half = TcpStream::connect(server.address()).unwrap();
            // One that had to give way already does not mind.
            let _sent = half.write_all(b"GET /api/sandboxes HTTP/1.1\r\nHost: x\r\n");
            half
        })
        .collect();
    owner_is_answered(&server, KEY);
    drop(halves);
}

#[test]
fn strangers_at_a_preview_do_not_lock_the_owner_out() {
    let server = small();
    let id = sandbox(&server, json!({"public": true}));
    let head = format!("GET / HTTP/1.1\nHost: 8000-{id}.localhost\n{UPGRADE}");
    let strangers = as_many_as_allowed(server.address(), 200, &head);
    owner_is_answered(&server, KEY);
    let line = json!({"shell": "echo here"});
    let said = server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&line)).expect_status(200).json();
    assert_eq!(said["stdout"], "here\n");
    // The owner's own way to the same port is there too.
    let own = format!("GET /api/sandboxes/{id}/ports/8000/proxy/ HTTP/1.1\nAuthorization: Bearer {KEY}\n{UPGRADE}");
    Stream::open(server.address(), "the owner's", &own, b"", "101");
    drop(strangers);
    until("room for strangers again", LIMIT, || {
        Stream::send(server.address(), "a stranger", &head, b"").header().starts_with("HTTP/1.1 101")
    });
}

#[test]
fn one_tenants_streams_leave_room_for_others_and_for_its_own_short_requests() {
    let server = small();
    let tenant = tenant(&server);
    let head = format!("GET /api/events/follow HTTP/1.1\nAuthorization: Bearer {tenant}");
    let streams = as_many_as_allowed(server.address(), 300, &head);
    owner_is_answered(&server, KEY);
    owner_is_answered(&server, &tenant);
    let others = format!("GET /api/events/follow HTTP/1.1\nAuthorization: Bearer {KEY}");
    Stream::open(server.address(), "another tenant's", &others, b"", "200");
    drop(streams);
}

fn resident_kib(server: &TestServer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The head of a binary frame of this length, masked with zeros.
fn frame_head(length: u64) -> Vec<u8> {
    let mut head = vec![0x82, 0xff];
    head.extend_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    head
}

#[test]
fn messages_that_never_become_whole_hold_little() {
    let server = TestServer::start_in(&[], &[("COVE_CONNECTIONS_UNFINISHED_BYTES", "4194304")]);
    let tenant = tenant(&server);
    let bearer = format!("Bearer {tenant}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let made = http::request(server.address(), "POST", "/api/sandboxes", &headers, Some(b"{}")).unwrap();
    let id = made.expect_status(201).json()["id"].as_str().unwrap().to_owned();
    let head = format!("GET /api/sandboxes/{id}/exec/stream HTTP/1.1\nAuthorization: Bearer {tenant}\n{WEBSOCKET}");
    let before = resident_kib(&server);

    // The server does not wait for a message that announces too much.
    let large = Stream::open(server.address(), "a large message", &head, b"", "101");
    (&large.socket).write_all(&frame_head(60 << 20)).unwrap();
    // It may be gone while this is written.
    let _sent = (&large.socket).write_all(&vec![0; 2 << 20]);
    large.ends_by(Instant::now() + SOON);

    // Many that are allowed each are not allowed together.
    let most = 900 << 10;
    let halves: Vec<Stream> = (0..20)
        .map(|number| {
            let half = Stream::open(server.address(), &format!("half {number}"), &head, b"", "101");
            let mut bytes = frame_head(most + 1);
            bytes.resize(bytes.len() + most as usize, 0);
            let _sent = (&half.socket).write_all(&bytes);
            half
        })
        .collect();
    until("what is too much to be ended", LIMIT, || halves.iter().filter(|half| half.is_open()).count() <= 5);
    let grown = resident_kib(&server).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
    owner_is_answered(&server, &tenant);
    drop(halves);
    http::request(server.address(), "DELETE", &format!("/api/sandboxes/{id}"), &headers, None)
        .unwrap()
        .expect_status(204);
}

#[test]
fn archives_that_never_become_whole_hold_little() {
    let server = TestServer::start();
    let tenant = tenant(&server);
    let before = resident_kib(&server);
    let halves: Vec<TcpStream> = (0..20)
        .map(|number| {
            let mut socket = TcpStream::connect(server.address()).unwrap();
            let head = format!(
                "POST /api/build-files/{number:064x} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {tenant}\r\n\
                 Content-Length: 9000000\r\n\r\n"
            );
            socket.write_all(head.as_bytes()).unwrap();
            socket.write_all(&vec![7; 4 << 20]).unwrap();
            socket
        })
        .collect();
    let folder = server.data().join("archive/build-files/tenant");
    let written = || -> u64 {
        let files = fs::read_dir(&folder).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    };
    until("what came to be on the disk and not in memory", LIMIT, || written() >= 20 * (3 << 20));
    let grown = resident_kib(&server).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
    drop(halves);
    until("what was never whole to be gone", LIMIT, || written() == 0);
    owner_is_answered(&server, &tenant);
}
