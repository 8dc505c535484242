//! Over capacity: a clear refusal with the time to come again, never a hang, and nothing left behind.

use std::time::Duration;

use axum::http::StatusCode;
use cove_control::config::{Capacity, Config};
use serde_json::{Value, json};

use crate::api::{Answer, ask};
use crate::harness::{TestApp, eventually};

async fn with(capacity: Capacity) -> TestApp {
    TestApp::with(Config { capacity, ..Config::default() }).await
}

fn refused_for_now(answer: &Answer, message: &str) {
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.json());
    assert_eq!(answer.json()["code"], "no_capacity");
    assert_eq!(answer.json()["message"], message);
    assert_eq!(answer.headers["retry-after"], "5");
}

#[tokio::test]
async fn a_full_server_says_so_and_a_stop_makes_room() {
    let t = with(Capacity { sandboxes: 1, ..Capacity::default() }).await;
    assert_eq!(ask(&t, "POST", "/api/sandboxes", json!({"name": "one"})).await.status, StatusCode::CREATED);
    let full = "this server runs its maximum of 1 sandboxes; try again later";
    refused_for_now(&ask(&t, "POST", "/api/sandboxes", json!({"name": "two"})).await, full);
    // A refusal leaves nothing: no row, no name, no place in the organisation's account.
    assert_eq!(ask(&t, "GET", "/api/sandboxes/two", Value::Null).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&t, "GET", "/api/organisations/default", Value::Null).await.json()["sandboxes"], 1);
    assert_eq!(t.fake.ids().len(), 1);
    ask(&t, "POST", "/api/sandboxes/one/stop", Value::Null).await;
    assert_eq!(ask(&t, "POST", "/api/sandboxes", json!({"name": "two"})).await.status, StatusCode::CREATED);
    refused_for_now(&ask(&t, "POST", "/api/sandboxes/one/start", Value::Null).await, full);
    let one = ask(&t, "GET", "/api/sandboxes/one", Value::Null).await.json();
    assert_eq!(one["state"], "stopped", "a start that was refused changed nothing");
    ask(&t, "DELETE", "/api/sandboxes/two", Value::Null).await;
    assert_eq!(ask(&t, "POST", "/api/sandboxes/one/start", Value::Null).await.status, StatusCode::OK);
}

#[tokio::test]
async fn memory_is_admitted_by_limits_and_a_resize_counts() {
    let t = with(Capacity { memory: 1 << 30, ..Capacity::default() }).await;
    let sized = |name: &str, memory: u64| json!({"name": name, "limits": {"memory": memory}});
    assert_eq!(ask(&t, "POST", "/api/sandboxes", sized("a", 512 << 20)).await.status, StatusCode::CREATED);
    refused_for_now(
        &ask(&t, "POST", "/api/sandboxes", sized("b", 768 << 20)).await,
        "this server's sandboxes have 512 MiB of 1024 MiB of memory, 768 MiB more do not fit; try again later",
    );
    assert_eq!(ask(&t, "POST", "/api/sandboxes", sized("b", 256 << 20)).await.status, StatusCode::CREATED);
    let grown = ask(&t, "PATCH", "/api/sandboxes/a/limits", json!({"memory": 1 << 30})).await;
    assert_eq!(grown.status, StatusCode::SERVICE_UNAVAILABLE);
    ask(&t, "DELETE", "/api/sandboxes/b", Value::Null).await;
    assert_eq!(ask(&t, "PATCH", "/api/sandboxes/a/limits", json!({"memory": 1 << 30})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn disks_of_an_organisation_have_a_maximum_together() {
    const GIB: u64 = 1 << 30;
    let t = TestApp::new().await;
    let quota = json!({"disk_bytes": 7 * GIB});
    assert_eq!(ask(&t, "PUT", "/api/organisations/default/quota", quota).await.status, StatusCode::OK);
    let sized = |name: &str, gib: u64| json!({"name": name, "limits": {"disk": gib * GIB}});
    let make = async |name: &str, gib: u64| ask(&t, "POST", "/api/sandboxes", sized(name, gib)).await;
    assert_eq!(make("a", 3).await.status, StatusCode::CREATED);
    assert_eq!(make("b", 3).await.status, StatusCode::CREATED);
    let refused = make("c", 3).await;
    assert_eq!((refused.status, &refused.json()["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("quota_exceeded")));
    assert!(refused.text().contains("hold up to 6.0 GiB, 3.0 GiB more are wanted, and 7.0 GiB"), "{}", refused.text());
    let used = async || ask(&t, "GET", "/api/organisations/default", Value::Null).await.json()["disk_bytes"].clone();
    assert_eq!(used().await, 6 * GIB, "what was refused counts for nothing");
    // Larger disks count, and copies do.
    let grown = async |gib: u64| ask(&t, "PATCH", "/api/sandboxes/a/limits", json!({"disk": gib * GIB})).await.status;
    assert_eq!(grown(5).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(grown(4).await, StatusCode::OK);
    let forked = ask(&t, "POST", "/api/sandboxes/b/fork", json!({})).await;
    assert_eq!(forked.status, StatusCode::TOO_MANY_REQUESTS, "{}", forked.text());
    // A stop keeps the disk; the archive has none.
    ask(&t, "POST", "/api/sandboxes/a/stop", Value::Null).await;
    assert_eq!(used().await, 7 * GIB);
    let archived = ask(&t, "POST", "/api/sandboxes/a/archive", Value::Null).await;
    assert_eq!((archived.status, used().await), (StatusCode::OK, json!(3 * GIB)), "{}", archived.text());
    assert_eq!(make("c", 4).await.status, StatusCode::CREATED);
    let back = ask(&t, "POST", "/api/sandboxes/a/start", Value::Null).await;
    assert_eq!(back.status, StatusCode::TOO_MANY_REQUESTS, "{}", back.text());
    assert_eq!(ask(&t, "GET", "/api/sandboxes/a", Value::Null).await.json()["state"], "archived");
    ask(&t, "DELETE", "/api/sandboxes/c", Value::Null).await;
    assert_eq!(ask(&t, "POST", "/api/sandboxes/a/start", Value::Null).await.status, StatusCode::OK);
    // The rows say the same as the count in memory.
    let rows = t.app.store().count_by_organisation().await.unwrap();
    assert_eq!(rows.iter().map(|group| group.disk).sum::<u64>(), 7 * GIB, "{rows:?}");
}

#[tokio::test]
async fn a_machine_without_free_memory_takes_nothing_on() {
    let t = with(Capacity { free_memory: 100 << 20, ..Capacity::default() }).await;
    t.fake.set_free_memory(Some(64 << 20));
    refused_for_now(
        &ask(&t, "POST", "/api/sandboxes", json!({})).await,
        "this server's machine has 64 MiB of memory free and keeps 100 MiB; try again later",
    );
    t.fake.set_free_memory(Some(200 << 20));
    assert_eq!(ask(&t, "POST", "/api/sandboxes", json!({})).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn launches_take_turns_and_a_full_queue_is_told_at_once() {
    let t = with(Capacity { launches: 1, waiting: 1, patience_seconds: 30, ..Capacity::default() }).await;
    let gate = t.fake.hold_launches();
    let make = |name: &'static str| {
        let app = t.app.clone();
        let caller = t.caller.clone();
        let new = cove_control::sandbox::NewSandbox { name: Some(name.into()), ..Default::default() };
        tokio::spawn(async move { app.create_sandbox(&caller, new).await })
    };
    let first = make("first");
    eventually("the first launches", || async { t.fake.launching() == 1 }).await;
    let second = make("second");
    eventually("the second waits", || async { metric(&t, "cove_launches_waiting").await == "1" }).await;
    // Sooner than the patience of those who wait.
    let third = tokio::time::timeout(Duration::from_secs(20), ask(&t, "POST", "/api/sandboxes", json!({}))).await;
    refused_for_now(&third.expect("never a hang"), "1 launches wait already; try again later");
    drop(gate);
    assert!(first.await.unwrap().is_ok());
    assert!(second.await.unwrap().is_ok());
    assert_eq!(metric(&t, "cove_launches_waiting").await, "0");
    assert_eq!(metric(&t, "cove_capacity_sandboxes").await, "2");
}

async fn metric(t: &TestApp, name: &str) -> String {
    let answer = ask(t, "GET", "/metrics", Value::Null).await;
    let text = String::from_utf8(answer.bytes).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

#[tokio::test]
async fn a_quota_says_when_to_come_again() {
    let t = TestApp::new().await;
    ask(&t, "PUT", "/api/organisations/default/quota", json!({"running_sandboxes": 0})).await;
    let refused = ask(&t, "POST", "/api/sandboxes", json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.json()["code"], "quota_exceeded");
    assert_eq!(refused.headers["retry-after"], "1");
}

#[tokio::test]
async fn the_rate_is_told_in_every_answer_and_in_the_refusal() {
    let t = TestApp::new().await;
    ask(&t, "PUT", "/api/organisations/default/quota", json!({"requests_per_second": 1})).await;
    let mut remaining = Vec::new();
    let refused = loop {
        let answer = ask(&t, "GET", "/api/whoami", Value::Null).await;
        let left: u32 = answer.headers["ratelimit-remaining"].to_str().unwrap().parse().unwrap();
        assert_eq!(answer.headers["ratelimit-limit"], "10");
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            break answer;
        }
        remaining.push(left);
    };
    assert!(remaining.is_sorted_by(|before, after| before > after), "{remaining:?}");
    assert_eq!(refused.json()["code"], "rate_limited");
    assert_eq!(
        (&refused.headers["retry-after"], &refused.headers["ratelimit-remaining"]),
        (&"1".parse().unwrap(), &"0".parse().unwrap())
    );
    t.clock.advance(Duration::from_secs(1));
    assert_eq!(ask(&t, "GET", "/api/whoami", Value::Null).await.status, StatusCode::OK);
}
