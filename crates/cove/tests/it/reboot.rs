//! Sandboxes that end behind the server's back: with the host, while the server is down, and while it looks on.

use cove_testkit::TestServer;
use cove_testkit::guests::{guests, spawners};
use cove_testkit::reboot::{kill, reboot};
use cove_testkit::wait::{LIMIT, until, until_some};
use serde_json::{Value, json};

fn make(server: &TestServer, name: &str) -> String {
    let made = server.request("POST", "/api/sandboxes", Some(&json!({"name": name}))).expect_status(201).json();
    let id = made["id"].as_str().unwrap().to_owned();
    let line = format!("echo {name} > note");
    server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&json!({"shell": line}))).expect_status(200);
    id
}

fn ask(server: &TestServer, id: &str, verb: &str) -> Value {
    server.request("POST", &format!("/api/sandboxes/{id}/{verb}"), None).expect_status(200).json()
}

fn look(server: &TestServer, id: &str) -> Value {
    server.request("GET", &format!("/api/sandboxes/{id}"), None).expect_status(200).json()
}

/// Started again, it has its files, and runs once.
fn comes_back(server: &TestServer, id: &str, name: &str) {
    assert_eq!(ask(server, id, "start")["state"], "running");
    let seen = server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&json!({"shell": "cat note"})));
    assert_eq!(seen.expect_status(200).json()["stdout"], format!("{name}\n"));
    assert_eq!(guests(&server.data())[id].len(), 1);
}

#[test]
fn after_a_restart_of_the_host_states_are_true_and_files_are_there() {
    let mut server = TestServer::start();
    let ids: Vec<(&str, String)> =
        ["runs", "sleeps", "rests", "lies"].into_iter().map(|name| (name, make(&server, name))).collect();
    ask(&server, &ids[1].1, "pause");
    ask(&server, &ids[2].1, "stop");
    ask(&server, &ids[3].1, "stop");
    ask(&server, &ids[3].1, "archive");
    server.kill();
    reboot(&server.data());
    server.restart();
    for ((name, id), (state, cause)) in ids.iter().zip([
        ("stopped", "host_restart"),
        ("stopped", "host_restart"),
        ("stopped", "requested"),
        ("archived", "requested"),
    ]) {
        let found = look(&server, id);
        assert_eq!((&found["state"], &found["cause"]["code"]), (&json!(state), &json!(cause)), "{name}: {found}");
    }
    let why = server.request("GET", &format!("/api/sandboxes/{}/explain", ids[0].1), None).expect_status(200).json();
    assert!(why["cause"]["message"].as_str().unwrap().starts_with("host restart"), "{why}");
    assert!(why["remedy"].to_string().contains("cove start"), "{why}");
    // A second restart changes nothing in the report.
    server.restart();
    assert_eq!(look(&server, &ids[0].1)["cause"], why["cause"]);
    for (name, id) in &ids {
        comes_back(&server, id, name);
    }
    let new = make(&server, "new");
    assert_eq!(look(&server, &new)["state"], "running");
}

#[test]
fn a_power_failure_that_takes_a_record_takes_no_files() {
    let mut server = TestServer::start();
    let (id, other) = (make(&server, "hit"), make(&server, "spared"));
    server.kill();
    reboot(&server.data());
    for record in ["spec.json", "running.json"] {
        std::fs::write(server.data().join("sandboxes").join(&id).join(record), "").unwrap();
    }
    server.restart();
    let found = look(&server, &id);
    assert_eq!((&found["state"], &found["cause"]["code"]), (&json!("stopped"), &json!("vanished")), "{found}");
    assert_eq!(look(&server, &other)["cause"]["code"], "host_restart");
    comes_back(&server, &id, "hit");
    comes_back(&server, &other, "spared");
}

#[test]
fn what_is_killed_while_the_server_is_down_or_looks_on_is_told_apart() {
    let mut server = TestServer::start();
    let (down, watched) = (make(&server, "down"), make(&server, "watched"));
    let pid = |server: &TestServer, id: &str| guests(&server.data())[id][0];

    kill(pid(&server, &watched));
    until("the end to be told", LIMIT, || look(&server, &watched)["state"] == "stopped");
    assert_eq!(look(&server, &watched)["cause"]["code"], "killed");
    comes_back(&server, &watched, "watched");

    let victim = pid(&server, &down);
    server.kill();
    kill(victim);
    until("the sandbox to end", LIMIT, || !guests(&server.data()).contains_key(&down));
    server.restart();
    let found = look(&server, &down);
    assert_eq!((&found["state"], &found["cause"]["code"]), (&json!("stopped"), &json!("vanished")), "{found}");
    assert_eq!(look(&server, &watched)["state"], "running");
    comes_back(&server, &down, "down");

    // Taken over from an earlier server, its end is still noticed.
    kill(pid(&server, &watched));
    until("the end to be told", LIMIT, || look(&server, &watched)["state"] == "stopped");
    comes_back(&server, &watched, "watched");
}

#[test]
fn spawners_that_are_killed_are_replaced() {
    let server = TestServer::start();
    let all = spawners(server.pid());
    assert!(!all.is_empty());
    for pid in all {
        kill(pid);
    }
    // The request that met a dead one may fail; the server does not stay without.
    let id = until_some("a sandbox", LIMIT, || {
        let made = server.request("POST", "/api/sandboxes", Some(&json!({})));
        (made.status == 201).then(|| made.json()["id"].as_str().unwrap().to_owned())
    });
    assert_eq!(look(&server, &id)["state"], "running");
}
