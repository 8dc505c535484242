//! What sandboxes used: remembered over a stop and a restart, and forgotten in time.

use std::time::Duration;

use cove_control::config::{Config, Metrics};
use serde_json::Value;

use crate::api::ask;
use crate::harness::{TestApp, eventually};

async fn samples(t: &TestApp) -> Vec<String> {
    let answer = ask(t, "GET", "/api/sandboxes/box/metrics", Value::Null).await.json();
    let all = answer.as_array().unwrap_or_else(|| panic!("{answer}")).iter();
    all.map(|sample| sample["at"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn history_outlives_a_stop_and_the_server_and_ends_with_its_retention() {
    let metrics = Metrics { keep_seconds: 3600, store_every_seconds: 60 };
    let t = TestApp::with(Config { metrics, ..Config::default() }).await;
    ask(&t, "POST", "/api/sandboxes", serde_json::json!({"name": "box", "timers": {"idle_seconds": null}})).await;
    t.app.begin();
    let first = "2026-01-01T00:00:00Z".to_owned();
    eventually("a sample is in the store", || async {
        let sandbox = t.app.sandbox(&t.caller, "box").await.unwrap();
        !t.app.store().samples(sandbox.id.as_str(), None, None).await.unwrap().is_empty()
    })
    .await;
    ask(&t, "POST", "/api/sandboxes/box/stop", Value::Null).await;
    let t = t.killed_and_restarted().await;
    assert_eq!(samples(&t).await, std::slice::from_ref(&first), "what is stopped has its past");

    t.clock.advance(Duration::from_secs(1800));
    ask(&t, "POST", "/api/sandboxes/box/start", Value::Null).await;
    let now = "2026-01-01T00:30:00Z".to_owned();
    assert_eq!(samples(&t).await, [first.clone(), now.clone()], "and what runs its present too");
    let between = "/api/sandboxes/box/metrics?from=2026-01-01T00:10:00Z&to=2026-01-01T00:40:00Z";
    assert_eq!(ask(&t, "GET", between, Value::Null).await.json()[0]["at"], now);
    let before = "/api/sandboxes/box/metrics?to=2026-01-01T00:10:00Z";
    assert_eq!(ask(&t, "GET", before, Value::Null).await.json()[0]["at"], first);

    t.clock.advance(Duration::from_secs(1801));
    t.app.begin();
    eventually("what is too old is forgotten", || async { !samples(&t).await.contains(&first) }).await;
}
