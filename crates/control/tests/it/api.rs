//! The native API over HTTP, without sockets: the router is called as it is.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use cove_control::door;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::harness::{TestApp, eventually};

pub struct Answer {
    pub status: StatusCode,
    pub headers: axum::http::HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }
}

pub async fn call(t: &TestApp, key: &str, method: &str, path: &str, body: impl Into<Body>) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {key}"))
        .body(body.into())
        .unwrap();
    answer(door::router(t.app.clone()).oneshot(request).await.unwrap()).await
}

/// Without a key, at a host name.
pub async fn at_host(t: &TestApp, host: &str, method: &str, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", host).body(Body::empty()).unwrap();
    answer(door::router(t.app.clone()).oneshot(request).await.unwrap()).await
}

async fn answer(response: axum::response::Response) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    Answer { status: parts.status, headers: parts.headers, bytes }
}

pub async fn ask(t: &TestApp, method: &str, path: &str, body: Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    call(t, &t.key, method, path, body).await
}

#[tokio::test]
async fn a_sandbox_is_made_used_and_destroyed() {
    let t = TestApp::new().await;
    let made =
        ask(&t, "POST", "/api/sandboxes", json!({"name": "box", "labels": {"team": "a"}, "env": {"WHO": "me"}})).await;
    assert_eq!(made.status, StatusCode::CREATED);
    assert_eq!(made.json()["state"], "running");
    let ran = ask(&t, "POST", "/api/sandboxes/box/exec", json!({"shell": "printenv WHO; echo oops >&2; exit 3"}))
        .await
        .json();
    assert_eq!((ran["stdout"].as_str(), ran["stderr"].as_str()), (Some("me\n"), Some("oops\n")));
    assert_eq!(ran["exit"]["status"], 3);
    let listed = ask(&t, "GET", "/api/sandboxes?label=team%3Da&state=running", Value::Null).await.json();
    assert_eq!(listed["items"][0]["name"], "box");
    assert_eq!(ask(&t, "DELETE", "/api/sandboxes/box", Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(ask(&t, "GET", "/api/sandboxes/box", Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn files_go_in_and_come_out_whole_and_in_parts() {
    let t = TestApp::new().await;
    ask(&t, "POST", "/api/sandboxes", json!({"name": "box"})).await;
    let content: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
    let path = "/api/sandboxes/box/files/content?path=/tmp/deep/down/file";
    let written = call(&t, &t.key, "PUT", path, content.clone()).await;
    assert_eq!((written.status, written.json()["size"].as_u64()), (StatusCode::OK, Some(3_000_000)));
    let read = call(&t, &t.key, "GET", path, Body::empty()).await;
    assert!(read.bytes == content);
    let request = Request::get(path).header("x-api-key", &t.key).header("range", "bytes=1000-1003").body(Body::empty());
    let part = door::router(t.app.clone()).oneshot(request.unwrap()).await.unwrap();
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.headers()["content-range"], "bytes 1000-1003/3000000");
    let bytes = axum::body::to_bytes(part.into_body(), 100).await.unwrap();
    assert_eq!(bytes[..], content[1000..1004]);
}

#[tokio::test]
async fn bad_input_is_told_by_name() {
    let t = TestApp::new().await;
    let cases = [
        (json!({"nmae": "x"}), "body: unknown field `nmae`: did you mean `name`?"),
        (json!({"name": "a b"}), "name: 1 to 128 letters"),
        (
            json!({"limits": {"cpus": 64.0}}),
            "limits.cpus: 64 asked for, the organisation's maximum for one sandbox is 4",
        ),
        (json!({"limits": {"memory": 1}}), "limits.memory: at least 16 MiB"),
        (json!({"provider": "moon"}), "provider: \"moon\" is not one of fake"),
        (json!({"network": {"allow": ["nonsense"]}}), "network.allow: `nonsense` is no egress target"),
        (json!({"timers": {"lifetime_seconds": 0}}), "lifetime_seconds: must be greater than 0"),
        (json!({"timers": {"idle_seconds": u64::MAX}}), "idle_seconds: at most 1892160000, which is 60 years"),
        (json!({"timers": [1, 2]}), "body: an object is wanted"),
        (json!({"limits": {"pids": 1 << 30}}), "limits.pids: 4 to 32768"),
        (
            json!({"limits": {"pids": 8192}}),
            "limits.pids: 8192 asked for, the organisation's maximum for one sandbox is 4096",
        ),
        (json!([]), "body: a JSON object is wanted"),
    ];
    for (body, expected) in cases {
        let answer = ask(&t, "POST", "/api/sandboxes", body).await;
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{message}");
        assert!(message.starts_with(expected), "{message}");
    }
    let unknown = ask(&t, "POST", "/api/sandboxes", json!({"template": "moon"})).await;
    assert_eq!(
        (unknown.status, unknown.json()["message"].clone()),
        (StatusCode::NOT_FOUND, json!("template moon does not exist"))
    );
}

#[tokio::test]
async fn a_key_is_needed_and_can_be_taken_back() {
    let t = TestApp::new().await;
    assert_eq!(call(&t, "e2b_wrong", "GET", "/api/sandboxes", Body::empty()).await.status, StatusCode::UNAUTHORIZED);
    let made = ask(&t, "POST", "/api/keys", json!({"name": "reader", "scope": "read"})).await.json();
    let secret = made["secret"].as_str().unwrap();
    assert_eq!(call(&t, secret, "GET", "/api/sandboxes", Body::empty()).await.status, StatusCode::OK);
    assert_eq!(call(&t, secret, "POST", "/api/sandboxes", "{}").await.status, StatusCode::FORBIDDEN);
    let path = format!("/api/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(ask(&t, "DELETE", &path, Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(call(&t, secret, "GET", "/api/sandboxes", Body::empty()).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn over_the_rate_comes_429_with_the_time_to_wait() {
    let t = TestApp::new().await;
    let quota = json!({"requests_per_second": 1});
    assert_eq!(ask(&t, "PUT", "/api/organisations/default/quota", quota).await.status, StatusCode::OK);
    let mut last = ask(&t, "GET", "/api/whoami", Value::Null).await;
    assert!(last.headers.contains_key("ratelimit-remaining"));
    for _ in 0..20 {
        last = ask(&t, "GET", "/api/whoami", Value::Null).await;
    }
    assert_eq!(last.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(last.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_maximum_of_running_sandboxes_holds_and_a_destroy_makes_room() {
    let t = TestApp::new().await;
    ask(&t, "PUT", "/api/organisations/default/quota", json!({"running_sandboxes": 1})).await;
    assert_eq!(ask(&t, "POST", "/api/sandboxes", json!({"name": "one"})).await.status, StatusCode::CREATED);
    let refused = ask(&t, "POST", "/api/sandboxes", json!({})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    ask(&t, "DELETE", "/api/sandboxes/one", Value::Null).await;
    assert_eq!(ask(&t, "POST", "/api/sandboxes", json!({})).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn use_is_metered_and_priced() {
    let t = TestApp::new().await;
    ask(&t, "POST", "/api/sandboxes", json!({"name": "box", "owner": "ada", "timers": {"idle_seconds": null}})).await;
    t.clock.advance(std::time::Duration::from_secs(3600));
    ask(&t, "POST", "/api/sandboxes/box/stop", Value::Null).await;
    t.clock.advance(std::time::Duration::from_secs(3600));
    let report = ask(&t, "GET", "/api/usage", Value::Null).await.json();
    let ada = &report["by_owner"]["ada"];
    assert_eq!(ada["cpu_seconds"], 3600.0);
    assert_eq!(ada["disk_gib_seconds"], 2.0 * 3.0 * 3600.0);
    let expected = 0.0504 + 0.0162 + 2.0 * 3.0 * 0.000108;
    assert!((ada["cost"].as_f64().unwrap() - expected).abs() < 1e-9);
}

#[tokio::test]
async fn a_warm_pool_hands_out_what_lives_and_never_what_died() {
    let t = TestApp::new().await;
    t.app.begin();
    ask(&t, "PUT", "/api/pools/base", json!({"size": 2})).await;
    eventually("the pool is full", || async {
        ask(&t, "GET", "/api/pools", Value::Null).await.json()[0]["ready"] == 2
    })
    .await;
    assert_eq!(ask(&t, "GET", "/api/sandboxes", Value::Null).await.json()["items"], json!([]));
    let dead = t.fake.ids()[0].clone();
    cove_control::provider::Provider::stop(&*t.fake, &(&dead).into(), std::time::Duration::ZERO).await.unwrap();
    for name in ["one", "two"] {
        let made = ask(&t, "POST", "/api/sandboxes", json!({"name": name, "env": {"A": name}})).await.json();
        assert_ne!(made["id"], json!(dead.as_str()));
        let ran = ask(&t, "POST", &format!("/api/sandboxes/{name}/exec"), json!({"shell": "printenv A"})).await.json();
        assert_eq!(ran["stdout"], format!("{name}\n"));
    }
    let pool = ask(&t, "GET", "/api/pools", Value::Null).await.json()[0].clone();
    assert!(pool["hits"].as_u64().unwrap() >= 1, "{pool}");
}

#[tokio::test]
async fn the_document_is_the_one_that_is_locked() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/native.json");
    let document = door::native::document().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("COVE_BLESS").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let locked = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        document == locked,
        "the API changed: look at the difference after COVE_BLESS=1 cargo nextest run the_document"
    );
}
