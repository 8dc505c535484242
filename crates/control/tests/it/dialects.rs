//! What the doors of other servers' clients promise: every option is served or refused by name, and what is shown is true.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use cove_control::door;
use cove_control::provider::ProviderError;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::api::{Answer, ask, call};
use crate::harness::TestApp;

/// With headers of a client's own.
async fn with(t: &TestApp, headers: &[(&str, &str)], method: &str, path: &str, body: Value) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {}", t.key));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let response = door::router(t.app.clone()).oneshot(request.body(body).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    Answer { status: parts.status, headers: parts.headers, bytes }
}

fn message(answer: &Answer) -> String {
    answer.json()["message"].as_str().unwrap_or_default().to_owned()
}

async fn daytona(t: &TestApp, method: &str, path: &str, body: Value) -> Answer {
    ask(t, method, &format!("/daytona/api{path}"), body).await
}

async fn made(t: &TestApp, body: Value) -> Value {
    let answer = daytona(t, "POST", "/sandbox", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

fn id(sandbox: &Value) -> &str {
    sandbox["id"].as_str().unwrap()
}

#[tokio::test]
async fn daytona_options_are_served_or_refused_by_name() {
    let t = TestApp::new().await;
    for (name, value) in [
        ("linkedSandbox", json!("abc")),
        ("outboundProxyUrl", json!("http://proxy.example:3128")),
        ("otelEndpointOverride", json!("http://otel.example")),
        ("kvm", json!(true)),
        ("spot", json!(true)),
        ("gpuType", json!(["H100"])),
        ("gpu", json!(1)),
        ("queueTimeout", json!(5)),
        ("class", json!("small")),
        ("secrets", json!([{"A": "b"}])),
        ("volumes", json!([{"volumeId": "v", "mountPath": "/v"}])),
        ("domainAllowList", json!("example.com")),
        ("lables", json!({"a": "b"})),
    ] {
        let refused = daytona(&t, "POST", "/sandbox", json!({ name: value })).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{name}: {}", refused.text());
        assert!(message(&refused).contains(name), "{}", message(&refused));
    }
    assert!(message(&daytona(&t, "POST", "/sandbox", json!({"lables": {}})).await).contains("did you mean `labels`?"));
    assert_eq!(daytona(&t, "GET", "/sandbox", Value::Null).await.json()["items"], json!([]));
    // What says nothing is no option: SDKs send such fields, and later ones will send others.
    made(
        &t,
        json!({
            "linkedSandbox": "", "kvm": false, "spot": false, "gpu": 0, "gpuType": [], "queueTimeout": null,
            "outboundProxyUrl": null, "otelEndpointOverride": "", "secrets": [], "volumes": [], "class": null,
            "target": "us", "fromALaterSdk": null,
        }),
    )
    .await;
}

#[tokio::test]
async fn daytona_parameters_that_no_sdk_has_are_refused() {
    let t = TestApp::new().await;
    let sandbox = made(&t, json!({})).await;
    let id = id(&sandbox);
    for (method, path, nearest) in [
        ("GET", "/daytona/api/sandbox?state=started".to_owned(), "`states`"),
        ("POST", format!("/daytona/api/sandbox/{id}/stop?forced=true"), "`force`"),
        ("GET", format!("/daytona/api/sandbox/{id}/ports/80/preview-url?x=1"), "takes none"),
        ("GET", format!("/daytona/toolbox/{id}/files?dept=2"), "`depth`"),
        ("GET", format!("/daytona/api/toolbox/{id}/toolbox/files/info?paht=a"), "`path`"),
    ] {
        let refused = call(&t, &t.key, method, &path, Body::empty()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {}", refused.text());
        assert!(message(&refused).contains("unknown query parameter"), "{}", message(&refused));
        assert!(message(&refused).contains(nearest), "{}", message(&refused));
        assert_eq!(refused.json()["code"], "BAD_REQUEST");
    }
    // What belongs to another call of git is not taken for this one.
    let path = format!("/daytona/toolbox/{id}/git/push");
    let refused = ask(&t, "POST", &path, json!({"path": "r", "depth": 1})).await;
    assert!(message(&refused).contains("unknown field `depth`"), "{}", message(&refused));
}

#[tokio::test]
async fn daytona_lists_show_what_was_asked_for_and_no_more() {
    let t = TestApp::new().await;
    let one = made(&t, json!({"name": "one", "public": true, "labels": {"a": "b"}, "cpu": 2})).await;
    t.clock.advance(std::time::Duration::from_secs(1));
    let two = made(&t, json!({"name": "two", "ttlMinutes": 60})).await;
    daytona(&t, "POST", &format!("/sandbox/{}/stop", id(&two)), Value::Null).await;
    let list = async |query: &str| {
        let answer = daytona(&t, "GET", &format!("/sandbox?{query}"), Value::Null).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}: {}", answer.text());
        let items = answer.json()["items"].clone();
        let names = items.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list("order=asc").await, "one two");
    assert_eq!(list("sort=name&order=desc").await, "two one");
    assert_eq!(list("sort=cpu&order=asc&limit=1").await, "two");
    assert_eq!(list("labels=null&order=asc").await, "one two");
    assert_eq!(list("labels=%7B%22a%22%3A%22b%22%7D").await, "one");
    assert_eq!(list("states=stopped").await, "two");
    assert_eq!(list("states[]=resizing").await, "");
    assert_eq!(list("isPublic=true").await, "one");
    assert_eq!(list("minCpu=2").await, "one");
    assert_eq!(list("maxCpu=1").await, "two");
    assert_eq!(list("autoDestroyAtAfter=2026-01-01T00:30:00Z").await, "two");
    assert_eq!(list("regionIds=us").await, "");
    assert_eq!(list("regionIds=local&sandboxClasses=container&order=asc").await, "one two");
    assert_eq!(list("snapshots=default&order=asc").await, "one two");
    assert_eq!(list("snapshots=no-such").await, "");
    assert_eq!(list(&format!("id={}", &id(&one)[..12])).await, "one");
    for (query, said) in [
        ("states=asleep", "states: \"asleep\" is no state of a sandbox; there are creating"),
        ("order=up", "order: \"up\" is neither asc nor desc"),
        ("sort=colour", "sort: \"colour\" is not one of createdAt"),
        ("includeWarm=true", "includeWarm is not offered"),
        ("isPublic=perhaps", "isPublic \"perhaps\" is neither true nor false"),
        ("createdAtAfter=yesterday", "createdAtAfter \"yesterday\" is not a time"),
    ] {
        let refused = daytona(&t, "GET", &format!("/sandbox?{query}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{query}");
        assert!(message(&refused).starts_with(said), "{}", message(&refused));
    }
    // Pages by something else than the time: each once.
    let first = daytona(&t, "GET", "/sandbox?sort=name&order=asc&limit=1", Value::Null).await.json();
    assert_eq!((first["items"][0]["name"].as_str(), first["nextCursor"].as_str()), (Some("one"), Some("1")));
    let second = daytona(&t, "GET", "/sandbox?sort=name&order=asc&limit=1&cursor=1", Value::Null).await.json();
    assert_eq!((second["items"][0]["name"].as_str(), &second["nextCursor"]), (Some("two"), &Value::Null));
}

#[tokio::test]
async fn old_daytona_sdks_read_what_they_ask_for() {
    let t = TestApp::new().await;
    let sandbox = made(&t, json!({})).await;
    let old = |version: &'static str| [("x-daytona-sdk-version", version)];
    let path = "/daytona/api/sandbox?labels=null";
    let bare = with(&t, &old("0.105.1"), "GET", path, Value::Null).await.json();
    assert_eq!(bare.as_array().map(Vec::len), Some(1), "{bare}");
    let page = with(&t, &old("0.226.1"), "GET", path, Value::Null).await.json();
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1), "{page}");
    let paged =
        with(&t, &old("0.150.0"), "GET", "/daytona/api/sandbox/paginated?labels=null", Value::Null).await.json();
    assert_eq!(paged["total"], 1);

    // They look at the sandbox once more after its end.
    let one = format!("/daytona/api/sandbox/{}", id(&sandbox));
    assert_eq!(with(&t, &old("0.110.2"), "DELETE", &one, Value::Null).await.status, StatusCode::OK);
    let seen = with(&t, &old("0.110.2"), "GET", &one, Value::Null).await;
    assert_eq!((seen.status, seen.json()["state"].as_str()), (StatusCode::OK, Some("destroyed")));
    assert_eq!(with(&t, &old("0.226.1"), "GET", &one, Value::Null).await.status, StatusCode::NOT_FOUND);
    t.clock.advance(std::time::Duration::from_secs(61));
    assert_eq!(with(&t, &old("0.110.2"), "GET", &one, Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn daytona_networks_are_normalised_and_can_be_opened_again() {
    let t = TestApp::new().await;
    let sandbox = made(&t, json!({"networkBlockAll": true})).await;
    assert_eq!((sandbox["networkBlockAll"].as_bool(), &sandbox["networkAllowList"]), (Some(true), &Value::Null));
    let path = format!("/sandbox/{}/network-settings", id(&sandbox));
    let opened = daytona(&t, "POST", &path, json!({"networkBlockAll": false})).await;
    assert_eq!((opened.status, opened.json()["networkBlockAll"].as_bool()), (StatusCode::OK, Some(false)));
    let listed = daytona(&t, "POST", &path, json!({"networkAllowList": "8.8.8.8/16, 1.1.1.1/32"})).await;
    assert_eq!(listed.json()["networkAllowList"], "8.8.0.0/16,1.1.1.1/32", "{}", listed.text());
    let refused = daytona(&t, "POST", &path, json!({"networkBlockAl": true})).await;
    assert!(message(&refused).contains("did you mean `networkBlockAll`?"), "{}", message(&refused));
}

#[tokio::test]
async fn daytona_times_permissions_and_measurements_are_true() {
    let t = TestApp::new().await;
    let began = "2026-01-01T00:00:00Z";
    t.clock.advance(std::time::Duration::from_secs(600));
    let sandbox = made(&t, json!({})).await;
    assert_eq!(daytona(&t, "GET", "/regions", Value::Null).await.json()[0]["createdAt"], began);
    let key = daytona(&t, "GET", "/api-keys/current", Value::Null).await.json();
    assert_eq!(key["createdAt"], began);
    assert_eq!(key["permissions"], json!(["write:sandboxes", "delete:sandboxes"]));
    assert!(t.key.starts_with(key["value"].as_str().unwrap().trim_end_matches('*')), "{key}");
    let reader = ask(&t, "POST", "/api/keys", json!({"name": "reader", "scope": "read"})).await.json();
    let secret = reader["secret"].as_str().unwrap();
    let own = call(&t, secret, "GET", "/daytona/api/api-keys/current", Body::empty()).await.json();
    assert_eq!((own["name"].as_str(), &own["permissions"]), (Some("reader"), &json!([])));
    assert_eq!(own["createdAt"], "2026-01-01T00:10:00Z");

    // A change of labels is a change.
    t.clock.advance(std::time::Duration::from_secs(60));
    let changed = daytona(&t, "PUT", &format!("/sandbox/{}/labels", id(&sandbox)), json!({"labels": {"a": "b"}})).await;
    assert_eq!(
        (&sandbox["updatedAt"], &changed.json()["updatedAt"]),
        (&json!("2026-01-01T00:10:00Z"), &json!("2026-01-01T00:11:00Z"))
    );

    let path = format!("/sandbox/{}/telemetry/metrics?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z", id(&sandbox));
    let name = "daytona.sandbox.memory.limit";
    let series = daytona(&t, "GET", &format!("{path}&metricNames={name}"), Value::Null).await.json()["series"].clone();
    assert_eq!((series.as_array().map(Vec::len), &series[0]["metricName"]), (Some(1), &json!(name)));
    let point = &series[0]["dataPoints"][0];
    assert_eq!(point["timestamp"], "2026-01-01T00:11:00Z");
    assert!(point["value"].as_u64().is_some_and(|bytes| bytes > 0), "{series}");
    let all = daytona(&t, "GET", &path, Value::Null).await.json();
    assert_eq!(all["series"].as_array().map(Vec::len), Some(7));
    let refused = daytona(&t, "GET", &format!("{path}&metricNames=x"), Value::Null).await;
    assert!(message(&refused).starts_with("metricNames: there is no \"x\""), "{}", message(&refused));
}

#[tokio::test]
async fn a_template_that_is_not_built_is_called_neither_active_nor_ready() {
    let t = TestApp::new().await;
    let snapshot = daytona(&t, "GET", "/snapshots/code-interpreter", Value::Null).await.json();
    assert_eq!(snapshot["state"], "inactive");
    assert!(snapshot["errorReason"].as_str().unwrap().contains("cove template build code-interpreter"), "{snapshot}");
    assert_eq!(daytona(&t, "GET", "/snapshots/base", Value::Null).await.json()["state"], "active");
    let template = ask(&t, "GET", "/e2b/templates/code-interpreter", Value::Null).await.json();
    assert_eq!((&template["buildStatus"], &template["buildCount"]), (&json!("waiting"), &json!(0)));
    assert_eq!(ask(&t, "GET", "/e2b/templates/base", Value::Null).await.json()["buildStatus"], "ready");
    assert_eq!(template["createdAt"], "2026-01-01T00:00:00Z");
}

#[tokio::test]
async fn pages_of_other_origins_may_call_the_daytona_door() {
    let t = TestApp::new().await;
    let origin = ("origin", "https://app.example");
    let asked =
        [origin, ("access-control-request-method", "POST"), ("access-control-request-headers", "authorization")];
    for path in ["/daytona/api/sandbox", "/daytona/toolbox/x/process/execute", "/daytona/preview/x/3000/"] {
        let preflight = with(&t, &asked, "OPTIONS", path, Value::Null).await;
        assert_eq!(preflight.status, StatusCode::NO_CONTENT, "{path}");
        assert_eq!(preflight.headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(preflight.headers["access-control-allow-headers"], "authorization");
        assert!(preflight.headers["access-control-allow-methods"].to_str().unwrap().contains("DELETE"));
    }
    let answer = with(&t, &[origin], "GET", "/daytona/api/sandbox", Value::Null).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
    assert_eq!(answer.headers["access-control-allow-credentials"], "true");
    assert!(answer.headers["vary"].to_str().unwrap().to_lowercase().contains("origin"));
    let quiet =
        with(&t, &[origin, ("x-daytona-disable-cors", "true")], "GET", "/daytona/api/sandbox", Value::Null).await;
    assert!(!quiet.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn the_toolbox_is_port_2280_of_a_preview_for_those_who_may_use_it() {
    let t = TestApp::new().await;
    let sandbox = made(&t, json!({"public": true})).await;
    let id = id(&sandbox);
    let link = daytona(&t, "GET", &format!("/sandbox/{id}/ports/2280/preview-url"), Value::Null).await.json();
    let token = link["token"].as_str().unwrap().to_owned();
    let path = format!("/daytona/preview/{id}/2280/version");
    let keyless = async |path: &str, token: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header("x-daytona-preview-token", token);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = door::router(t.app.clone()).oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, serde_json::from_slice::<Value>(&bytes).unwrap_or_default())
    };
    let (status, told) = keyless(&path, Some(&token)).await;
    assert_eq!((status, told["version"].as_str()), (StatusCode::OK, Some(env!("CARGO_PKG_VERSION"))), "{told}");
    // Also where the sandbox is public: whoever sees a page of it may not run commands in it.
    assert_eq!(keyless(&path, None).await.0, StatusCode::UNAUTHORIZED);
    let traffic = daytona(&t, "GET", &format!("/sandbox/{id}/ports/3000/preview-url"), Value::Null).await.json();
    assert_eq!(keyless(&path, traffic["token"].as_str()).await.0, StatusCode::UNAUTHORIZED);
    let signed = daytona(&t, "GET", &format!("/sandbox/{id}/ports/2280/signed-preview-url"), Value::Null).await.json();
    let signed = signed["token"].as_str().unwrap();
    let (status, told) = keyless(&format!("/daytona/preview/{id}/2280~{signed}/version"), None).await;
    assert_eq!((status, told["version"].is_string()), (StatusCode::OK, true), "{told}");
    let other = format!("/daytona/preview/{id}/2280~{}/version", "0".repeat(32));
    assert_eq!(keyless(&other, None).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_failed_daytona_sandbox_can_be_recovered_without_a_start() {
    let t = TestApp::new().await;
    let sandbox = made(&t, json!({})).await;
    let path = format!("/sandbox/{}/recover?skipStart=true", id(&sandbox));
    assert_eq!(daytona(&t, "POST", &path, Value::Null).await.status, StatusCode::BAD_REQUEST);
    daytona(&t, "POST", &format!("/sandbox/{}/stop", id(&sandbox)), Value::Null).await;
    t.fake.fail_next("launch", ProviderError::Failed("no room".into()));
    let refused = daytona(&t, "POST", &format!("/sandbox/{}/start", id(&sandbox)), Value::Null).await;
    assert_ne!(refused.status, StatusCode::OK);
    let failed = daytona(&t, "GET", &format!("/sandbox/{}", id(&sandbox)), Value::Null).await.json();
    assert_eq!((&failed["state"], &failed["recoverable"]), (&json!("error"), &json!(true)), "{failed}");
    let recovered = daytona(&t, "POST", &path, Value::Null).await;
    assert_eq!(recovered.json()["state"], "stopped", "{}", recovered.text());
}

async fn e2b(t: &TestApp, method: &str, path: &str, body: Value) -> Answer {
    ask(t, method, &format!("/e2b{path}"), body).await
}

#[tokio::test]
async fn e2b_options_are_served_or_refused_by_name() {
    let t = TestApp::new().await;
    for (name, body) in [
        ("mcp", json!({"mcp": {"browserbase": {"apiKey": "x"}}})),
        ("iam", json!({"iam": {"tokens": {"a": {"audience": "b"}}}})),
        ("volumeMounts", json!({"volumeMounts": [{"name": "v", "path": "/v"}]})),
        ("httpsPorts", json!({"network": {"httpsPorts": [3000]}})),
        ("dnsServers", json!({"network": {"dnsServers": []}})),
        ("egressProxy", json!({"network": {"egressProxy": {"address": "p:1080"}}})),
        ("metadata", json!({"metdata": {"a": "b"}})),
        ("allowOut", json!({"network": {"alowOut": ["1.1.1.1"]}})),
    ] {
        for path in ["/sandboxes", "/v2/sandboxes"] {
            let mut body = body.clone();
            body["templateID"] = json!("base");
            let refused = e2b(&t, "POST", path, body).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{name}: {}", refused.text());
            assert!(message(&refused).contains(name), "{}", message(&refused));
        }
    }
    // As the original says it of a volume that is not there, and of a place where none can be.
    ask(&t, "POST", "/api/volumes", json!({"name": "there", "size": 1 << 20})).await;
    for (mount, expected) in [
        (json!({"name": "v", "path": "/v"}), "volumeMounts: volume 'v' not found"),
        (json!({"name": "there", "path": "/proc"}), "volumeMounts: nothing can be mounted there"),
    ] {
        let body = json!({"templateID": "base", "volumeMounts": [mount]});
        let refused = e2b(&t, "POST", "/v2/sandboxes", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text());
        assert!(message(&refused).starts_with(expected), "{}", message(&refused));
    }
    let body = json!({
        "templateID": "base", "mcp": null, "iam": null, "volumeMounts": [], "autoResume": {"policy": "any"},
        "network": {"httpsPorts": [], "rules": {}}, "fromALaterSdk": null,
    });
    let made = e2b(&t, "POST", "/v2/sandboxes", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    let detail = e2b(&t, "GET", &format!("/sandboxes/{id}"), Value::Null).await.json();
    assert_eq!(detail["lifecycle"]["autoResume"], true);
    for (name, value) in
        [("allowPublicTraffic", json!(false)), ("maskRequestHost", json!("x")), ("httpsPorts", json!([1]))]
    {
        let refused = e2b(&t, "PUT", &format!("/sandboxes/{id}/network"), json!({ name: value })).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{name}");
        assert!(message(&refused).starts_with(&format!("network.{name}: ")), "{}", message(&refused));
    }
    for (path, body, said) in [
        ("pause", json!({"memry": true}), "did you mean `memory`?"),
        ("connect", json!({"timout": 5}), "did you mean `timeout`?"),
        ("timeout", json!({"timeout": 5, "x": 1}), "unknown field `x`"),
    ] {
        let refused = e2b(&t, "POST", &format!("/sandboxes/{id}/{path}"), body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(message(&refused).contains(said), "{}", message(&refused));
    }
    let refused = e2b(&t, "GET", "/v2/sandboxes?stat=running", Value::Null).await;
    assert!(message(&refused).contains("did you mean `state`?"), "{}", message(&refused));
    let paused = e2b(&t, "POST", &format!("/sandboxes/{id}/pause"), json!({"requireHealthyGuest": true})).await;
    assert_eq!(paused.status, StatusCode::NO_CONTENT, "{}", paused.text());
}

#[tokio::test]
async fn an_e2b_id_may_have_the_name_of_a_machine_behind_it() {
    let t = TestApp::new().await;
    let made = e2b(&t, "POST", "/sandboxes", json!({"templateID": "base"})).await.json();
    let long = format!("{}-{}", made["sandboxID"].as_str().unwrap(), made["clientID"].as_str().unwrap());
    assert_eq!(e2b(&t, "GET", &format!("/sandboxes/{long}"), Value::Null).await.status, StatusCode::OK);
    let timeout = e2b(&t, "POST", &format!("/sandboxes/{long}/timeout"), json!({"timeout": 60})).await;
    assert_eq!(timeout.status, StatusCode::NO_CONTENT, "{}", timeout.text());
    assert_eq!(e2b(&t, "GET", &format!("/v2/sandboxes/{long}/logs"), Value::Null).await.status, StatusCode::OK);
    let health = with(&t, &[("host", &format!("49983-{long}.localhost:7070"))], "GET", "/health", Value::Null).await;
    assert_eq!(health.status, StatusCode::NO_CONTENT, "{}", health.text());
    assert_eq!(e2b(&t, "DELETE", &format!("/sandboxes/{long}"), Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(e2b(&t, "GET", "/v2/sandboxes", Value::Null).await.json(), json!([]));
}

#[tokio::test]
async fn e2b_logs_begin_with_the_newest_and_page_both_ways() {
    let t = TestApp::new().await;
    let made = e2b(&t, "POST", "/sandboxes", json!({"templateID": "base"})).await.json();
    let id = made["sandboxID"].as_str().unwrap();
    for _ in 0..5 {
        t.clock.advance(std::time::Duration::from_secs(1));
        e2b(&t, "POST", &format!("/sandboxes/{id}/pause"), Value::Null).await;
        t.clock.advance(std::time::Duration::from_secs(1));
        e2b(&t, "POST", &format!("/sandboxes/{id}/connect"), json!({"timeout": 100_000})).await;
    }
    let page = async |query: &str| {
        let answer = e2b(&t, "GET", &format!("/v2/sandboxes/{id}/logs?{query}"), Value::Null).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}: {}", answer.text());
        let logs = answer.json()["logs"].as_array().unwrap().clone();
        logs.iter()
            .map(|line| line["timestamp"].as_str().unwrap().parse::<cove_control::clock::Timestamp>().unwrap())
            .map(|at| at.as_millisecond())
            .collect::<Vec<i64>>()
    };
    let all = page("").await;
    assert!(all.len() > 10 && all.is_sorted(), "{all:?}");
    assert_eq!(page("limit=3").await, all[all.len() - 3..]);
    let mut backward = page("limit=3&direction=backward").await;
    assert_eq!(backward[0], all[all.len() - 1]);
    backward.reverse();
    assert_eq!(backward, all[all.len() - 3..]);
    // From there on down, until nothing is left.
    let cursor = backward[0];
    let older = page(&format!("direction=backward&cursor={cursor}")).await;
    assert!(older.iter().all(|at| *at < cursor) && older.len() + 3 >= all.len() - 3, "{older:?}");
    assert_eq!(page("direction=forward&limit=2").await, all[..2]);
    assert_eq!(page(&format!("cursor={}", all[all.len() - 1])).await.last(), all.last());
    assert_eq!(page("level=error").await, Vec::<i64>::new());
    assert!(!page("level=info&search=paused").await.is_empty());
    let v1 = e2b(&t, "GET", &format!("/sandboxes/{id}/logs?limit=2"), Value::Null).await.json();
    let last = v1["logEntries"][1]["timestamp"].as_str().unwrap().parse::<cove_control::clock::Timestamp>().unwrap();
    assert_eq!(last.as_millisecond(), all[all.len() - 1]);
    // The same for a long life: its explanation ends with what happened last.
    let explained = ask(&t, "GET", &format!("/api/sandboxes/{id}/explain"), Value::Null).await.json();
    let latest = explained["events"].as_array().unwrap().last().unwrap()["at"].as_str().unwrap().to_owned();
    assert_eq!(latest.parse::<cove_control::clock::Timestamp>().unwrap().as_millisecond(), all[all.len() - 1]);
    for query in ["level=loud", "direction=up", "cursor=now", "limit=many"] {
        let refused = e2b(&t, "GET", &format!("/v2/sandboxes/{id}/logs?{query}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test]
async fn e2b_lists_filter_by_any_name_of_a_template() {
    let t = TestApp::new().await;
    e2b(&t, "POST", "/sandboxes", json!({"templateID": "code-interpreter-v1"})).await;
    e2b(&t, "POST", "/sandboxes", json!({"templateID": "base"})).await;
    let many = async |name: &str| {
        let answer = e2b(&t, "GET", &format!("/v2/sandboxes?template={name}"), Value::Null).await;
        answer.json().as_array().map(Vec::len)
    };
    assert_eq!(many("code-interpreter-v1").await, Some(1));
    assert_eq!(many("code-interpreter").await, Some(1));
    assert_eq!(many("no-such").await, Some(0));
}

#[tokio::test]
async fn an_operator_may_let_clients_in_that_send_no_token() {
    let health = async |t: &TestApp, body: Value| {
        let made = e2b(t, "POST", "/sandboxes", body).await.json();
        let id = made["sandboxID"].as_str().unwrap().to_owned();
        let host = format!("49983-{id}.localhost");
        let listed = with(t, &[("host", &host)], "GET", "/envs", Value::Null).await;
        (made.get("envdAccessToken").is_some(), listed)
    };
    let usual = TestApp::new().await;
    let (token, refused) = health(&usual, json!({"templateID": "base"})).await;
    assert!(token);
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(message(&refused).contains("e2b.tokens_optional"), "{}", message(&refused));
    let e2b = cove_control::config::E2b { tokens_optional: true, ..Default::default() };
    let config = cove_control::config::Config { e2b, ..Default::default() };
    let open = TestApp::with(config).await;
    let (token, listed) = health(&open, json!({"templateID": "base"})).await;
    assert!(!token);
    assert_eq!(listed.status, StatusCode::OK, "{}", listed.text());
    // Who asks for a token has one all the same.
    let (token, refused) = health(&open, json!({"templateID": "base", "secure": true})).await;
    assert!(token);
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
}
