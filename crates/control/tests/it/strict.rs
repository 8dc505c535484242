//! What a call does not know is refused by its name, at every door: an option that is misspelled must not look as if it
//! had been taken.

use axum::body::Body;
use axum::http::StatusCode;
use cove_control::door;
use serde_json::{Value, json};

use crate::api::{Answer, ask, call};
use crate::harness::TestApp;

const STRANGER: &str = "zz_stranger";

fn message(answer: &Answer) -> String {
    answer.json()["message"].as_str().unwrap_or_default().to_owned()
}

/// The path with something in each of its places.
fn filled(template: &str, sandbox: &str, session: &str) -> String {
    let first = template.trim_start_matches("/e2b").split('/').nth(1).unwrap_or_default();
    let id = if first == "sessions" { session } else { sandbox };
    let path = template.replace("{id}", id).replace("{session_id}", session).replace("{port}", "80");
    let path = path.replace("{process}", "1").replace("{name}", "base").replace("{template}", "base");
    let path = path.replace("{build}", "x").replace("{tag}", "x").replace("{hash}", &"a".repeat(64));
    path.replace("{agent_id}", "a").replace("{path}", "x").replace("{push}", "x")
}

#[tokio::test]
async fn every_native_call_names_a_parameter_and_a_field_that_it_does_not_know() {
    let t = TestApp::new().await;
    let sandbox = ask(&t, "POST", "/api/sandboxes", json!({})).await.json()["id"].as_str().unwrap().to_owned();
    let session = ask(&t, "POST", "/api/sessions", json!({})).await.json()["session_id"].as_str().unwrap().to_owned();
    let document: Value = serde_json::to_value(door::native::document()).unwrap();
    let (mut queries, mut bodies) = (0, 0);
    for (template, item) in document["paths"].as_object().unwrap() {
        // Their parameters are those of the program inside, and of the document itself.
        if template.contains("/proxy") || ["/docs", "/openapi.json"].contains(&template.as_str()) {
            continue;
        }
        let path = filled(template, &sandbox, &session);
        for method in ["get", "put", "post", "patch", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let verb = method.to_uppercase();
            let url = format!("/api{path}?{STRANGER}=1");
            let answer = call(&t, &t.key, &verb, &url, Body::empty()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{verb} {url}: {}", answer.text());
            assert!(message(&answer).contains(STRANGER), "{verb} {url}: {}", message(&answer));
            queries += 1;
            let binary = operation["requestBody"]["content"]
                .as_object()
                .is_some_and(|content| !content.contains_key("application/json"));
            if method == "get" || binary {
                continue;
            }
            let answer = ask(&t, &verb, &format!("/api{path}"), json!({ STRANGER: 1 })).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{verb} {path}: {}", answer.text());
            assert!(message(&answer).contains(STRANGER), "{verb} {path}: {}", message(&answer));
            bodies += 1;
        }
    }
    assert!(queries > 90 && bodies > 40, "{queries} queries, {bodies} bodies");
    // Nothing was done meanwhile.
    assert_eq!(ask(&t, "GET", &format!("/api/sandboxes/{sandbox}"), Value::Null).await.json()["state"], "running");
}

/// All schemas that a request body leads to.
fn reachable<'a>(document: &'a Value, schema: &'a Value, seen: &mut Vec<&'a str>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        if !seen.contains(&name) {
            seen.push(name);
            reachable(document, &document["components"]["schemas"][name], seen);
        }
        return;
    }
    match schema {
        Value::Object(fields) => fields.values().for_each(|field| reachable(document, field, seen)),
        Value::Array(items) => items.iter().for_each(|item| reachable(document, item, seen)),
        _ => {}
    }
}

#[test]
fn no_object_in_a_native_body_takes_what_it_does_not_know() {
    let document: Value = serde_json::to_value(door::native::document()).unwrap();
    let mut seen = Vec::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            reachable(&document, &operation["requestBody"], &mut seen);
        }
    }
    let open: Vec<&&str> = seen
        .iter()
        .filter(|name| {
            let schema = &document["components"]["schemas"][**name];
            schema["properties"].is_object() && schema["additionalProperties"] != json!(false)
        })
        .collect();
    assert!(seen.len() > 25, "{seen:?}");
    assert!(open.is_empty(), "take fields they do not know: {open:?}");
}

#[tokio::test]
async fn the_nearest_name_is_suggested() {
    let t = TestApp::new().await;
    let answer = ask(&t, "POST", "/api/sandboxes", json!({"lables": {}})).await;
    assert!(
        message(&answer).starts_with("body: unknown field `lables`: did you mean `labels`?"),
        "{}",
        message(&answer)
    );
    let answer = ask(&t, "GET", "/api/sandboxes?stat=running", Value::Null).await;
    let expected = "query: unknown query parameter `stat`: did you mean `state`?";
    assert!(message(&answer).starts_with(expected), "{}", message(&answer));
    let answer = ask(&t, "GET", "/api/events?kind=sandbox.stoped", Value::Null).await;
    assert!(message(&answer).contains("did you mean `sandbox.stopped`?"), "{}", message(&answer));
    let answer = ask(&t, "GET", "/api/sandboxes?state=asleep", Value::Null).await;
    assert!(
        message(&answer).starts_with("state: \"asleep\" is no state: there are creating, "),
        "{}",
        message(&answer)
    );
}

#[tokio::test]
async fn a_webhook_for_what_never_happens_is_refused_with_what_does() {
    let t = TestApp::new().await;
    let hook = |kinds: Value| json!({"url": "http://127.0.0.1:1/", "kinds": kinds});
    let refused = ask(&t, "POST", "/api/webhooks", hook(json!(["sandbox.stopped", "sandbox.stoped"]))).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let said = message(&refused);
    assert!(said.starts_with("kinds: \"sandbox.stoped\" is no kind of event; \"sandbox.stopped\" is one."), "{said}");
    assert!(said.contains("sandbox.created, sandbox.started"), "{said}");
    assert_eq!(ask(&t, "GET", "/api/webhooks", Value::Null).await.json(), json!([]));
    let made = ask(&t, "POST", "/api/webhooks", hook(json!(["sandbox.stopped"]))).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
}

#[tokio::test]
async fn a_session_on_a_sandbox_that_is_there_takes_nothing_about_a_new_one() {
    let t = TestApp::new().await;
    let sandbox = ask(&t, "POST", "/api/sandboxes", json!({"name": "box"})).await.json()["id"].clone();
    for (option, body) in [
        ("environment", json!({"environment": "base"})),
        ("provider", json!({"provider": "fake"})),
        ("sandbox.timers", json!({"sandbox": {"timers": {"idle_seconds": null}}})),
        ("sandbox.labels", json!({"sandbox": {"labels": {"a": "b"}}})),
    ] {
        let mut body = body;
        body["sandbox_id"] = sandbox.clone();
        let refused = ask(&t, "POST", "/api/sessions", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{option}");
        assert!(message(&refused).starts_with(&format!("{option}: only for a new sandbox")), "{}", message(&refused));
    }
    let made = ask(&t, "POST", "/api/sessions", json!({"sandbox_id": sandbox, "sandbox": {}})).await;
    assert_eq!((made.status, made.json()["sandbox_id"].clone()), (StatusCode::CREATED, sandbox));
}

#[tokio::test]
async fn a_comparison_of_commits_needs_where_to_begin() {
    let t = TestApp::new().await;
    ask(&t, "POST", "/api/sandboxes", json!({"name": "box"})).await;
    let diff = async |query: &str| {
        message(&ask(&t, "GET", &format!("/api/sandboxes/box/git/diff?path=/r&{query}"), Value::Null).await)
    };
    assert!(diff("to=main").await.starts_with("to: needs `from`"), "{}", diff("to=main").await);
    assert!(diff("from=a&staged=true").await.starts_with("staged: cannot be combined"));
}
