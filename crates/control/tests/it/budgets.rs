//! What no request may cost: refused at every door before anything is made of it, by field and by limit.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::call;
use crate::harness::TestApp;

/// What froze or filled a server once, at the door where it was sent: field, request, and what is said.
fn too_much() -> Vec<(&'static str, String, String, &'static str)> {
    let address = |n: usize| format!("8.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255);
    let addresses = |count: usize| (0..count).map(address).collect::<Vec<_>>();
    let labels =
        |count: usize| (0..count).map(|n| (format!("k{n}"), "v".into())).collect::<serde_json::Map<_, Value>>();
    let of = |method, path: &str, body: Value, said| (method, path.to_owned(), body.to_string(), said);
    let pairs: Vec<String> = (0..900).map(|n| format!("k{n}%3Dv")).collect();
    vec![
        of(
            "PUT",
            "/api/sandboxes/box/network",
            json!({"resolvers": addresses(50_000)}),
            "resolvers: more than 8 entries",
        ),
        of("PUT", "/api/sandboxes/box/network", json!({"allow": addresses(50_000)}), "allow: more than 1024 entries"),
        of(
            "POST",
            "/api/sandboxes",
            json!({"network": {"deny": addresses(50_000)}}),
            "network.deny: more than 1024 entries",
        ),
        of("POST", "/api/sandboxes", json!({"owner": "x".repeat(300)}), "owner: 300 characters; at most 255"),
        of("POST", "/api/sandboxes", json!({"labels": {"a\0b": "c"}}), "must not hold"),
        of("POST", "/api/sandboxes", json!({"labels": {"a": "b\0c"}}), "labels.a: must not hold a NUL character"),
        of(
            "POST",
            "/api/webhooks",
            json!({"url": "https://x.example", "kinds": vec!["k"; 1000]}),
            "kinds: more than 64 entries",
        ),
        of("GET", &format!("/api/sandboxes?label={}", pairs.join(",")), Value::Null, "labels: 900 labels; at most 64"),
        of("GET", "/api/sandboxes?owner=a%00", Value::Null, "owner: must not hold a NUL character"),
        of("GET", "/api/sandboxes/a%00b", Value::Null, "path: must not hold a NUL character"),
        of(
            "POST",
            "/e2b/sandboxes",
            json!({"templateID": "base", "network": {"dnsServers": addresses(9)}}),
            "network.dnsServers: more than 8 entries",
        ),
        of(
            "POST",
            "/e2b/sandboxes",
            json!({"templateID": "base", "metadata": labels(65)}),
            "metadata: more than 64 entries",
        ),
        of(
            "POST",
            "/e2b/sandboxes",
            json!({"templateID": "base", "metadata": {"a": "\0"}}),
            "metadata.a: must not hold a NUL character",
        ),
        of("GET", "/e2b/v2/sandboxes?metadata=a%3D%00", Value::Null, "metadata: must not hold a NUL character"),
        of("POST", "/daytona/api/sandbox", json!({"labels": labels(65)}), "labels: more than 64 entries"),
        of(
            "GET",
            "/daytona/api/sandbox?labels=%7B%22a%22%3A%22%5Cu0000%22%7D",
            Value::Null,
            "labels.a: must not hold a NUL character",
        ),
        of(
            "PUT",
            "/daytona/api/sandbox/box/labels",
            json!({"labels": {"a\u{7}": "b"}}),
            "must not hold control characters",
        ),
    ]
}

#[tokio::test]
async fn what_would_cost_too_much_is_refused_at_every_door_by_field_and_limit() {
    let t = TestApp::new().await;
    call(&t, &t.key, "POST", "/api/sandboxes", json!({"name": "box"}).to_string()).await;
    for (method, path, body, said) in too_much() {
        let begun = Instant::now();
        let body = if body == "null" { String::new() } else { body };
        let answer = call(&t, &t.key, method, &path, body).await;
        let path = &path[..path.len().min(80)];
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains(said), "{method} {path}: {}", answer.text());
        assert!(begun.elapsed() < Duration::from_secs(20), "{method} {path} took {:?}", begun.elapsed());
    }
    assert_eq!(t.app.list_sandboxes(&t.caller, &Default::default(), &Default::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_body_is_as_large_as_its_route_takes_at_every_door() {
    let t = TestApp::new().await;
    let made = call(&t, &t.key, "POST", "/api/sandboxes", json!({"name": "box"}).to_string()).await.json();
    let id = made["id"].as_str().unwrap();
    for (path, megabytes) in [
        ("/api/sandboxes", 1),
        ("/api/sandboxes/box/exec", 16),
        ("/e2b/sandboxes", 1),
        ("/daytona/api/sandbox", 1),
        (&format!("/daytona/toolbox/{id}/process/execute"), 16),
    ] {
        let body = json!({ "command": "x".repeat(megabytes << 20) }).to_string();
        let answer = call(&t, &t.key, "POST", path, body).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {}", answer.text());
        assert!(answer.text().contains(&format!("more than {} KiB", megabytes << 10)), "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_document_tells_the_limits_that_hold() {
    let document = serde_json::to_value(cove_control::door::native::document()).unwrap();
    let schemas = &document["components"]["schemas"];
    let create = &schemas["CreateSandbox"]["properties"];
    assert_eq!(create["owner"]["maxLength"], 255);
    assert_eq!(create["labels"]["maxProperties"], 64);
    assert_eq!(create["labels"]["propertyNames"]["maxLength"], 255);
    assert_eq!(create["labels"]["additionalProperties"]["maxLength"], 4096);
    let network = &schemas["NetworkPolicy"]["properties"];
    assert_eq!((&network["allow"]["maxItems"], &network["resolvers"]["maxItems"]), (&json!(1024), &json!(8)));
    assert_eq!(schemas["CreateWebhook"]["properties"]["kinds"]["maxItems"], 64);
    let list = document["paths"]["/sandboxes"]["get"]["parameters"].as_array().unwrap();
    let owner = list.iter().find(|parameter| parameter["name"] == "owner").unwrap();
    assert_eq!(owner["schema"]["maxLength"], 255);
    assert_eq!(document["paths"]["/execute"]["post"]["requestBody"]["description"], "At most 16384 KiB.");
}

#[tokio::test]
async fn a_key_for_repeating_that_is_no_text_is_refused_rather_than_dropped() {
    let t = TestApp::new().await;
    let request = axum::http::Request::post("/api/sandboxes")
        .header("authorization", format!("Bearer {}", t.key))
        .header("host", "localhost")
        .header("idempotency-key", axum::http::HeaderValue::from_bytes(b"a\xff").unwrap())
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = tower::ServiceExt::oneshot(cove_control::door::router(t.app.clone()), request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}
