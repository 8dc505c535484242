use std::io::Write;

use cove_protocol::frame::{self, Frame};
use cove_protocol::{FailureKind, Kind, Reply, Request};
use proptest::prelude::*;

use crate::client::{Guest, wait_until};

fn still_serves(guest: &Guest) {
    assert!(matches!(guest.call(&Request::Ping), Ok(Reply::Pong { .. })));
}

fn refused(guest: &Guest, wire: &[u8]) -> FailureKind {
    let mut host = guest.connect();
    host.socket.write_all(wire).unwrap();
    host.reply().unwrap_err().kind
}

#[test]
fn frames_that_are_none_are_refused_and_the_guest_lives_on() {
    let guest = Guest::start();
    assert_eq!(refused(&guest, &[0x77, 0, 0, 0, 0]), FailureKind::InvalidArgument);
    assert_eq!(refused(&guest, &[0x01, 0xff, 0xff, 0xff, 0xff]), FailureKind::InvalidArgument);
    assert_eq!(refused(&guest, &[0x14, 0, 0, 0, 1, b'x']), FailureKind::InvalidArgument);
    assert_eq!(refused(&guest, b"\x01\0\0\0\x02{]"), FailureKind::InvalidArgument);
    assert_eq!(refused(&guest, b"\x01\0\0\0\x11{\"op\":\"teleport\"}"), FailureKind::Unsupported);
    let deep = "[".repeat(100_000);
    assert_eq!(refused(&guest, &[&[1, 0, 1, 0x86, 0xa0], deep.as_bytes()].concat()), FailureKind::InvalidArgument);
    still_serves(&guest);
}

#[test]
fn connections_that_say_nothing_or_half_a_word_cost_little() {
    let guest = Guest::start();
    let mut open: Vec<_> = (0..500).map(|_| guest.connect()).collect();
    for host in open.iter_mut().skip(250) {
        // A mebibyte announced, one byte sent.
        host.socket.write_all(&[0x01, 0, 0x10, 0, 0, b'{']).unwrap();
    }
    still_serves(&guest);
    let resident = guest.status("VmRSS");
    assert!(resident < 40_000, "{resident} KiB");
    drop(open);
    wait_until("the threads are gone", || guest.status("Threads") == 1);
}

#[test]
fn more_connections_than_there_is_room_for_are_told_so_and_a_ping_still_works() {
    let guest = Guest::start();
    let open: Vec<_> = (0..1024).map(|_| guest.connect()).collect();
    wait_until("all have a thread", || guest.status("Threads") == 1025);
    still_serves(&guest);
    let failure = guest.call(&Request::Usage).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Exhausted);
    drop(open);
    wait_until("the threads are gone", || guest.status("Threads") == 1);
    still_serves(&guest);
}

#[test]
fn a_host_that_closes_at_any_point_leaves_no_thread() {
    let guest = Guest::start();
    let wire = Frame::json(Kind::Request, &Request::Wait { process: cove_protocol::process::Selector::Pid(1) }).payload;
    for cut in 0..wire.len() {
        let mut host = guest.connect();
        let mut frame = Vec::new();
        frame::encode(&mut frame, Kind::Request, &wire).unwrap();
        host.socket.write_all(&frame[..cut]).unwrap();
    }
    wait_until("the threads are gone", || guest.status("Threads") == 1);
    still_serves(&guest);
}

/// Requests with the right words and the wrong values.
fn a_request() -> impl Strategy<Value = String> {
    let operations = vec![
        "ping",
        "attach",
        "processes",
        "signal",
        "input",
        "close_stdin",
        "resize",
        "wait",
        "forget",
        "stat",
        "list",
        "read",
        "find",
        "grep",
        "watch",
        "tar_out",
        "dial",
        "ports",
        "usage",
        "nonsense",
    ];
    let value = prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| serde_json::json!(number).to_string()),
        "\\PC{0,20}".prop_map(|text| serde_json::json!(text).to_string()),
        Just(r#"{"pid":4294967295}"#.to_owned()),
        Just(r#"{"tag":""}"#.to_owned()),
        Just(r#"{"rows":65535,"columns":0}"#.to_owned()),
        Just("[[[]]]".to_owned()),
        Just("\"/proc/self/mem\"".to_owned()),
        Just("\"\\u0000\"".to_owned()),
    ];
    let fields = vec![
        "process",
        "path",
        "user",
        "depth",
        "pattern",
        "offset",
        "length",
        "port",
        "signal",
        "size",
        "recursive",
        "limit",
        "from",
        "follow",
    ];
    let field = (proptest::sample::select(fields), value);
    (proptest::sample::select(operations), proptest::collection::vec(field, 0..5)).prop_map(|(operation, fields)| {
        let mut text = format!("{{\"op\":\"{operation}\"");
        for (name, value) in fields {
            text.push_str(&format!(",\"{name}\":{value}"));
        }
        text + "}"
    })
}

#[test]
fn no_request_however_odd_ends_the_guest() {
    let guest = Guest::start();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 400, ..ProptestConfig::default() });
    runner
        .run(&a_request(), |request| {
            let mut host = guest.connect();
            host.send(Kind::Request, request.as_bytes());
            host.socket.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = frame::read(&mut host.socket);
            Ok(())
        })
        .unwrap();
    still_serves(&guest);
}
