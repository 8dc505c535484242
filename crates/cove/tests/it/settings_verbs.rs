//! Verbs that change one setting of a sandbox: done, shown, refused for what is not there or makes no sense.

use cove_testkit::TestServer;
use cove_testkit::wait::{LIMIT, until};
use serde_json::{Value, json};

fn box_on(server: &TestServer) {
    server.cove(["create", "--name", "box"]).finish().expect_success();
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn told(server: &TestServer, arguments: &[&str]) -> Value {
    read(&server.cove(arguments.iter().copied()).finish().expect_success().stdout)
}

/// Each verb names a sandbox that is not there, and says where to look.
#[test]
fn a_sandbox_that_is_not_there_is_named() {
    let server = TestServer::start();
    let verbs: [&[&str]; 14] = [
        &["label", "bix", "a=b"],
        &["label", "bix"],
        &["rename", "bix", "box"],
        &["resize", "bix", "--memory", "1G"],
        &["network", "bix"],
        &["network", "bix", "full"],
        &["timers", "bix"],
        &["timers", "bix", "--idle", "never"],
        &["extend", "bix", "1h"],
        &["ports", "bix"],
        &["link", "bix", "8000"],
        &["archive", "bix"],
        &["recover", "bix"],
        &["usage", "bix"],
    ];
    for verb in verbs {
        let refused = server.cove(verb.iter().copied()).finish().expect_code(1);
        assert!(refused.stderr.contains("bix") && refused.stderr.contains("hint: "), "{verb:?}: {}", refused.stderr);
        assert_eq!(refused.stdout, "", "{verb:?}");
    }
}

#[test]
fn labels_are_set_removed_and_shown() {
    let server = TestServer::start();
    box_on(&server);
    let said = server.cove(["label", "box", "project=demo", "owner=ann"]).finish().expect_success();
    assert_eq!(said.stdout, "owner=ann\nproject=demo\n");
    server.cove(["label", "box", "owner-", "stage=x"]).finish().expect_success();
    assert_eq!(told(&server, &["label", "--json", "box"]), json!({"project": "demo", "stage": "x"}));
    let refused = server.cove(["label", "box", "nonsense"]).finish().expect_code(2);
    assert!(refused.stderr.contains("hint: write NAME=VALUE to set one"), "{}", refused.stderr);
}

#[test]
fn a_sandbox_gets_another_name_or_none() {
    let server = TestServer::start();
    box_on(&server);
    assert_eq!(server.cove(["rename", "box", "lab"]).finish().expect_success().stdout, "lab\n");
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let taken = server.cove(["rename", "lab", "box"]).finish().expect_code(1);
    assert!(taken.stderr.contains("box"), "{}", taken.stderr);
    let id = server.cove(["rename", "lab", "--none"]).finish().expect_success().stdout;
    assert_eq!(told(&server, &["rename", "--json", id.trim(), "again"])["name"], "again");
    server.cove(["rename", "again"]).finish().expect_code(2);
}

#[test]
fn limits_are_changed_while_it_runs() {
    let server = TestServer::start();
    box_on(&server);
    let said = server.cove(["resize", "box", "--memory", "256M", "--cpus", "0.5"]).finish().expect_success();
    assert!(said.stdout.starts_with("box: 0.5 cpus, 256 MiB memory"), "{}", said.stdout);
    let limits = &told(&server, &["resize", "--json", "box", "--pids", "99"])["limits"];
    assert_eq!((&limits["pids"], &limits["memory"]), (&json!(99), &json!(256 << 20)));
    let nothing = server.cove(["resize", "box"]).finish().expect_code(2);
    assert!(nothing.stderr.contains("no limit is named"), "{}", nothing.stderr);
    server.cove(["resize", "box", "--memory", "lots"]).finish().expect_code(2);
}

#[test]
fn nobody_is_reached_unless_somebody_asks() {
    let server = TestServer::start();
    box_on(&server);
    assert_eq!(told(&server, &["inspect", "box"])["network"]["access"], "closed");
    let devices = server.cove(["exec", "box", "--", "sh", "-c", "ip -o addr || cat /proc/net/dev"]).finish();
    assert!(!devices.stdout.contains("10.200.0.2"), "{}", devices.stdout);
    server.cove(["create", "--name", "open", "--network", "full"]).finish().expect_success();
    assert_eq!(told(&server, &["network", "--json", "open"])["access"], "open");
    let closed = told(&server, &["network", "--json", "open", "none", "--allow", "203.0.113.7:443"]);
    assert_eq!((&closed["access"], &closed["allow"]), (&json!("closed"), &json!(["203.0.113.7:443"])));
    let shown = server.cove(["network", "open"]).finish().expect_success().stdout;
    assert!(shown.contains("203.0.113.7:443") && shown.contains("nobody"), "{shown}");
    // One that was born without can have one after a start.
    let refused = server.cove(["network", "box", "full"]).finish().expect_code(1);
    assert!(refused.stderr.contains("stop it, give it one, and start it again"), "{}", refused.stderr);
    assert_eq!(refused.stderr.matches("sandbox").count(), 1, "named once: {}", refused.stderr);
    server.cove(["stop", "box"]).finish().expect_success();
    server.cove(["network", "box", "full"]).finish().expect_success();
    server.cove(["start", "box"]).finish().expect_success();
    assert_eq!(told(&server, &["network", "--json", "box"])["access"], "open");
    server.cove(["network", "box", "--allow", "1.2.3.4"]).finish().expect_code(2);
    server.cove(["network", "box", "none", "--allow", "10.0.0.0/99"]).finish().expect_code(2);
}

#[test]
fn timers_are_shown_changed_and_switched_off() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box", "--idle", "never"]).finish().expect_success();
    assert_eq!(told(&server, &["timers", "--json", "box"])["idle_seconds"], Value::Null);
    let listed = server.cove(["ls"]).finish().expect_success().stdout;
    assert!(listed.contains("never"), "{listed}");
    let changed = told(&server, &["timers", "--json", "box", "--idle", "10m", "--at-idle", "pause", "--timeout", "2h"]);
    assert_eq!((&changed["idle_seconds"], &changed["at_idle"]), (&json!(600), &json!("pause")));
    let listed = server.cove(["ls"]).finish().expect_success().stdout;
    assert!(listed.contains("pause in 9m") || listed.contains("pause in 10m"), "{listed}");
    assert!(listed.contains("(if idle)"), "{listed}");
    let shown = server.cove(["timers", "box"]).finish().expect_success().stdout;
    assert!(shown.contains("after 10m") && shown.contains("pause"), "{shown}");
    server.cove(["extend", "box", "never"]).finish().expect_success();
    assert_eq!(told(&server, &["timers", "--json", "box"])["deadline"], Value::Null);
    server.cove(["timers", "box", "--idle", "soon"]).finish().expect_code(2);
    server.cove(["timers", "box", "--at-idle", "explode"]).finish().expect_code(2);
}

/// What `explain` advises is a command that exists, and works.
#[test]
fn a_sandbox_that_was_put_away_says_how_to_get_it_back() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box", "--idle", "1s"]).finish().expect_success();
    until("it is put away", LIMIT, || told(&server, &["inspect", "box"])["state"] == "stopped");
    let listed = server.cove(["ls"]).finish().expect_success().stdout;
    assert!(listed.contains("stopped (idle)"), "{listed}");
    let said = server.cove(["explain", "box"]).finish().expect_success().stdout;
    assert!(said.contains("`cove start box`") && said.contains("`cove timers box --idle TIME`"), "{said}");
    server.cove(["timers", "box", "--idle", "never"]).finish().expect_success();
    server.cove(["start", "box"]).finish().expect_success();
}

/// Whoever starts it again is told that it ends again, and what to do first.
#[test]
fn a_sandbox_whose_lifetime_is_over_says_what_to_do_first() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box", "--timeout", "1s", "--at-timeout", "stop"]).finish().expect_success();
    let is_stopped = || told(&server, &["inspect", "box"])["state"] == "stopped";
    until("it is put away", LIMIT, is_stopped);
    let said = server.cove(["explain", "box"]).finish().expect_success();
    let said = format!("{}{}", said.stdout, said.stderr);
    let (first, then) = (said.find("first `cove extend box TIME`"), said.find("`cove start box`"));
    assert!(first.is_some() && first < then, "{said}");
    let started = server.cove(["start", "box"]).finish().expect_success();
    assert!(started.stderr.contains("stopped again") && started.stderr.contains("cove extend box"), "{started:?}");
    until("it is put away again", LIMIT, is_stopped);
    server.cove(["extend", "box", "1h"]).finish().expect_success();
    let started = server.cove(["start", "box"]).finish().expect_success();
    assert_eq!((started.stdout.as_str(), started.stderr.as_str()), ("box running\n", ""));
}

/// One request as it is written, and the whole answer.
fn spoken(address: &str, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_link_opens_a_port_and_ports_are_listed() {
    let server = TestServer::start();
    box_on(&server);
    let serve = "mkdir www; cd www; echo hello > index.html; exec python3 -m http.server 8000";
    let early = server.cove(["link", "box", "8000"]).finish().expect_success();
    assert!(early.stderr.contains("hint: nothing listens on port 8000 inside yet"), "{}", early.stderr);
    let pid = server.cove(["exec", "-d", "box", "--", "sh", "-c", serve]).finish().expect_success().stdout;
    until("it listens", LIMIT, || server.cove(["ports", "box"]).finish().expect_success().stdout.contains("8000"));
    let link = server.cove(["link", "box", "8000", "--expires", "10m"]).finish().expect_success();
    assert!(link.stderr.contains("port 8000") && !link.stderr.contains("nothing listens"), "{}", link.stderr);
    let (name, path) = link.stdout.trim().trim_start_matches("http://").split_once('/').expect("a link");
    assert!(name.starts_with("8000-") && name.contains(".localhost:"), "{name}");
    // A program needs no cookie; `localhost` leads to this machine whatever stands before it.
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    let answer = spoken(server.address(), &request);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("hello"), "{answer}");
    let port = told(&server, &["ports", "--json", "box"])[0].clone();
    assert_eq!((&port["port"], &port["process"]), (&json!(8000), &json!("python3")));
    assert_eq!(port["pid"].to_string(), pid.trim(), "the process of another user than the guest's");
    let open = server.cove(["link", "box", "8000", "--public"]).finish().expect_success();
    assert!(!open.stdout.contains("cove_token") && open.stderr.contains("--private"), "{open:?}");
    let (name, path) = open.stdout.trim().trim_start_matches("http://").split_once('/').expect("a link");
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    assert!(spoken(server.address(), &request).contains("hello"), "without a token");
    server.cove(["link", "box", "8000", "--private"]).finish().expect_success();
    assert!(spoken(server.address(), &request).starts_with("HTTP/1.1 40"), "and closed again");
    server.cove(["link", "box", "0"]).finish().expect_code(2);
    server.cove(["stop", "box"]).finish().expect_success();
    let away = server.cove(["link", "box", "8000"]).finish().expect_success();
    assert!(away.stderr.contains("hint: box is stopped"), "{}", away.stderr);
    server.cove(["link", "box", "http"]).finish().expect_code(2);
}

#[test]
fn a_stopped_sandbox_is_archived_and_comes_back() {
    let server = TestServer::start();
    box_on(&server);
    let early = server.cove(["archive", "box"]).finish().expect_code(1);
    assert!(early.stderr.contains("box") || early.stderr.contains("running"), "{}", early.stderr);
    server.cove(["exec", "box", "--", "sh", "-c", "echo kept > note"]).finish().expect_success();
    server.cove(["stop", "box"]).finish().expect_success();
    server.cove(["archive", "box"]).finish().expect_success();
    until("it is archived", LIMIT, || told(&server, &["inspect", "box"])["state"] == "archived");
    server.cove(["start", "box"]).finish().expect_success();
    let seen = server.cove(["exec", "box", "--", "cat", "note"]).finish().expect_success();
    assert_eq!(seen.stdout, "kept\n");
}
