//! Images, snapshots, forks and volumes as Daytona's SDKs ask for them.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use cove_control::image::source::Config;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tower::ServiceExt as _;

use crate::api::ask;
use crate::harness::{TestApp, eventually};
use crate::shelf::Item;
use crate::templates::Workbench;

/// One server for many calls: what it has in memory lasts from one to the next.
struct Client<'a> {
    t: &'a TestApp,
    router: Router,
}

struct Answer {
    status: StatusCode,
    bytes: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }
}

impl<'a> Client<'a> {
    fn new(t: &'a TestApp) -> Client<'a> {
        Client { t, router: cove_control::door::router(t.app.clone()) }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        Answer { status, bytes: axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec() }
    }

    async fn call(&self, key: &str, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}"));
        self.send(request.body(body.into()).unwrap()).await
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call(&self.t.key, method, &format!("/daytona/api{path}"), body).await
    }

    async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.ask(method, path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{method} {path}: {}", answer.text());
        answer.json()
    }

    async fn get(&self, path: &str) -> Value {
        self.ok("GET", path, Value::Null).await
    }

    /// A sandbox or a snapshot once it is in one of these states.
    async fn reached(&self, path: &str, states: &[&str]) -> Value {
        eventually(&format!("{path} is {states:?}"), || async {
            let seen = self.ask("GET", path, Value::Null).await;
            seen.status == StatusCode::OK && states.contains(&seen.json()["state"].as_str().unwrap_or_default())
        })
        .await;
        self.get(path).await
    }
}

fn message(answer: &Answer) -> String {
    answer.json()["message"].as_str().unwrap_or_default().to_owned()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

async fn stranger(t: &TestApp) -> String {
    ask(t, "POST", "/api/organisations", json!({"id": "strangers", "name": "Strangers"})).await;
    let made = ask(t, "POST", "/api/keys", json!({"name": "k", "organisation": "strangers", "scope": "write"})).await;
    made.json()["secret"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_sandbox_of_an_image_is_told_of_at_once_and_made_when_it_is_there() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    let body =
        json!({"name": "of-image", "labels": {"a": "b"}, "buildInfo": {"dockerfileContent": "FROM debian:12\n"}});
    let waits = client.ok("POST", "/sandbox", body.clone()).await;
    assert_eq!(waits["state"], "pending_build");
    assert_eq!((&waits["name"], &waits["labels"]["a"]), (&json!("of-image"), &json!("b")));
    let path = format!("/sandbox/{}", text(&waits["id"]));
    let made = client.reached(&path, &["started"]).await;
    assert_eq!((&made["id"], &made["name"], &made["snapshot"]), (&waits["id"], &json!("of-image"), &Value::Null));
    assert!(text(&made["buildInfo"]["snapshotRef"]).len() == 36, "{made}");
    // The image has no user of this dialect's.
    assert_eq!(made["user"], "root");
    let url = client.get(&format!("{path}/build-logs-url")).await;
    assert!(text(&url["url"]).ends_with(&format!("/daytona/api{path}/build-logs")), "{url}");
    let log = client.ask("GET", &format!("{path}/build-logs?follow=true"), Value::Null).await;
    assert!(log.text().contains("debian:12"), "{}", log.text());
    // What it waited for is no snapshot, and is gone.
    let listed = client.get("/snapshots").await;
    assert_eq!(listed["total"], 2, "{listed}");
    eventually("its template is gone", || async {
        ask(t, "GET", "/api/templates", Value::Null).await.json().as_array().is_none_or(|all| all.len() == 2)
    })
    .await;
    let again = client.ask("POST", "/sandbox", body).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.text());
    client.ok("DELETE", &path, Value::Null).await;
}

#[tokio::test]
async fn sandboxes_that_wait_for_their_image_are_in_the_lists() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    client.ok("POST", "/sandbox", json!({"name": "there"})).await;
    let mut hold = t.fake.hold_next("make_layer");
    let body = json!({"name": "waits", "labels": {"a": "b"}, "buildInfo": {"dockerfileContent": "FROM debian:12\n"}});
    let waits = client.ok("POST", "/sandbox", body).await;
    hold.reached().await;
    let list = async |query: &str| {
        let listed = client.get(&format!("/sandbox?{query}")).await;
        let names: Vec<String> =
            listed["items"].as_array().unwrap().iter().map(|item| text(&item["name"]).to_owned()).collect();
        (names, listed)
    };
    let (names, listed) = list("").await;
    assert_eq!(names, ["waits", "there"], "the newest first");
    let shown = &listed["items"][0];
    assert_eq!((&shown["id"], &shown["state"]), (&waits["id"], &json!("building_snapshot")));
    assert_eq!((&shown["labels"]["a"], &shown["snapshot"]), (&json!("b"), &Value::Null));
    for (query, names) in [
        ("order=asc", &["there", "waits"][..]),
        ("sort=name&order=asc", &["there", "waits"]),
        ("states=building_snapshot", &["waits"]),
        ("states=started,building_snapshot", &["waits", "there"]),
        ("states=started", &["there"]),
        ("states=build_failed", &[]),
        ("labels=%7B%22a%22%3A%22b%22%7D", &["waits"]),
        ("labels=%7B%22a%22%3A%22c%22%7D", &[]),
        ("name=WA", &["waits"]),
        ("snapshots=base", &["there"]),
        ("regionIds=elsewhere", &[]),
    ] {
        assert_eq!(list(query).await.0, names, "{query}");
    }
    // Page by page, in both directions, each once.
    for (order, names) in [("desc", ["waits", "there"]), ("asc", ["there", "waits"])] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        for _ in 0..4 {
            let (page, listed) = list(&format!("limit=1&order={order}{cursor}")).await;
            assert!(page.len() <= 1, "no more than was asked for: {page:?}");
            seen.extend(page);
            match listed["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, names, "{order}");
    }
    assert_eq!(client.get("/sandbox/paginated").await["total"], 2);
    let refused = client.ask("GET", "/sandbox?cursor=waiting.x", Value::Null).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text());
    let other = stranger(t).await;
    let theirs = client.call(&other, "GET", "/daytona/api/sandbox", Value::Null).await.json();
    assert_eq!(theirs["items"], json!([]), "{theirs}");
    hold.let_through();
    client.reached(&format!("/sandbox/{}", text(&waits["id"])), &["started"]).await;
    assert_eq!(list("").await.0.len(), 2, "once it is there it is there once");
}

#[tokio::test]
async fn an_image_that_is_not_there_fails_by_name_and_can_be_deleted() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    let body = json!({"buildInfo": {"dockerfileContent": "FROM nowhere:1\n"}});
    let waits = client.ok("POST", "/sandbox", body).await;
    let path = format!("/sandbox/{}", text(&waits["id"]));
    let failed = client.reached(&path, &["build_failed"]).await;
    assert!(text(&failed["errorReason"]).contains("nowhere:1"), "{failed}");
    let listed = client.get("/sandbox?states=build_failed").await;
    assert_eq!(listed["items"][0]["id"], waits["id"], "{listed}");
    let other = stranger(t).await;
    for (method, below) in [("GET", ""), ("DELETE", ""), ("GET", "/build-logs"), ("GET", "/build-logs-url")] {
        let refused = client.call(&other, method, &format!("/daytona/api{path}{below}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{method} {below}");
    }
    client.ok("DELETE", &path, Value::Null).await;
    assert_eq!(client.ask("GET", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.ask("DELETE", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_is_wrong_with_a_sandbox_of_an_image_is_said_before_it_is_built() {
    let bench = Workbench::new().await;
    let client = Client::new(&bench.t);
    let with = |more: Value| {
        let mut body = json!({"buildInfo": {"dockerfileContent": "FROM debian:12\n"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (body, expected) in [
        (with(json!({"snapshot": "base"})), "not from both"),
        (with(json!({"cpu": 4000})), "maximum"),
        (with(json!({"volumes": [{"volumeId": "v", "mountPath": "/v"}]})), "volumes: volume v not found"),
        (with(json!({"volumes": [{"volumeId": "v", "mountPoint": "/v"}]})), "mountPoint"),
        (with(json!({"autoStopInterval": -1})), "autoStopInterval"),
        (json!({"buildInfo": {"dockerfileContent": ""}}), "dockerfileContent"),
        (json!({"buildInfo": {"dockerfile": "FROM x"}}), "unknown field `dockerfile`"),
        (
            json!({"buildInfo": {"dockerfileContent": "FROM x\nCOPY a b\n", "contextHashes": ["0".repeat(32)]}}),
            "were never sent",
        ),
    ] {
        let refused = client.ask("POST", "/sandbox", body.clone()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}: {}", refused.text());
        assert!(message(&refused).contains(expected), "{body}: {}", message(&refused));
    }
    assert_eq!(client.get("/snapshots").await["total"], 2);
    assert_eq!(client.get("/sandbox").await["items"], json!([]));
}

#[tokio::test]
async fn a_snapshot_of_an_image_is_made_found_used_and_deleted() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    bench.shelf.put(
        "app:1",
        Item {
            files: vec![("/etc/passwd", "root:x:0:0::/root:/bin/sh\n")],
            config: Config { env: [("FROM".into(), "image".into())].into(), ..Config::default() },
            ..Item::default()
        },
    );
    let body = json!({"name": "My-App:1.0", "imageName": "app:1", "cpu": 2, "memory": 2, "regionId": "us"});
    let begun = client.ok("POST", "/snapshots", body.clone()).await;
    assert_eq!((&begun["state"], &begun["name"]), (&json!("pulling"), &json!("My-App:1.0")));
    let id = text(&begun["id"]).to_owned();
    let made = client.reached(&format!("/snapshots/{id}"), &["active"]).await;
    assert_eq!((&made["cpu"], &made["mem"], &made["imageName"]), (&json!(2), &json!(2), &json!("app:1")));
    for name in ["My-App:1.0", "my-app:1.0"] {
        assert_eq!(client.get(&format!("/snapshots/{name}")).await["id"], *id);
    }
    let again = client.ask("POST", "/snapshots", body).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.text());
    let log = client.ask("GET", &format!("/snapshots/{id}/build-logs"), Value::Null).await;
    assert!(log.text().contains("app:1"), "{}", log.text());
    for snapshot in ["My-App:1.0", &id] {
        let sandbox = client.ok("POST", "/sandbox", json!({"snapshot": snapshot})).await;
        assert_eq!((&sandbox["state"], &sandbox["cpu"]), (&json!("started"), &json!(2)));
        assert_eq!(sandbox["snapshot"], "My-App:1.0");
    }
    let other = stranger(t).await;
    for (method, below) in [("GET", ""), ("DELETE", ""), ("POST", "/activate"), ("GET", "/build-logs")] {
        let refused = client.call(&other, method, &format!("/daytona/api/snapshots/{id}{below}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{method} {below}: {}", refused.text());
    }
    let path = format!("/snapshots/{id}");
    let put_away = client.ask("POST", &format!("{path}/deactivate"), Value::Null).await;
    assert_eq!(put_away.status, StatusCode::NO_CONTENT);
    assert_eq!(client.get(&path).await["state"], "inactive");
    let refused = client.ask("POST", "/sandbox", json!({"snapshot": id})).await;
    assert!(message(&refused).contains("not active"), "{}", message(&refused));
    assert_eq!(client.ok("POST", &format!("{path}/activate"), Value::Null).await["state"], "active");
    client.ok("DELETE", &path, Value::Null).await;
    assert_eq!(client.ask("GET", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn how_anothers_public_snapshot_was_made_is_not_shown() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    let dockerfile = "FROM debian:12\nENV TOKEN=hunter2\n";
    let body = json!({"name": "shown", "buildInfo": {"dockerfileContent": dockerfile}});
    let begun = client.ok("POST", "/snapshots", body).await;
    let path = format!("/snapshots/{}", text(&begun["id"]));
    let made = client.reached(&path, &["active"]).await;
    assert_eq!(made["buildInfo"]["dockerfileContent"], dockerfile, "{made}");
    let public = ask(t, "PATCH", "/api/templates/shown", json!({"public": true})).await;
    assert_eq!(public.status, StatusCode::OK, "{}", public.text());
    let other = stranger(t).await;
    let seen = client.call(&other, "GET", &format!("/daytona/api{path}"), Value::Null).await;
    let shown = seen.json();
    assert_eq!((&shown["name"], &shown["buildInfo"]), (&json!("shown"), &Value::Null), "{shown}");
    assert!(!seen.text().contains("hunter2"), "{shown}");
    for below in ["/build-logs", "/build-logs-url"] {
        let refused = client.call(&other, "GET", &format!("/daytona/api{path}{below}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{below}");
    }
}

#[tokio::test]
async fn built_in_snapshots_are_everybodys_and_nobodys_to_change() {
    let t = &TestApp::new().await;
    let client = &Client::new(t);
    let listed = client.get("/snapshots?sort=name&order=desc&limit=1").await;
    assert_eq!((&listed["total"], &listed["totalPages"]), (&json!(2), &json!(2)));
    assert_eq!(listed["items"][0]["name"], "code-interpreter");
    let base = client.get("/snapshots/base").await;
    assert_eq!(client.get(&format!("/snapshots/{}", text(&base["id"]))).await, base);
    for (method, below) in [("DELETE", ""), ("POST", "/activate"), ("POST", "/deactivate")] {
        let refused = client.ask(method, &format!("/snapshots/base{below}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{method} {below}");
    }
    let sandbox = client.ok("POST", "/sandbox", json!({"snapshot": base["id"]})).await;
    assert_eq!((&sandbox["snapshot"], &sandbox["user"]), (&json!("base"), &json!("daytona")));
    for (body, expected) in [
        (json!({"name": "x"}), "imageName or a buildInfo"),
        (json!({"name": "", "imageName": "a"}), "needs a name"),
        (json!({"name": "base", "imageName": "a"}), "already exists"),
        (json!({"name": "x", "imageName": "a", "gpu": 1}), "GPUs"),
        (json!({"name": "x", "imageName": "a", "sandboxClass": "windows"}), "sandboxClass"),
        (json!({"name": "x", "imageNmae": "a"}), "did you mean `imageName`"),
    ] {
        let refused = client.ask("POST", "/snapshots", body.clone()).await;
        assert!(refused.status.is_client_error(), "{body}: {}", refused.text());
        assert!(message(&refused).contains(expected), "{body}: {}", message(&refused));
    }
}

#[tokio::test]
async fn a_sandbox_is_frozen_copied_and_asked_where_it_comes_from() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    let source = client.ok("POST", "/sandbox", json!({})).await;
    let id = text(&source["id"]);
    let path = format!("/sandbox/{id}");
    let preview = client.get(&format!("{path}/ports/3000/signed-preview-url")).await;
    let seen =
        client.ok("POST", &format!("{path}/snapshot"), json!({"name": "Frozen:1", "includeMemory": false})).await;
    assert_eq!(seen["state"], "started");
    let frozen = client.get("/snapshots/Frozen:1").await;
    assert_eq!((&frozen["state"], &frozen["sourceSandboxId"]), (&json!("active"), &json!(id)));
    let of_it = client.get(&format!("/snapshots?sourceSandboxId={id}")).await;
    assert_eq!((&of_it["total"], &of_it["items"][0]["name"]), (&json!(1), &json!("Frozen:1")));
    let from = client.ok("POST", "/sandbox", json!({"snapshot": "Frozen:1"})).await;
    assert_eq!((&from["user"], &from["env"]), (&json!("daytona"), &json!({})));
    for (body, expected) in [
        (json!({"name": "Frozen:1"}), "already exists"),
        (json!({"name": "x", "includeMemory": true}), "includeMemory"),
        (json!({}), "needs a name"),
    ] {
        let refused = client.ask("POST", &format!("{path}/snapshot"), body).await;
        assert!(message(&refused).contains(expected), "{}", message(&refused));
    }

    let fork = client.ok("POST", &format!("{path}/fork"), json!({"name": "copy"})).await;
    assert_eq!((&fork["state"], &fork["name"]), (&json!("started"), &json!("copy")));
    let copy = text(&fork["id"]);
    // What opens the source does not open the copy.
    let link = text(&preview["url"]).split_once("localhost").unwrap().1;
    let without_a_key = async |path: &str| {
        let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
        client.send(request).await.status
    };
    // Nothing listens there, which is told to those who are let in.
    assert_ne!(without_a_key(link).await, StatusCode::UNAUTHORIZED);
    assert_eq!(without_a_key(&link.replace(id, copy)).await, StatusCode::UNAUTHORIZED);
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|one| text(&one["id"]).to_owned()).collect::<Vec<_>>();
    assert_eq!(client.get(&format!("/sandbox/{copy}/parent")).await["id"], *id);
    assert_eq!(ids(&client.get(&format!("/sandbox/{copy}/ancestors")).await), [id]);
    assert_eq!(ids(&client.get(&format!("{path}/forks")).await), [copy]);
    assert_eq!(client.ask("GET", &format!("{path}/parent"), Value::Null).await.status, StatusCode::NOT_FOUND);
    let other = stranger(t).await;
    for (method, below) in [
        ("POST", "fork"),
        ("POST", "snapshot"),
        ("POST", "backup"),
        ("GET", "forks"),
        ("GET", "parent"),
        ("GET", "ancestors"),
    ] {
        let refused = client.call(&other, method, &format!("/daytona/api{path}/{below}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{method} {below}: {}", refused.text());
    }
    client.ok("DELETE", &format!("/sandbox/{copy}"), Value::Null).await;
    assert_eq!(client.get(&format!("{path}/forks")).await, json!([]));
    assert_eq!(ids(&client.get(&format!("{path}/forks?includeDestroyed=true")).await), [copy]);
    let kept = client.ok("POST", &format!("{path}/backup"), Value::Null).await;
    assert_eq!(kept["backupState"], "Completed");
}

#[tokio::test]
async fn volumes_are_shared_and_kept_while_somebody_has_them() {
    let bench = Workbench::new().await;
    let (t, client) = (&bench.t, Client::new(&bench.t));
    let volume = client.ok("POST", "/volumes", json!({"name": "data"})).await;
    assert_eq!((&volume["state"], &volume["errorReason"]), (&json!("ready"), &Value::Null));
    assert_eq!(client.get("/volumes/by-name/data").await["id"], volume["id"]);
    let by_id = client.ask("GET", &format!("/volumes/by-name/{}", text(&volume["id"])), Value::Null).await;
    assert_eq!(by_id.status, StatusCode::NOT_FOUND);
    let mounts = json!([{"volumeId": "data", "mountPath": "/mnt/data", "subpath": "a"}]);
    let sandbox = client.ok("POST", "/sandbox", json!({"volumes": mounts})).await;
    let shown = json!([{"volumeId": volume["id"], "mountPath": "/mnt/data", "subpath": "a"}]);
    assert_eq!(sandbox["volumes"], shown);
    let path = format!("/volumes/{}", text(&volume["id"]));
    let refused = client.ask("DELETE", &path, Value::Null).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
    let other = stranger(t).await;
    for (method, path) in [("GET", path.as_str()), ("DELETE", &path), ("GET", "/volumes/by-name/data")] {
        let refused = client.call(&other, method, &format!("/daytona/api{path}"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{method} {path}");
    }
    client.ok("DELETE", &format!("/sandbox/{}", text(&sandbox["id"])), Value::Null).await;
    client.ok("DELETE", &path, Value::Null).await;
    assert_eq!(client.get("/volumes").await, json!([]));
    let every = client.get("/volumes?includeDeleted=true").await;
    assert_eq!(every[0]["state"], "deleted");
}

/// Signs as S3's clients do.
struct Signer {
    access: Value,
    at: String,
}

impl Signer {
    async fn new(client: &Client<'_>, key: &str) -> Signer {
        let access = client.call(key, "GET", "/daytona/api/object-storage/push-access", Value::Null).await;
        assert_eq!(access.status, StatusCode::OK, "{}", access.text());
        Signer { access: access.json(), at: client.t.app.now().strftime("%Y%m%dT%H%M%SZ").to_string() }
    }

    fn of(&self, field: &str) -> &str {
        text(&self.access[field])
    }

    async fn send(&self, client: &Client<'_>, method: &str, target: &str, body: &[u8]) -> (StatusCode, String) {
        let hash = hex::encode(Sha256::digest(body));
        self.send_with(client, method, target, body, &hash).await
    }

    /// With a hash that may be another's.
    async fn send_with(
        &self,
        client: &Client<'_>,
        method: &str,
        target: &str,
        body: &[u8],
        hash: &str,
    ) -> (StatusCode, String) {
        let hmac = |key: &[u8], text: &str| {
            let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
            mac.update(text.as_bytes());
            mac.finalize().into_bytes().to_vec()
        };
        let target = format!("/daytona/storage{target}");
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let whole = |pair: &str| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") };
        let mut pairs: Vec<String> = query.split('&').filter(|pair| !pair.is_empty()).map(whole).collect();
        pairs.sort();
        let names = "host;x-amz-content-sha256;x-amz-date;x-amz-security-token";
        let token = self.of("sessionToken");
        let request = format!(
            "{method}\n{path}\n{}\nhost:cove\nx-amz-content-sha256:{hash}\nx-amz-date:{}\nx-amz-security-token:{token}\n\n{names}\n{hash}",
            pairs.join("&"),
            self.at
        );
        let day = &self.at[..8];
        let scope = format!("{day}/us-east-1/s3/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", self.at, hex::encode(Sha256::digest(request)));
        let first = format!("AWS4{}", self.of("secret")).into_bytes();
        let key = [day, "us-east-1", "s3", "aws4_request"].iter().fold(first, |key, word| hmac(&key, word));
        let signature = hex::encode(hmac(&key, &text));
        let credential = format!("{}/{scope}", self.of("accessKey"));
        let request = Request::builder()
            .method(method)
            .uri(&target)
            .header("host", "cove")
            .header("x-amz-content-sha256", hash)
            .header("x-amz-date", &self.at)
            .header("x-amz-security-token", token)
            .header(
                "authorization",
                format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"),
            )
            .body(Body::from(body.to_vec()))
            .unwrap();
        let answer = client.send(request).await;
        (answer.status, answer.text())
    }
}

#[tokio::test]
async fn contexts_are_taken_from_those_who_sign_for_them() {
    let t = &TestApp::new().await;
    let client = &Client::new(t);
    let signer = Signer::new(client, &t.key).await;
    let (bucket, organisation) = (signer.of("bucket"), signer.of("organizationId"));
    let hash = "0123456789abcdef0123456789abcdef";
    let key = format!("/{bucket}/{organisation}/{hash}/context.tar");
    assert_eq!(signer.send(client, "HEAD", &key, b"").await.0, StatusCode::NOT_FOUND);
    let list = format!("/{bucket}/?list-type=2&max-keys=1&prefix={organisation}%2F{hash}%2F");
    assert!(signer.send(client, "GET", &list, b"").await.1.contains("<KeyCount>0</KeyCount>"));
    // Another body than was signed is not kept.
    let (status, said) = signer.send_with(client, "PUT", &key, b"tar", &hex::encode(Sha256::digest("rat"))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{said}");
    assert_eq!(signer.send(client, "HEAD", &key, b"").await.0, StatusCode::NOT_FOUND);
    let (status, said) = signer.send(client, "PUT", &format!("{key}?x-id=PutObject"), b"tar").await;
    assert_eq!(status, StatusCode::OK, "{said}");
    assert_eq!(signer.send(client, "HEAD", &key, b"").await.0, StatusCode::OK);
    assert!(signer.send(client, "GET", &list, b"").await.1.contains("<KeyCount>1</KeyCount>"));
    for (method, target, status, code) in [
        ("GET", key.clone(), 403, "AccessDenied"),
        ("DELETE", key.clone(), 403, "AccessDenied"),
        ("PUT", format!("/{bucket}/{organisation}/{hash}/other"), 403, "AccessDenied"),
        ("PUT", format!("/{bucket}/other/{hash}/context.tar"), 404, "NoSuchKey"),
        ("PUT", format!("/other/{organisation}/{hash}/context.tar"), 404, "NoSuchBucket"),
        ("PUT", format!("/{bucket}/{organisation}/nothex/context.tar"), 400, "InvalidRequest"),
        ("PUT", format!("{key}?acl"), 400, "InvalidArgument"),
        ("PUT", format!("{key}?partNumber=1&uploadId=none"), 404, "NoSuchUpload"),
        ("POST", format!("{key}?uploadId=none"), 404, "NoSuchUpload"),
    ] {
        let (answered, said) = signer.send(client, method, &target, b"").await;
        assert_eq!(answered.as_u16(), status, "{method} {target}: {said}");
        assert!(said.contains(&format!("<Code>{code}</Code>")), "{method} {target}: {said}");
    }
    for key in ["", &t.key] {
        let refused = client.call(key, "PUT", &format!("/daytona/storage/{bucket}/x"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn a_context_may_come_in_parts_that_overtake_each_other() {
    let t = &TestApp::new().await;
    let client = &Client::new(t);
    let signer = &Signer::new(client, &t.key).await;
    let key = format!("/{}/{}/{}/context.tar", signer.of("bucket"), signer.of("organizationId"), "a".repeat(32));
    let begun = signer.send(client, "POST", &format!("{key}?uploads"), b"").await.1;
    let id =
        begun.split("<UploadId>").nth(1).unwrap_or_else(|| panic!("{begun}")).split('<').next().unwrap().to_owned();
    let part = |number: u32| {
        let target = format!("{key}?partNumber={number}&uploadId={id}");
        let body = vec![b'0' + number as u8; 1000];
        async move { signer.send(client, "PUT", &target, &body).await }
    };
    let (third, second, first) = tokio::join!(part(3), part(2), part(1));
    for (status, said) in [first, second, third] {
        assert_eq!(status, StatusCode::OK, "{said}");
    }
    let tag = |number: u8| hex::encode(&Sha256::digest(vec![b'0' + number; 1000])[..16]);
    let listed = |numbers: &[u8]| {
        let one =
            |number: &u8| format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{}\"</ETag></Part>", tag(*number));
        format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", numbers.iter().map(one).collect::<String>())
    };
    let end = format!("{key}?uploadId={id}");
    let (status, said) = signer.send(client, "POST", &end, listed(&[1, 2, 3]).as_bytes()).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    assert_eq!(signer.send(client, "HEAD", &key, b"").await.0, StatusCode::OK);
    let kept = t.app.store().build_file(signer.of("organizationId"), &"a".repeat(32)).await.unwrap().unwrap();
    assert_eq!(kept.bytes, 3000);
    assert_eq!(signer.send(client, "POST", &end, listed(&[1, 2, 3]).as_bytes()).await.0, StatusCode::NOT_FOUND);

    // One that is given up, or ended with other parts than came, leaves nothing.
    let key = key.replace(&"a".repeat(32), &"c".repeat(32));
    for listed in [None, Some(listed(&[1, 2]))] {
        let begun = signer.send(client, "POST", &format!("{key}?uploads"), b"").await.1;
        let id = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap();
        assert_eq!(
            signer.send(client, "PUT", &format!("{key}?partNumber=1&uploadId={id}"), b"x").await.0,
            StatusCode::OK
        );
        let target = format!("{key}?uploadId={id}");
        let (status, _) = match listed {
            None => signer.send(client, "DELETE", &target, b"").await,
            Some(listed) => signer.send(client, "POST", &target, listed.as_bytes()).await,
        };
        assert!([StatusCode::NO_CONTENT, StatusCode::BAD_REQUEST].contains(&status), "{status}");
        assert_eq!(signer.send(client, "HEAD", &key, b"").await.0, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn credentials_end_with_their_key_and_their_hour() {
    let t = &TestApp::new().await;
    let client = &Client::new(t);
    let made = ask(t, "POST", "/api/keys", json!({"name": "k", "scope": "write"})).await.json();
    let secret = text(&made["secret"]).to_owned();
    let mut signer = Signer::new(client, &secret).await;
    let key = format!("/{}/{}/{}/context.tar", signer.of("bucket"), signer.of("organizationId"), "b".repeat(32));
    assert_eq!(signer.send(client, "PUT", &key, b"x").await.0, StatusCode::OK);
    t.clock.advance(Duration::from_secs(61 * 60));
    signer.at = t.app.now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let (status, said) = signer.send(client, "PUT", &key, b"x").await;
    assert!(status == StatusCode::FORBIDDEN && said.contains("ExpiredToken"), "{said}");
    let signer = Signer::new(client, &secret).await;
    assert_eq!(signer.send(client, "PUT", &key, b"x").await.0, StatusCode::OK);
    ask(t, "DELETE", &format!("/api/keys/{}", text(&made["id"])), Value::Null).await;
    assert_eq!(signer.send(client, "PUT", &key, b"x").await.0, StatusCode::FORBIDDEN);
    let reader = ask(t, "POST", "/api/keys", json!({"name": "r", "scope": "read"})).await.json();
    let refused =
        client.call(text(&reader["secret"]), "GET", "/daytona/api/object-storage/push-access", Value::Null).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
}
