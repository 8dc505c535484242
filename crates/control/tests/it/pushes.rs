//! Pushes, as far as no files are needed: how they begin, what is said, and how they end.

use axum::http::StatusCode;
use cove_control::build::{Habits, Recipe, Request, State as BuildState};
use cove_control::push::{Push, State};
use cove_control::store::Written;
use cove_control::store::templates::Beside;
use serde_json::{Value, json};

use crate::api::{ask, call};
use crate::harness::eventually;
use crate::templates::{Workbench, steps};

/// A template of an image.
async fn workbench() -> Workbench {
    let w = Workbench::new().await;
    let recipe = Recipe::Image { reference: "debian:12".into() };
    let request = Request { recipe, habits: Habits::OfTheImage, ..steps(Vec::new()) };
    assert_eq!(w.built("app", request).await.state, BuildState::Ready);
    w
}

/// A row that no job has.
async fn under_way(w: &Workbench, number: u32, is_confidential: bool) -> Push {
    let template = w.t.app.template(&w.t.caller, "app").await.unwrap();
    let push = Push {
        id: format!("push_{number:016}"),
        organisation: w.t.caller.organisation.clone(),
        template: template.id,
        name: "app".into(),
        build: template.build.unwrap(),
        image: "registry.example/app:1".into(),
        state: State::Pushing,
        server: w.t.app.server().into(),
        is_confidential,
        as_operator: false,
        digest: None,
        failure: None,
        created_at: w.t.app.now(),
        finished_at: None,
    };
    w.t.app.store().insert_push(&push, Beside::default()).await.unwrap();
    push
}

async fn state(w: &Workbench, push: &Push) -> State {
    w.t.app.push(&w.t.caller, &push.id).await.unwrap().state
}

#[tokio::test]
async fn a_push_is_a_job_that_is_followed_to_its_end() {
    let w = workbench().await;
    let body = json!({"image": "registry.example/team/app:v2", "registry": {"username": "ada", "password": "hunter2"}});
    let begun = ask(&w.t, "POST", "/api/templates/app/push", body).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    assert_eq!((&begun.json()["state"], &begun.json()["name"]), (&json!("pushing"), &json!("app")));
    let path = format!("/api/pushes/{}", begun.json()["id"].as_str().unwrap());
    let told = ask(&w.t, "GET", &format!("{path}/logs/follow?for_seconds=60"), Value::Null).await.text();
    assert!(told.contains("pack app"), "{told}");
    let end = told.split("event: end\n").nth(1).unwrap_or_else(|| panic!("no end in {told}"));
    let end: Value = serde_json::from_str(end.trim().trim_start_matches("data: ")).unwrap();
    // The provider of these tests has no directories to pack.
    assert_eq!(end["state"], "error", "{end}");
    assert!(end["failure"].as_str().unwrap().contains("no directories"), "{end}");
    assert_eq!(ask(&w.t, "GET", &path, Value::Null).await.json(), end);
    let listed = ask(&w.t, "GET", "/api/pushes", Value::Null).await.json();
    assert_eq!(listed["items"], json!([end]));
    // What is over stays as it is, and nothing of the password is kept.
    assert_eq!(ask(&w.t, "POST", &format!("{path}/cancel"), Value::Null).await.json(), end);
    let row = w.t.app.store().push(end["id"].as_str().unwrap()).await.unwrap().unwrap();
    assert!(row.is_confidential && !format!("{row:?}{told}").contains("hunter2"));
}

#[tokio::test]
async fn a_push_that_cannot_be_is_refused_before_it_begins() {
    let w = workbench().await;
    let to = |image: &str| json!({"image": image});
    for (name, body, status, expected) in [
        ("base", to("registry.example/x:1"), 400, "this machine's own programs"),
        ("nothing", to("registry.example/x:1"), 404, "nothing"),
        ("app", to("not a name"), 400, "image"),
        ("app", json!({}), 400, "image"),
        ("app", json!({"image": "a.example/x", "registry": {"username": "ada"}}), 400, "password"),
        ("app", json!({"image": "x".repeat(5000)}), 400, "image"),
    ] {
        for noun in ["templates", "snapshots"] {
            let refused = ask(&w.t, "POST", &format!("/api/{noun}/{name}/push"), body.clone()).await;
            assert_eq!(refused.status.as_u16(), status, "{noun} {name}: {}", refused.text());
            assert!(refused.text().contains(expected), "{noun} {name}: {}", refused.text());
        }
    }
    let reader = ask(&w.t, "POST", "/api/keys", json!({"name": "r", "scope": "read"})).await.json();
    let body = to("registry.example/x:1").to_string();
    let refused = call(&w.t, reader["secret"].as_str().unwrap(), "POST", "/api/templates/app/push", body).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_eq!(ask(&w.t, "GET", "/api/pushes", Value::Null).await.json()["items"], json!([]));
}

#[tokio::test]
async fn an_organisation_has_a_maximum_of_pushes_that_go_on() {
    let w = workbench().await;
    for number in 0..16 {
        under_way(&w, number, false).await;
    }
    let body = json!({"image": "registry.example/x:1"});
    let refused = ask(&w.t, "POST", "/api/templates/app/push", body.clone()).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{}", refused.text());
    let cancelled = ask(&w.t, "POST", "/api/pushes/push_0000000000000003/cancel", Value::Null).await.json();
    assert_eq!((&cancelled["state"], &cancelled["failure"]), (&json!("cancelled"), &json!("the push was cancelled")));
    let begun = ask(&w.t, "POST", "/api/templates/app/push", body).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
}

#[tokio::test]
async fn what_a_dead_server_was_pushing_is_taken_up_and_credentials_died_with_it() {
    let w = workbench().await;
    let (plain, confidential) = (under_way(&w, 1, false).await, under_way(&w, 2, true).await);
    w.t.app.keep_house().await.unwrap();
    w.t.app.work().await.unwrap();
    for push in [&plain, &confidential] {
        eventually("it has ended", || async { state(&w, push).await == State::Error }).await;
    }
    let told = w.t.app.push(&w.t.caller, &confidential.id).await.unwrap().failure.unwrap();
    assert!(told.contains("kept in memory alone"), "{told}");
    let told = w.t.app.push(&w.t.caller, &plain.id).await.unwrap().failure.unwrap();
    assert!(told.contains("no directories"), "it was tried: {told}");
}

#[tokio::test]
async fn only_the_latest_pushes_are_kept() {
    let w = workbench().await;
    for number in 0..104 {
        let push = Push { state: State::Done, ..under_way(&w, number, false).await };
        let written = w.t.app.store().end_push(&push).await.unwrap();
        assert!(matches!(written, Written::Done), "push {number}");
    }
    let last = under_way(&w, 999, false).await;
    w.t.app.cancel_push(&w.t.caller, &last.id).await.unwrap();
    let page = w.t.app.list_pushes(&w.t.caller, None, 60).await.unwrap();
    let rest = w.t.app.list_pushes(&w.t.caller, page.next.as_deref(), 60).await.unwrap();
    assert_eq!((page.items.len(), rest.items.len(), rest.next), (60, 40, None));
    assert_eq!(page.items[0].id, last.id, "newest first");
}
