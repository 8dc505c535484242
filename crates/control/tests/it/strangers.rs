//! Another organisation's things do not exist: every route of the document is walked with a stranger's key.
//!
//! A route that is added later must be put into one of the kinds below, or the walk fails.

use axum::body::Body;
use axum::http::StatusCode;
use cove_control::door;
use cove_control::key::Scope;
use cove_control::key::manage::NewKey;
use cove_control::push::{Push, State};
use cove_control::store::templates::Beside;
use cove_control::template::NewTemplate;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self};

use crate::api::{ask, call};
use crate::harness::TestApp;
use crate::live::serve;

/// What one organisation has, and the key of another.
struct Two {
    t: TestApp,
    sandbox: String,
    session: String,
    key: String,
    hook: String,
    check: String,
    /// A template of its own, with a build of it.
    template: String,
    build: String,
    push: String,
    snapshot: String,
    volume: String,
    stranger: String,
}

impl Two {
    async fn new() -> Two {
        let t = TestApp::new().await;
        let id = |answer: Value, field: &str| answer[field].as_str().unwrap().to_owned();
        let sandbox = id(ask(&t, "POST", "/api/sandboxes", json!({"name": "theirs"})).await.json(), "id");
        let session = id(ask(&t, "POST", "/api/sessions", json!({})).await.json(), "session_id");
        let key = id(ask(&t, "POST", "/api/keys", json!({"name": "k", "scope": "read"})).await.json(), "id");
        let hook = id(ask(&t, "POST", "/api/webhooks", json!({"url": "http://127.0.0.1:1/"})).await.json(), "id");
        let check = id(ask(&t, "POST", "/api/checks", json!({"all": true})).await.json(), "id");
        ask(&t, "PUT", "/api/pools/base", json!({"size": 0})).await;
        let new = NewTemplate { name: "recipe".into(), ..NewTemplate::default() };
        let (template, build) = t.app.create_template(&t.caller, new).await.unwrap();
        let snapshot = id(ask(&t, "POST", "/api/sandboxes/theirs/snapshots", json!({})).await.json(), "id");
        let volume = id(ask(&t, "POST", "/api/volumes", json!({"name": "theirs", "size": 1 << 20})).await.json(), "id");
        call(&t, &t.key, "POST", &format!("/api/build-files/{HASH}"), "tar").await;
        t.app.create_organisation(&t.caller, "stranger", "stranger").await.unwrap();
        let new = NewKey {
            name: "s".into(),
            scope: Scope::Admin,
            expires_in_seconds: None,
            organisation: Some("stranger".into()),
        };
        let (_, stranger) = t.app.create_key(&t.caller, new).await.unwrap();
        let (template, build) = (template.id, build.id);
        let push = push_of(&t, &template, &build).await;
        Two { t, sandbox, session, key, hook, check, template, build, push, snapshot, volume, stranger }
    }

    fn ids(&self) -> [&str; 10] {
        let Two { sandbox, session, key, hook, check, template, build, push, snapshot, volume, .. } = self;
        [sandbox, session, key, hook, check, template, build, push, snapshot, volume]
    }

    /// The path with the owner's things in it, if it is about one.
    fn about(&self, template: &str) -> Option<String> {
        let thing = match template.trim_start_matches("/e2b").split('/').nth(1)? {
            "sandboxes" => &self.sandbox,
            "sessions" | "files" => &self.session,
            "keys" => &self.key,
            "webhooks" => &self.hook,
            "checks" => &self.check,
            "templates" => &self.template,
            "pushes" => &self.push,
            "snapshots" => &self.snapshot,
            "volumes" => &self.volume,
            "organisations" => "default",
            _ => return None,
        };
        let path = template
            .replacen("{id}", thing, 1)
            .replacen("{name}", thing, 1)
            .replace("{build}", &self.build)
            .replace("{push}", &self.push)
            .replace("{tag}", "v1")
            .replace("{session_id}", thing)
            .replace("{process}", "1")
            .replace("{port}", "80")
            .replace("{path}", "x");
        template.contains('{').then_some(path)
    }
}

/// A push that has ended.
async fn push_of(t: &TestApp, template: &str, build: &str) -> String {
    let push = Push {
        id: "push_of_the_owner".into(),
        organisation: t.caller.organisation.clone(),
        template: template.into(),
        name: "recipe".into(),
        build: build.into(),
        image: "registry.example/recipe:1".into(),
        state: State::Done,
        server: t.app.server().into(),
        is_confidential: false,
        as_operator: false,
        digest: None,
        failure: None,
        created_at: t.app.now(),
        finished_at: None,
    };
    t.app.store().insert_push(&push, Beside::default()).await.unwrap();
    push.id
}

/// An archive that the owner has sent.
const HASH: &str = "abababababababababababababababababababababababababababababababab";

/// Routes that name nothing of anybody's in their path: what they show must hold nothing of another's.
const LISTS: [&str; 19] = [
    "/audit",
    "/docs",
    "/events",
    "/events/follow",
    "/jobs",
    "/keys",
    "/openapi.json",
    "/organisations",
    "/pools",
    "/providers",
    "/pushes",
    "/recipes",
    "/sandboxes",
    "/sessions",
    "/snapshots",
    "/templates",
    "/usage",
    "/volumes",
    "/webhooks",
];

/// Routes that are about the caller's own organisation, whatever is asked.
const OWN: [&str; 6] = [
    "/whoami",
    "/pools/{template}",
    "/agents/{agent_id}/execute",
    "/build-files/{hash}",
    "/build-steps",
    "/recipes/{name}",
];

/// Calls that are for operators alone: the scope is asked for before the thing is looked at, so the answer is 403 whether
/// it is there or not.
const OPERATORS: [(&str, &str); 5] = [
    ("get", "/orphans"),
    ("post", "/orphans/{id}/adopt"),
    ("delete", "/orphans/{id}"),
    ("delete", "/organisations/{id}"),
    ("put", "/organisations/{id}/quota"),
];

/// Routes that make something new of the caller's own.
const NEW: [&str; 9] = [
    "/sandboxes",
    "/sessions",
    "/keys",
    "/webhooks",
    "/organisations",
    "/checks",
    "/templates",
    "/images/import",
    "/volumes",
];

/// Routes that name their session in the body.
const BY_BODY: [&str; 4] = ["/execute", "/files", "/e2b/execute", "/e2b/files"];

/// What each call needs to get as far as the thing it is about.
fn body_for(method: &str, path: &str, session: &str) -> Value {
    if (method, path) == ("patch", "/volumes/{id}") {
        return json!({"size": 1 << 20});
    }
    match path.rsplit('/').next().unwrap_or_default() {
        "checkpoints" if method == "put" => json!({"keep": 1}),
        "tags" => json!({"tags": ["v1"]}),
        "labels" => json!({"labels": {}}),
        "name" => json!({"name": "n"}),
        "visibility" => json!({"public": true}),
        "exec" => json!({"shell": "true"}),
        "signal" => json!({"signal": 15}),
        "directory" => json!({"path": "/tmp/x"}),
        "move" => json!({"from": "/a", "to": "/b"}),
        "attributes" => json!({"path": "/a"}),
        "symlink" => json!({"path": "/a", "target": "/b"}),
        "replace" => json!({"paths": [], "pattern": "a", "replacement": "b"}),
        "clone" => json!({"url": "https://git.example/a", "path": "/a"}),
        "add" => json!({"path": "/a", "files": ["."]}),
        "commit" => json!({"path": "/a", "message": "m", "author": "a", "email": "a@example.com"}),
        "push" if !path.contains("/git/") => json!({"image": "registry.example/x:1"}),
        "push" | "pull" => json!({"path": "/a"}),
        "branches" | "checkout" => json!({"path": "/a", "name": "b"}),
        "execute" => json!({"session_id": session, "code": "1"}),
        "files" => json!({"session_id": session, "path": "x", "content": ""}),
        _ => json!({}),
    }
}

/// Only those parameters that the call has: unknown ones are refused.
fn query_for(operation: &Value) -> String {
    let values = [
        ("path", "/tmp"),
        ("pattern", "x"),
        ("name", "x"),
        ("for_seconds", "0"),
        ("after", "0"),
        ("others", "true"),
        ("deleted", "true"),
    ];
    let known = |name: &str| {
        let mut parameters = operation["parameters"].as_array().into_iter().flatten();
        // A list by a name that nothing has would show nothing.
        let is_wanted = |parameter: &Value| name != "name" || parameter["required"] == true;
        parameters.any(|parameter| parameter["in"] == "query" && parameter["name"] == name && is_wanted(parameter))
    };
    let pairs: Vec<String> =
        values.iter().filter(|(name, _)| known(name)).map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

#[tokio::test]
async fn another_organisations_things_are_not_there_on_any_route() {
    let two = Two::new().await;
    let document: Value = serde_json::to_value(door::native::document()).unwrap();
    let (mut refused, mut looked) = (0, 0);
    for (template, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "head", "options", "put", "post", "patch", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let verb = method.to_uppercase();
            // A call that takes no body refuses one before it looks at anything.
            let takes_one = operation.get("requestBody").is_some();
            let body = if takes_one { body_for(method, template, &two.session).to_string() } else { String::new() };
            if OPERATORS.contains(&(method, template.as_str())) {
                let theirs = if template.starts_with("/organisations") { "default" } else { two.sandbox.as_str() };
                let mut told = Vec::new();
                for id in [theirs, "nobodys"] {
                    let url = format!("/api{}", template.replace("{id}", id));
                    let answer = call(&two.t, &two.stranger, &verb, &url, body.clone()).await;
                    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{verb} {url}: {}", answer.json());
                    told.push(answer.json());
                }
                assert_eq!(told[0], told[1], "{verb} {template} tells what is there from what is not");
                refused += 1;
            } else if let Some(path) = two.about(template) {
                let url = format!("/api{path}?{}", query_for(operation));
                let answer = call(&two.t, &two.stranger, &verb, &url, body).await;
                assert_eq!(answer.status, StatusCode::NOT_FOUND, "{verb} {url}: {}", answer.json());
                refused += 1;
            } else if BY_BODY.contains(&template.as_str()) {
                let answer = call(&two.t, &two.stranger, &verb, &format!("/api{template}"), body).await;
                assert_eq!(answer.status, StatusCode::NOT_FOUND, "{verb} {template}: {}", answer.json());
                refused += 1;
            } else if method == "get" && LISTS.contains(&template.as_str()) {
                let url = format!("/api{template}?{}", query_for(operation));
                let answer = call(&two.t, &two.stranger, &verb, &url, Body::empty()).await;
                assert_eq!(answer.status, StatusCode::OK, "{url}: {}", answer.json());
                let text = String::from_utf8_lossy(&answer.bytes).into_owned();
                for id in two.ids() {
                    assert!(!text.contains(id), "{url} shows {id}: {text}");
                }
                looked += 1;
            } else {
                let known = OWN.contains(&template.as_str()) || method == "post" && NEW.contains(&template.as_str());
                assert!(known, "{verb} {template}: say what a stranger sees there");
            }
        }
    }
    assert!(refused > 80 && looked == LISTS.len(), "{refused} refused, {looked} looked at");
    // A stranger's request for another's object changes nothing.
    let taken = call(&two.t, &two.stranger, "DELETE", "/api/pools/base", Body::empty()).await;
    assert_eq!(taken.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&two.t, "GET", "/api/sandboxes/theirs", Value::Null).await.json()["state"], "running");
    for path in [format!("/api/templates/{}/builds/{}", two.template, two.build), "/api/volumes/theirs".into()] {
        assert_eq!(ask(&two.t, "GET", &path, Value::Null).await.status, StatusCode::OK, "{path}");
    }
    // Whether somebody has sent an archive is told to that one alone.
    let path = format!("/api/build-files/{HASH}");
    assert_eq!(ask(&two.t, "GET", &path, Value::Null).await.json()["present"], true);
    assert_eq!(call(&two.t, &two.stranger, "GET", &path, Body::empty()).await.json()["present"], false);
}

#[tokio::test]
async fn filters_by_another_organisations_id_find_nothing() {
    let two = Two::new().await;
    let sandbox = &two.sandbox;
    let urls = [
        format!("/api/events?sandbox={sandbox}&after=0"),
        format!("/api/events/follow?sandbox={sandbox}&after=0&for_seconds=0"),
        "/api/sandboxes?name=theirs".to_owned(),
    ];
    for url in urls {
        let mine = call(&two.t, &two.t.key, "GET", &url, Body::empty()).await;
        let theirs = call(&two.t, &two.stranger, "GET", &url, Body::empty()).await;
        assert!(String::from_utf8_lossy(&mine.bytes).contains(sandbox), "the owner finds it by {url}");
        assert!(!String::from_utf8_lossy(&theirs.bytes).contains(sandbox), "{url}");
    }
}

#[tokio::test]
async fn a_strangers_websocket_is_refused_before_it_is_one() {
    let two = Two::new().await;
    let server = serve(&two.t).await;
    let (sandbox, session) = (&two.sandbox, &two.session);
    let paths = [
        format!("/api/sandboxes/{sandbox}/exec/stream"),
        format!("/api/sessions/{session}/stream"),
        format!("/api/sandboxes/{sandbox}/ports/80/proxy/socket"),
    ];
    for path in paths {
        for key in [two.stranger.as_str(), "e2b_nobodys"] {
            let mut request = format!("ws://{}{path}", server.address).into_client_request().unwrap();
            request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
            let wanted = if key == two.stranger || path.contains("/proxy/") { 404 } else { 401 };
            match tokio_tungstenite::connect_async(request).await {
                Err(tungstenite::Error::Http(answer)) => assert_eq!(answer.status(), wanted, "{path}"),
                other => panic!("{path}: {other:?}"),
            }
        }
    }
    server.stop.send(()).unwrap();
    server.running.await.unwrap().unwrap();
}
