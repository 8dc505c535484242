//! What a key may not do: read what it may not see, act with a read key, reach the server's neighbourhood.

use std::os::unix::fs::PermissionsExt as _;

use axum::http::StatusCode;
use cove_control::key::Scope;
use cove_control::key::manage::NewKey;
use serde_json::{Value, json};

use crate::api::call;
use crate::harness::TestApp;

async fn key(t: &TestApp, scope: Scope, organisation: Option<&str>) -> String {
    let organisation = organisation.map(ToOwned::to_owned);
    let new = NewKey { name: "k".into(), scope, expires_in_seconds: None, organisation };
    t.app.create_key(&t.caller, new).await.unwrap().1
}

async fn stranger(t: &TestApp, scope: Scope) -> String {
    t.app.create_organisation(&t.caller, "stranger", "stranger").await.unwrap();
    key(t, scope, Some("stranger")).await
}

async fn sandbox(t: &TestApp) -> String {
    let made = call(t, &t.key, "POST", "/api/sandboxes", json!({"name": "theirs"}).to_string()).await.json();
    made["id"].as_str().unwrap().to_owned()
}

/// Every call of every dialect that changes something or hands out the means to.
fn acts(id: &str) -> Vec<(&'static str, String, Value)> {
    let of = |method, path: &str, body| (method, path.replace("{id}", id), body);
    vec![
        of("POST", "/api/sandboxes/{id}/touch", json!({})),
        of("POST", "/api/sandboxes/{id}/stop", json!({})),
        of("GET", "/api/sandboxes/{id}/tokens", Value::Null),
        of("GET", "/api/sandboxes/{id}/ports/80/link", Value::Null),
        of("POST", "/api/sandboxes/{id}/ports/80/proxy/", json!({})),
        of("GET", "/api/sandboxes/{id}/ports/80/proxy/", Value::Null),
        of("POST", "/api/sessions", json!({"sandbox_id": "{id}"})),
        of("POST", "/daytona/toolbox/{id}/process/execute", json!({"command": "id"})),
        of("POST", "/daytona/toolbox/{id}/files/folder?path=/tmp/x&mode=755", json!({})),
        of("DELETE", "/daytona/toolbox/{id}/files?path=/tmp/x", Value::Null),
        of("POST", "/daytona/toolbox/{id}/process/session", json!({"sessionId": "s"})),
        of("GET", "/daytona/api/sandbox/{id}/ports/80/preview-url", Value::Null),
        of("GET", "/daytona/api/sandbox/{id}/ports/2280/preview-url", Value::Null),
        of("GET", "/daytona/preview/{id}/80/", Value::Null),
        of("POST", "/daytona/api/sandbox/{id}/last-activity", Value::Null),
        of("POST", "/daytona/api/sandbox/{id}/stop", Value::Null),
        of("DELETE", "/daytona/api/sandbox/{id}", Value::Null),
        of("POST", "/e2b/sandboxes/{id}/connect", json!({"timeout": 1})),
        of("POST", "/e2b/sandboxes/{id}/pause", json!({})),
        of("POST", "/e2b/sandboxes/{id}/timeout", json!({"timeout": 1})),
        of("PUT", "/e2b/sandboxes/{id}/network", json!({})),
        of("DELETE", "/e2b/sandboxes/{id}", Value::Null),
    ]
}

#[tokio::test]
async fn who_may_only_look_cannot_act_through_any_door() {
    let t = TestApp::new().await;
    let id = sandbox(&t).await;
    let reader = key(&t, Scope::Read, None).await;
    for (method, path, body) in acts(&id) {
        let body = body.to_string().replace("{id}", &id);
        let body = if body == "null" { String::new() } else { body };
        let answer = call(&t, &reader, method, &path, body).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path}: {}", answer.text());
    }
    for path in ["/api/sandboxes/{id}", "/e2b/sandboxes/{id}", "/daytona/api/sandbox/{id}", "/daytona/api/sandbox"] {
        let answer = call(&t, &reader, "GET", &path.replace("{id}", &id), String::new()).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        let whole = t.app.sandbox(&t.caller, &id).await.unwrap();
        for secret in [&whole.access_token, &whole.traffic_token] {
            assert!(!answer.text().contains(secret.as_str()), "{path} tells a token");
        }
    }
    let looked = call(&t, &reader, "GET", &format!("/daytona/toolbox/{id}/files?path=/"), String::new()).await;
    assert_eq!(looked.status, StatusCode::OK, "{}", looked.text());
}

#[tokio::test]
async fn a_tenant_cannot_open_the_servers_neighbourhood() {
    let t = TestApp::new().await;
    let tenant = stranger(&t, Scope::Admin).await;
    call(&t, &tenant, "POST", "/api/sandboxes", json!({"name": "mine"}).to_string()).await;
    for target in
        ["169.254.169.254", "10.0.0.0/8", "127.0.0.1:7070", "192.168.1.1:22", "[fd00:ec2::254]:80", "0.0.0.0/8"]
    {
        let network = json!({"access": "open", "allow": [target]});
        for (method, path, body) in [
            ("POST", "/api/sandboxes", json!({"network": network})),
            ("PUT", "/api/sandboxes/mine/network", network.clone()),
        ] {
            let answer = call(&t, &tenant, method, path, body.to_string()).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path} {target}: {}", answer.text());
        }
        // This dialect never opens such addresses, for any caller.
        let body = json!({"templateID": "base", "network": {"allowOut": [target]}});
        let answer = call(&t, &tenant, "POST", "/e2b/sandboxes", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{target}: {}", answer.text());
    }
    let public = json!({"network": {"access": "closed", "allow": ["93.184.216.0/24:443", "0.0.0.0/0"]}});
    let answer = call(&t, &tenant, "POST", "/api/sandboxes", public.to_string()).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    let private = json!({"network": {"access": "closed", "allow": ["10.1.2.3:5432"]}});
    let answer = call(&t, &t.key, "POST", "/api/sandboxes", private.to_string()).await;
    assert_eq!(answer.status, StatusCode::CREATED, "an operator may: {}", answer.text());
}

#[tokio::test]
async fn a_tenants_webhook_cannot_reach_the_servers_neighbourhood() {
    let t = TestApp::new().await;
    let tenant = stranger(&t, Scope::Admin).await;
    for url in
        ["http://127.0.0.1:7070/", "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/", "http://017700000001/"]
    {
        let answer = call(&t, &tenant, "POST", "/api/webhooks", json!({"url": url}).to_string()).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{url}: {}", answer.text());
    }
    // A name is judged by where it leads, when it is asked.
    let heard = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}/", heard.local_addr().unwrap().port());
    let made = call(&t, &tenant, "POST", "/api/webhooks", json!({"url": url}).to_string()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    t.app.begin();
    call(&t, &tenant, "POST", "/api/sandboxes", json!({}).to_string()).await;
    let refused = async {
        loop {
            let jobs = call(&t, &tenant, "GET", "/api/jobs", String::new()).await.text();
            if jobs.contains("error") && jobs.contains("webhook.deliver") && jobs.contains("\"attempts\":1") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        _ = heard.accept() => panic!("the server called its own host for a tenant"),
        () = refused => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(20)) => panic!("the delivery was never tried"),
    }
    t.app.ending().cancel();
}

#[tokio::test]
async fn keys_are_counted_at_every_door() {
    let t = TestApp::new().await;
    let tenant = stranger(&t, Scope::Write).await;
    let quota = cove_control::key::Quota { requests_per_second: 1, ..Default::default() };
    t.app.set_quota(&t.caller, "stranger", quota).await.unwrap();
    for path in ["/api/sandboxes", "/e2b/sandboxes", "/daytona/api/sandbox"] {
        let mut last = StatusCode::OK;
        for _ in 0..11 {
            last = call(&t, &tenant, "GET", path, String::new()).await.status;
        }
        assert_eq!(last, StatusCode::TOO_MANY_REQUESTS, "{path}");
        t.clock.advance(std::time::Duration::from_secs(60));
    }
}

#[tokio::test]
async fn an_organisations_keys_share_its_rate() {
    let t = TestApp::new().await;
    let tenant = stranger(&t, Scope::Admin).await;
    let rates = cove_control::key::Quota {
        requests_per_second: 10,
        organisation_requests_per_second: Some(2),
        ..Default::default()
    };
    t.app.set_quota(&t.caller, "stranger", rates).await.unwrap();
    let mut keys = vec![tenant.clone()];
    for name in ["second", "third"] {
        let made = call(&t, &tenant, "POST", "/api/keys", json!({"name": name, "scope": "read"}).to_string()).await;
        keys.push(made.json()["secret"].as_str().unwrap().to_owned());
    }
    let mut left = Vec::new();
    let refused = loop {
        let key = &keys[left.len() % keys.len()];
        let answer = call(&t, key, "GET", "/api/sandboxes", String::new()).await;
        assert_eq!(answer.headers["ratelimit-limit"], "20", "the tighter of the two is told");
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            break answer;
        }
        left.push(answer.headers["ratelimit-remaining"].to_str().unwrap().parse::<u32>().unwrap());
    };
    assert_eq!(left, (0..18).rev().collect::<Vec<u32>>(), "two made keys, the rest were lists");
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(refused.text().contains("this organisation's keys"), "{}", refused.text());
    let ours = call(&t, &t.key, "GET", "/api/sandboxes", String::new()).await;
    assert_eq!(ours.status, StatusCode::OK, "another organisation has its own");
}

#[tokio::test]
async fn other_users_of_the_host_cannot_read_the_store() {
    let t = TestApp::new().await;
    sandbox(&t).await;
    for file in ["cove.db", "cove.db-wal", "cove.db-shm", "archive", "api-key"] {
        let mode = std::fs::metadata(t.app.config().data.join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file} has mode {mode:o}");
    }
}

#[tokio::test]
async fn the_maximum_of_running_sandboxes_holds_for_starts_at_once_and_for_waking() {
    let t = TestApp::new().await;
    let tenant = stranger(&t, Scope::Write).await;
    let names: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    for name in &names {
        let body = json!({"name": name, "timers": {"auto_resume": true}});
        call(&t, &tenant, "POST", "/api/sandboxes", body.to_string()).await;
        let stopped = call(&t, &tenant, "POST", &format!("/api/sandboxes/{name}/stop"), String::new()).await;
        assert_eq!(stopped.status, StatusCode::OK, "{}", stopped.text());
    }
    let quota = cove_control::key::Quota { running_sandboxes: 2, ..Default::default() };
    t.app.set_quota(&t.caller, "stranger", quota).await.unwrap();
    let running = async || {
        let listed = call(&t, &tenant, "GET", "/api/sandboxes?state=running", String::new()).await.json();
        listed["items"].as_array().unwrap().len()
    };
    let starts = names.iter().map(|name| {
        let (t, tenant) = (&t, &tenant);
        async move { call(t, tenant, "POST", &format!("/api/sandboxes/{name}/start"), String::new()).await.status }
    });
    let answers = futures::future::join_all(starts).await;
    assert_eq!(answers.iter().filter(|status| **status == StatusCode::OK).count(), 2, "{answers:?}");
    assert_eq!(running().await, 2);
    for name in &names {
        let body = json!({"shell": "true"}).to_string();
        call(&t, &tenant, "POST", &format!("/api/sandboxes/{name}/exec"), body).await;
    }
    assert_eq!(running().await, 2, "a request wakes no more than may run");
}

#[tokio::test]
async fn a_sandbox_of_any_dialect_asks_for_its_token_unless_told_otherwise() {
    let t = TestApp::new().await;
    let made = call(&t, &t.key, "POST", "/e2b/sandboxes", json!({"templateID": "base"}).to_string()).await.json();
    let id = made["sandboxID"].as_str().unwrap();
    assert!(made["envdAccessToken"].is_string(), "{made}");
    let (method, path) = ("GET", "/files?path=/etc/passwd");
    let answer = crate::api::at_host(&t, &format!("49983-{id}.localhost"), method, path).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{}", answer.text());
}

#[tokio::test]
async fn what_one_door_remembers_another_leaves_alone() {
    let t = TestApp::new().await;
    let body = json!({"templateID": "base", "network": {"maskRequestHost": "inside.example"}});
    let made = call(&t, &t.key, "POST", "/e2b/sandboxes", body.to_string()).await.json();
    let id = made["sandboxID"].as_str().unwrap();
    let key = async || {
        let path = format!("/daytona/api/sandbox/{id}/signing-key");
        call(&t, &t.key, "GET", &path, String::new()).await.text()
    };
    let before = key().await;
    let network = json!({"denyOut": ["93.184.216.0/24"]});
    let changed = call(&t, &t.key, "PUT", &format!("/e2b/sandboxes/{id}/network"), network.to_string()).await;
    assert_eq!(changed.status, StatusCode::NO_CONTENT, "{}", changed.text());
    assert_eq!(key().await, before, "URLs that were signed before still open their files");
    let door = t.app.sandbox(&t.caller, id).await.unwrap().door;
    assert_eq!(door["e2b"]["mask_request_host"], "inside.example", "{door}");
    assert!(door["daytona"]["signing_key"].is_string(), "{door}");
}
