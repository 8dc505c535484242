//! One act on many sandboxes: tried first, done in the background, taken up again, reported.

use std::time::Duration;

use axum::http::StatusCode;
use cove_control::provider::ProviderError;
use cove_control::sandbox::{NewSandbox, State, TimersChange};
use serde_json::{Value, json};

use crate::api::ask;
use crate::harness::{TestApp, eventually};

async fn make(t: &TestApp, name: &str, owner: &str) {
    let timers = TimersChange { idle_seconds: Some(None), ..TimersChange::default() };
    let new = NewSandbox { name: Some(name.into()), owner: Some(owner.into()), timers, ..NewSandbox::default() };
    t.app.create_sandbox(&t.caller, new).await.unwrap();
}

async fn state(t: &TestApp, name: &str) -> Option<State> {
    t.app.sandbox(&t.caller, name).await.ok().map(|sandbox| sandbox.state)
}

/// Asks, and waits for the end.
async fn kept(t: &TestApp, body: Value) -> Value {
    let begun = ask(t, "POST", "/api/upkeep", body).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    ended(t, &id).await
}

async fn ended(t: &TestApp, id: &str) -> Value {
    let path = format!("/api/upkeep/{id}");
    eventually("it ends", || async {
        t.app.work().await.unwrap();
        let now = ask(t, "GET", &path, Value::Null).await.json();
        ["done", "failed"].contains(&now["state"].as_str().unwrap_or_default())
    })
    .await;
    ask(t, "GET", &path, Value::Null).await.json()
}

fn names(report: &Value, outcome: &str) -> Vec<String> {
    let items = report["items"].as_array().unwrap().iter().filter(|item| item["outcome"] == outcome);
    let mut names: Vec<String> = items.map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_is_idle_for_days_is_archived_and_a_dry_run_only_says_so() {
    let t = TestApp::new().await;
    make(&t, "old", "ada").await;
    make(&t, "old-and-stopped", "ada").await;
    t.app.stop(&t.caller, "old-and-stopped").await.unwrap();
    t.clock.advance(Duration::from_secs(31 * 24 * 3600));
    make(&t, "new", "ada").await;
    t.clock.advance(Duration::from_secs(1));

    let tried = kept(&t, json!({"act": "archive", "idle_days": 30})).await;
    assert_eq!((&tried["dry_run"], &tried["state"]), (&json!(true), &json!("done")));
    assert_eq!(names(&tried, "would"), ["old", "old-and-stopped"]);
    assert_eq!(state(&t, "old").await, Some(State::Running), "nothing is done");

    let done = kept(&t, json!({"act": "archive", "idle_days": 30, "dry_run": false})).await;
    assert_eq!(names(&done, "done"), ["old", "old-and-stopped"]);
    assert_eq!((&done["progress"]["found"], &done["progress"]["done"]), (&json!(2), &json!(2)));
    assert_eq!(state(&t, "old").await, Some(State::Archived));
    assert_eq!(state(&t, "new").await, Some(State::Running));
    // Each is in the audit as if it had been asked for alone.
    let audit = ask(&t, "GET", "/api/audit", Value::Null).await.text();
    assert!(audit.contains("upkeep.archive") && audit.contains("sandbox.archive"), "{audit}");
}

#[tokio::test]
async fn all_of_an_owner_go_and_what_fails_is_named() {
    let t = TestApp::new().await;
    for (name, owner) in [("a", "ada"), ("b", "ada"), ("c", "bob")] {
        make(&t, name, owner).await;
    }
    t.clock.advance(Duration::from_secs(1));
    t.fake.fail_next("stop", ProviderError::Failed("busy".into()));
    let stopped = kept(&t, json!({"act": "stop", "owner": "ada", "dry_run": false})).await;
    assert_eq!((names(&stopped, "failed").len(), names(&stopped, "done").len()), (1, 1), "{stopped}");
    assert_eq!(stopped["items"][0]["outcome"], "failed", "what must be read comes first");
    let gone = kept(&t, json!({"act": "destroy", "owner": "ada", "dry_run": false})).await;
    assert_eq!(gone["progress"]["failed"], 0, "{gone}");
    assert_eq!((state(&t, "a").await, state(&t, "b").await), (None, None));
    assert_eq!(state(&t, "c").await, Some(State::Running));
}

#[tokio::test]
async fn nobody_does_something_with_everything_by_a_slip() {
    let t = TestApp::new().await;
    make(&t, "a", "ada").await;
    t.clock.advance(Duration::from_secs(1));
    let refused = ask(&t, "POST", "/api/upkeep", json!({"act": "destroy", "dry_run": false})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("say which sandboxes"), "{}", refused.text());
    let all = kept(&t, json!({"act": "destroy", "all": true, "dry_run": false})).await;
    assert_eq!(names(&all, "done"), ["a"]);
    assert_eq!(ask(&t, "GET", "/api/upkeep/upkeep_none", Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn one_that_is_broken_off_goes_on_where_it_was() {
    let t = TestApp::new().await;
    for number in 0..60 {
        make(&t, &format!("box-{number:02}"), "ada").await;
        t.clock.advance(Duration::from_millis(10));
    }
    t.clock.advance(Duration::from_secs(1));
    let begun =
        ask(&t, "POST", "/api/upkeep", json!({"act": "destroy", "owner": "ada", "dry_run": false})).await.json();
    let id = begun["id"].as_str().unwrap().to_owned();
    let again = ask(&t, "POST", "/api/upkeep", json!({"act": "stop", "all": true})).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "one at a time");
    let mut hold = t.fake.hold_next("destroy");
    t.app.work().await.unwrap();
    hold.reached().await;
    let t = t.killed_and_restarted().await;
    hold.let_through();
    t.app.take_up_jobs().await.unwrap();
    let done = ended(&t, &id).await;
    assert_eq!(done["state"], "done", "{done}");
    eventually("nothing is left", || async { t.fake.ids().is_empty() }).await;
}

#[tokio::test]
async fn orphans_of_every_provider_are_found_and_removed() {
    let t = TestApp::new().await;
    make(&t, "a", "ada").await;
    t.fake.tamper(&t.app.sandbox(&t.caller, "a").await.unwrap().id, "/home/user/work", b"x");
    let t = t.with_another_database().await;
    let tried = kept(&t, json!({"act": "orphans"})).await;
    assert_eq!((&tried["progress"]["found"], &tried["items"][0]["outcome"]), (&json!(1), &json!("would")), "{tried}");
    assert_eq!(t.fake.ids().len(), 1);
    let done = kept(&t, json!({"act": "orphans", "dry_run": false})).await;
    assert_eq!(done["progress"]["done"], 1, "{done}");
    assert!(t.fake.ids().is_empty());
}
