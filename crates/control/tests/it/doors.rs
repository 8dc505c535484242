//! Who gets in at the doors, and what of ours gets through them: each story is one trick that worked once.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_control::config::{Config, Connections};
use cove_control::door;
use cove_control::job::JobState;
use cove_control::key::Scope;
use cove_control::sandbox::State;
use cove_control::store::templates::Beside;
use cove_control::volume::{Volume, WriteFile};
use cove_protocol::VolumeId;
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tower::ServiceExt as _;

use crate::api::{Answer, ask, call};
use crate::harness::{TestApp, eventually};

/// A request as it is written, with the headers that it has and no others.
async fn send(doors: &Router, method: &str, host: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let (parts, body) = doors.clone().oneshot(request).await.unwrap().into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    Answer { status: parts.status, headers: parts.headers, bytes }
}

async fn made(t: &TestApp, path: &str, body: Value, id: &str) -> String {
    let made = call(t, &t.key, "POST", path, body.to_string()).await;
    assert!(made.status.is_success(), "{}", made.text());
    made.json()[id].as_str().unwrap().to_owned()
}

const HERE: &str = "127.0.0.1:7070";

#[tokio::test]
async fn code_runs_with_the_sandboxes_token_alone_however_the_path_is_spelt() {
    let t = TestApp::new().await;
    let id = made(&t, "/e2b/sandboxes", json!({"templateID": "base"}), "sandboxID").await;
    let doors = door::router(t.app.clone());
    let host = format!("49999-{id}.localhost:7070");
    let calls = [
        ("POST", "/execute"),
        ("POST", "/execute/"),
        ("POST", "//execute"),
        ("POST", "/./execute"),
        ("POST", "/%65xecute"),
        ("GET", "/contexts"),
        ("POST", "/contexts"),
        ("POST", "/contexts/"),
        ("POST", "/contexts/python/restart"),
        ("DELETE", "/contexts/python"),
        ("DELETE", "/contexts/python/"),
    ];
    for (method, path) in calls {
        let answer = send(&doors, method, &host, path, &[], r#"{"code": "1"}"#).await;
        let refused = [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND].contains(&answer.status);
        assert!(refused, "{method} {path}: {} {}", answer.status, answer.text());
    }
    // The SDK shows the traffic token where it works on contexts, so it is told one.
    let whole = t.app.sandbox(&t.caller, &id).await.unwrap();
    let handle = call(&t, &t.key, "POST", &format!("/e2b/sandboxes/{id}/connect"), r#"{"timeout": 60}"#).await.json();
    assert_eq!(handle["trafficAccessToken"], whole.traffic_token);
    for shown in [("e2b-traffic-access-token", &whole.traffic_token), ("x-access-token", &whole.access_token)] {
        let answer = send(&doors, "GET", &host, "/contexts", &[(shown.0, shown.1)], "").await;
        assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{shown:?}: {}", answer.text());
        let answer = send(&doors, "POST", &host, "/execute", &[(shown.0, shown.1)], "{}").await;
        let wanted = if shown.0 == "x-access-token" { 422 } else { 401 };
        assert_eq!(answer.status, wanted, "a preview's token runs no code: {}", answer.text());
    }
}

async fn paused(t: &TestApp, id: &str) -> bool {
    t.app.sandbox(&t.caller, id).await.unwrap().state == State::Paused
}

#[tokio::test]
async fn whoever_only_asks_what_may_be_asked_wakes_nobody() {
    let t = TestApp::new().await;
    let id = made(&t, "/e2b/sandboxes", json!({"templateID": "base"}), "sandboxID").await;
    call(&t, &t.key, "PATCH", &format!("/api/sandboxes/{id}/timers"), r#"{"auto_resume": true}"#).await;
    let asleep = call(&t, &t.key, "POST", &format!("/api/sandboxes/{id}/pause"), "").await;
    assert_eq!(asleep.json()["state"], "paused", "{}", asleep.text());
    let doors = door::router(t.app.clone());
    for port in [49983, 49999] {
        let by_host = format!("{port}-{id}.localhost:7070");
        let (port, id) = (port.to_string(), id.as_str());
        let by_header = [("e2b-sandbox-id", id), ("e2b-sandbox-port", port.as_str())];
        for path in ["/health", "/files", "/process.Process/Start", "/execute", "/contexts"] {
            let answer = send(&doors, "OPTIONS", &by_host, path, &[], "").await;
            assert_eq!(answer.status, StatusCode::NO_CONTENT, "{path}");
            send(&doors, "OPTIONS", HERE, path, &by_header, "").await;
            assert!(paused(&t, id).await, "OPTIONS {path} at {port}");
        }
        send(&doors, "GET", &by_host, "/health", &[], "").await;
        assert!(paused(&t, id).await, "whether it lives, at {port}");
    }
}

#[tokio::test]
async fn what_is_not_served_is_said_to_those_with_a_key() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    let doors = door::router(t.app.clone());
    for (method, path) in [
        ("POST", "/daytona/api/sandbox/ID/ssh-access"),
        ("GET", "/daytona/api/sandbox/ssh-access/validate"),
        ("PUT", "/daytona/api/sandbox/ID/secrets"),
        ("GET", "/daytona/api/secret"),
        ("POST", "/daytona/api/secret"),
        ("POST", "/daytona/api/warm-pools"),
        ("POST", "/e2b/secrets"),
        ("GET", "/e2b/secrets/x"),
        ("POST", "/daytona/toolbox/ID/lsp/start"),
    ] {
        let path = path.replace("ID", &id);
        let answer = send(&doors, method, HERE, &path, &[], "{}").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}: {}", answer.text());
        let answer = call(&t, &t.key, method, &path, "{}").await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED, "{method} {path}: {}", answer.text());
    }
}

fn signed(key: &str, method: &str, path: &str) -> String {
    format!("expires=0&signature={}", door::daytona::sign_file(key, method, path, "0"))
}

#[tokio::test]
async fn a_daytona_link_opens_the_file_that_it_was_signed_for_and_no_other() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    for (path, content) in [("/tmp/shown", "shown"), ("/tmp/secret", "secret")] {
        call(&t, &t.key, "PUT", &format!("/api/sandboxes/{id}/files/content?path={path}"), content).await;
    }
    let key = call(&t, &t.key, "GET", &format!("/daytona/api/sandbox/{id}/signing-key"), "").await.json();
    let key = key.as_str().unwrap();
    let doors = door::router(t.app.clone());
    let base = format!("/daytona/toolbox/{id}/files");
    let read = signed(key, "GET", "/tmp/shown");
    let opened = send(&doors, "GET", HERE, &format!("{base}/download?path=/tmp/shown&{read}"), &[], "").await;
    assert_eq!((opened.status, opened.text().as_str()), (StatusCode::OK, "shown"));
    let write = signed(key, "POST", "/tmp/shown");
    for twice in [
        "path[]=/tmp/shown&path=/tmp/secret",
        "path=/tmp/secret&path[]=/tmp/shown",
        "path=/tmp/shown&path=/tmp/secret",
        "path%5B%5D=/tmp/shown&path=/tmp/secret",
        "path=&path[]=/tmp/shown&path=/tmp/secret",
        "%70ath=/tmp/shown&path=/tmp/secret",
    ] {
        let answer = send(&doors, "GET", HERE, &format!("{base}/download?{twice}&{read}"), &[], "").await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{twice}: {}", answer.text());
        for call in ["upload", "upload-v2"] {
            let answer = send(&doors, "POST", HERE, &format!("{base}/{call}?{twice}&{write}"), &[], "changed").await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{call} {twice}: {}", answer.text());
        }
    }
    for other in ["path=/tmp/secret", "path[]=/tmp/secret", "path=/tmp/shown/../secret", ""] {
        let answer = send(&doors, "GET", HERE, &format!("{base}/download?{other}&{read}"), &[], "").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{other}: {}", answer.text());
    }
    let kept = call(&t, &t.key, "GET", &format!("/api/sandboxes/{id}/files/content?path=/tmp/secret"), "").await;
    assert_eq!(kept.text(), "secret");
}

#[tokio::test]
async fn what_opens_a_sandbox_does_not_open_its_copies() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    call(&t, &t.key, "PUT", &format!("/api/sandboxes/{id}/files/content?path=/tmp/a"), "a").await;
    let signing_key = async |id: &str| {
        let key = call(&t, &t.key, "GET", &format!("/daytona/api/sandbox/{id}/signing-key"), "").await.json();
        key.as_str().unwrap().to_owned()
    };
    let key = signing_key(&id).await;
    let fork = async |path: String, pointer: &str| {
        let forked = call(&t, &t.key, "POST", &path, "{}").await;
        let copy = forked.json().pointer(pointer).and_then(|id| id.as_str().map(ToOwned::to_owned));
        copy.unwrap_or_else(|| panic!("{path}: {}", forked.text()))
    };
    let copies = [
        fork(format!("/api/sandboxes/{id}/fork"), "/forks/0/sandbox/id").await,
        fork(format!("/daytona/api/sandbox/{id}/fork"), "/id").await,
        fork(format!("/e2b/sandboxes/{id}/fork"), "/0/sandbox/sandboxID").await,
    ];
    let doors = door::router(t.app.clone());
    let link = |id: &str, key: &str| {
        format!("/daytona/toolbox/{id}/files/download?path=/tmp/a&{}", signed(key, "GET", "/tmp/a"))
    };
    assert_eq!(send(&doors, "GET", HERE, &link(&id, &key), &[], "").await.text(), "a");
    for copy in &copies {
        let refused = send(&doors, "GET", HERE, &link(copy, &key), &[], "").await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{copy}: {}", refused.text());
        let own = signing_key(copy).await;
        assert_ne!(own, key);
        assert_eq!(send(&doors, "GET", HERE, &link(copy, &own), &[], "").await.text(), "a");
    }
}

#[tokio::test]
async fn an_e2b_link_names_its_file_once() {
    let t = TestApp::new().await;
    let id = made(&t, "/e2b/sandboxes", json!({"templateID": "base"}), "sandboxID").await;
    let token = t.app.sandbox(&t.caller, &id).await.unwrap().access_token;
    let signature = cove_control::door::e2b::files::signature::sign(
        "/tmp/a",
        cove_control::door::e2b::files::signature::Operation::Read,
        "",
        &token,
        None,
    );
    let signature = signature.replace('+', "%2B").replace('/', "%2F");
    let doors = door::router(t.app.clone());
    for host in [format!("49983-{id}.localhost:7070"), HERE.to_owned()] {
        for twice in ["path=/tmp/a&path=/etc/passwd", "path=/tmp/a&%70ath=/etc/passwd"] {
            let answer = send(&doors, "GET", &host, &format!("/files?{twice}&signature={signature}"), &[], "").await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{host} {twice}: {}", answer.text());
        }
    }
}

/// Everything that is ours and that a client might send along, by every door's names.
fn everything_of_ours(key: &str, access: &str, traffic: &str) -> Vec<(String, String)> {
    let basic = STANDARD.encode(format!("x:{key}"));
    [
        ("authorization", format!("Bearer {key}")),
        ("authorization", format!("Basic {basic}")),
        ("x-api-key", key.to_owned()),
        ("x-access-token", access.to_owned()),
        ("x-cove-traffic-token", traffic.to_owned()),
        ("e2b-traffic-access-token", traffic.to_owned()),
        ("x-daytona-preview-token", traffic.to_owned()),
        ("x-other", format!("key={key}")),
        ("cookie", format!("theirs=1; cove_token={traffic}; __Host-cove_token=x; k={key}")),
        ("referer", format!("http://h/?cove_token={traffic}")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

#[tokio::test]
async fn what_is_ours_does_not_reach_the_program_inside_through_any_door() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({"public": true}), "id").await;
    let whole = t.app.sandbox(&t.caller, &id).await.unwrap();
    let (access, traffic) = (whole.access_token.as_str(), whole.traffic_token.as_str());
    // A key of any form, one that is no more, and one of somebody else.
    let reader = call(&t, &t.key, "POST", "/api/keys", json!({"name": "r", "scope": "read"}).to_string()).await.json();
    let revoked = reader["secret"].as_str().unwrap();
    let gone = call(&t, &t.key, "DELETE", &format!("/api/keys/{}", reader["id"].as_str().unwrap()), "").await;
    assert!(gone.status.is_success(), "{}", gone.text());
    let doors = door::router(t.app.clone());
    let ways = [
        (format!("80-{id}.localhost:7070"), "/page".to_owned()),
        (HERE.to_owned(), format!("/api/sandboxes/{id}/ports/80/proxy/page")),
        (HERE.to_owned(), format!("/daytona/preview/{id}/80/page")),
        (HERE.to_owned(), format!("/daytona/toolbox/{id}/proxy/80/page")),
    ];
    for (host, path) in &ways {
        let inside = path.contains("/toolbox/");
        for key in [t.key.as_str(), revoked] {
            let question = format!("?q=1&cove_token={traffic}&DAYTONA_SANDBOX_AUTH_KEY={access}&api_key={key}&r=2");
            for (name, value) in everything_of_ours(key, access, traffic) {
                let shown = [(name.as_str(), value.as_str())];
                let answer = send(&doors, "GET", host, &format!("{path}{question}"), &shown, "").await;
                // The toolbox wants its own token or a key: then nothing reached the program either.
                if inside && answer.status == StatusCode::UNAUTHORIZED {
                    assert!(key == revoked || name == "x-daytona-preview-token", "{name}");
                    continue;
                }
                let heard = answer.text();
                assert!(heard.starts_with("GET /page?q=1&r=2 HTTP/1.1"), "{path} {name}: {} {heard}", answer.status);
                for secret in [key, access, traffic, &STANDARD.encode(format!("x:{key}"))] {
                    assert!(!heard.contains(secret), "{path} {name} reached the program: {heard}");
                }
                if name == "cookie" {
                    assert!(heard.contains("Cookie: theirs=1\r\n"), "{path}: {heard}");
                }
            }
        }
        if !inside {
            for own in ["Bearer its-own", "Basic dTpw", "Digest username=\"u\""] {
                let heard =
                    send(&doors, "GET", host, path, &[("authorization", own), ("x-api-key", "its-own")], "").await;
                let heard = heard.text();
                assert!(heard.contains(&format!("Authorization: {own}\r\n")), "{path}: {heard}");
                assert!(heard.contains("X-Api-Key: its-own\r\n"), "{path}: {heard}");
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_may_only_look_does_not_get_through_to_a_port() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    let body = json!({"name": "r", "scope": "read"}).to_string();
    let reader = call(&t, &t.key, "POST", "/api/keys", body).await.json()["secret"].as_str().unwrap().to_owned();
    for path in ["/daytona/toolbox/ID/proxy/80/", "/daytona/preview/ID/80/", "/api/sandboxes/ID/ports/80/proxy/"] {
        for method in ["GET", "HEAD", "OPTIONS", "POST"] {
            let answer = call(&t, &reader, method, &path.replace("ID", &id), "").await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path}: {}", answer.text());
        }
    }
}

fn cookies(headers: &HeaderMap) -> Vec<String> {
    headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_preview_sets_cookies_for_itself_alone_and_a_request_writes_none() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({"public": true}), "id").await;
    let doors = door::router(t.app.clone());
    let wish = [("x-set-cookie", "a=1; Domain=localhost; Path=/"), ("x-set-cookie", "cove_token=x; Path=/")];
    for (host, path) in [
        (format!("80-{id}.localhost:7070"), "/".to_owned()),
        (HERE.to_owned(), format!("/api/sandboxes/{id}/ports/80/proxy/")),
        (HERE.to_owned(), format!("/daytona/preview/{id}/80/")),
    ] {
        let answer = send(&doors, "GET", &host, &path, &wish, "").await;
        let set = cookies(&answer.headers);
        assert_eq!(set.len(), 1, "{host}{path}: {set:?}");
        assert!(set[0].starts_with("a=1") && !set[0].to_lowercase().contains("domain"), "{host}{path}: {set:?}");
        for token in ["a;Domain=localhost", "a%3BDomain%3Dlocalhost", "a;Path=/api;Max-Age=9"] {
            let answer = send(&doors, "GET", &host, &format!("{path}?cove_token={token}"), &[], "").await;
            assert_eq!(cookies(&answer.headers), Vec::<String>::new(), "{host}{path} {token}");
        }
        let twice = send(&doors, "GET", &host, &format!("{path}?cove_token=a&cove%5Ftoken=b"), &[], "").await;
        if !path.contains("daytona") {
            assert_eq!(twice.status, StatusCode::BAD_REQUEST, "{host}{path}");
        }
    }
}

#[tokio::test]
async fn a_link_by_host_name_works_in_a_browser_and_its_token_goes_no_further() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    let link = ask(&t, "GET", &format!("/api/sandboxes/{id}/ports/80/link"), Value::Null).await.json();
    let url = link["host_url"].as_str().unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let token = path.split_once('=').unwrap().1;
    let doors = door::router(t.app.clone());
    let browser = ("accept", "text/html,*/*");

    let closed = send(&doors, "GET", host, "/", &[browser], "").await;
    assert_eq!(closed.status, StatusCode::FORBIDDEN);
    let first = send(&doors, "GET", host, &format!("//a/b?x=%20&cove_token={token}&y"), &[browser], "").await;
    assert_eq!((first.status, &first.headers["location"]), (StatusCode::FOUND, &"/.//a/b?x=%20&y".parse().unwrap()));
    let set = cookies(&first.headers);
    assert_eq!(set.len(), 1, "{set:?}");
    for attribute in ["; Path=/", "; HttpOnly", "; SameSite=Lax"] {
        assert!(set[0].contains(attribute), "{set:?}");
    }
    assert!(!set[0].contains("Domain") && !set[0].contains("Secure"), "{set:?}");
    let kept = set[0].split(';').next().unwrap();

    let page = send(&doors, "GET", host, "/style.css", &[("cookie", kept)], "").await;
    assert!(page.text().starts_with("GET /style.css HTTP/1.1"), "{}", page.text());
    assert!(!page.text().contains(token), "{}", page.text());
    let program = send(&doors, "GET", host, &format!("/?cove_token={token}"), &[], "").await;
    assert!(program.text().starts_with("GET / HTTP/1.1"), "a program needs no second request: {}", program.text());

    // Over TLS the cookie is of a kind that no neighbour can set.
    let tls = [browser, ("x-forwarded-proto", "https")];
    let set = cookies(&send(&doors, "GET", host, &format!("/?cove_token={token}"), &tls, "").await.headers);
    assert!(set[0].starts_with("__Host-cove_token=") && set[0].ends_with("; Secure"), "{set:?}");

    // It opens this port of this sandbox, for its own pages.
    let other = made(&t, "/api/sandboxes", json!({}), "id").await;
    for (host, headers) in [
        (format!("81-{id}.localhost"), vec![("cookie", kept)]),
        (format!("80-{other}.localhost"), vec![("cookie", kept)]),
        (host.to_owned(), vec![("cookie", kept), ("origin", "http://evil.example")]),
        (host.to_owned(), vec![("cookie", kept), ("origin", "null")]),
        (host.to_owned(), vec![("cookie", kept), ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]),
    ] {
        let neighbour = format!("http://80-{other}.localhost");
        for headers in [headers.clone(), [headers, vec![("origin", neighbour.as_str())]].concat()] {
            let answer = send(&doors, "GET", &host, "/", &headers, "").await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host} {headers:?}: {}", answer.text());
        }
    }
    let origin = format!("http://{host}");
    let own = send(&doors, "POST", host, "/", &[("cookie", kept), ("origin", &origin)], "").await;
    assert_eq!(own.status, StatusCode::OK);
    let tossed = format!("cove_token=evil; {kept}");
    assert_eq!(send(&doors, "GET", host, "/", &[("cookie", &tossed)], "").await.status, StatusCode::OK);

    // New tokens end it.
    call(&t, &t.key, "POST", &format!("/api/sandboxes/{id}/tokens"), "").await;
    assert_eq!(send(&doors, "GET", host, "/", &[("cookie", kept)], "").await.status, StatusCode::FORBIDDEN);
}

async fn key_of(t: &TestApp, scope: &str, organisation: &str) -> String {
    made(t, "/api/keys", json!({"name": "k", "scope": scope, "organisation": organisation}), "secret").await
}

#[tokio::test]
async fn what_a_deleted_organisation_had_is_nobodys_and_its_keys_stay_dead() {
    let t = TestApp::new().await;
    made(&t, "/api/organisations", json!({"id": "tenant"}), "id").await;
    let former = key_of(&t, "admin", "tenant").await;
    let hook = json!({"url": "https://hooks.example/secret"}).to_string();
    assert_eq!(call(&t, &former, "POST", "/api/webhooks", hook).await.status, StatusCode::CREATED);
    assert!(ask(&t, "DELETE", "/api/organisations/tenant", Value::Null).await.status.is_success());
    assert_eq!(call(&t, &former, "GET", "/api/whoami", "").await.status, StatusCode::UNAUTHORIZED);
    // Whoever got the same id would get its keys, webhooks, journals and log with it.
    let again = ask(&t, "POST", "/api/organisations", json!({"id": "tenant"})).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.text());
    assert!(again.json()["message"].as_str().unwrap().contains("was deleted"), "{}", again.text());
    assert_eq!(call(&t, &former, "GET", "/api/whoami", "").await.status, StatusCode::UNAUTHORIZED);
    // One that never had a key has left nothing.
    for _ in 0..2 {
        made(&t, "/api/organisations", json!({"id": "never-used"}), "id").await;
        assert!(ask(&t, "DELETE", "/api/organisations/never-used", Value::Null).await.status.is_success());
    }
}

/// Lists a volume's files by its token alone.
async fn opens(t: &TestApp, volume: &str, token: &str) -> StatusCode {
    call(t, token, "GET", &format!("/e2b/volumecontent/{volume}/dir?path=/"), "").await.status
}

#[tokio::test]
async fn an_organisation_does_not_go_while_it_has_files_and_its_volumes_tokens_go_with_it() {
    let t = TestApp::new().await;
    made(&t, "/api/organisations", json!({"id": "tenant"}), "id").await;
    let key = key_of(&t, "admin", "tenant").await;
    let make = async |path: &str, body: Value| {
        let made = call(&t, &key, "POST", path, body.to_string()).await;
        assert!(made.status.is_success(), "{path}: {}", made.text());
        made.json()
    };
    make("/api/sandboxes", json!({"name": "box"})).await;
    make("/api/sandboxes/box/snapshots", json!({"name": "kept"})).await;
    make("/api/templates", json!({"name": "web", "from": {"image": "127.0.0.1:1/x"}})).await;
    let volume = make("/api/volumes", json!({"name": "data"})).await["id"].as_str().unwrap().to_owned();
    let token = call(&t, &key, "GET", &format!("/e2b/volumes/{volume}"), "").await.json()["token"].clone();
    let token = token.as_str().unwrap();
    assert_eq!(opens(&t, &volume, token).await, StatusCode::OK);

    // Whatever is asked for: sandboxes are destroyed by name.
    for path in ["/api/organisations/tenant", "/api/organisations/tenant?force=true"] {
        let refused = ask(&t, "DELETE", path, Value::Null).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
        assert!(refused.text().contains("1 sandbox (box)"), "{}", refused.text());
    }
    assert_eq!(call(&t, &key, "DELETE", "/api/sandboxes/box", "").await.status, StatusCode::NO_CONTENT);
    let refused = ask(&t, "DELETE", "/api/organisations/tenant", Value::Null).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
    for thing in ["1 template (web)", "1 snapshot (kept)", "1 volume (data)", "force=true"] {
        assert!(refused.text().contains(thing), "{thing}: {}", refused.text());
    }
    assert_eq!(opens(&t, &volume, token).await, StatusCode::OK, "nothing has changed");

    let gone = ask(&t, "DELETE", "/api/organisations/tenant?force=true", Value::Null).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT, "{}", gone.text());
    assert_eq!(opens(&t, &volume, token).await, StatusCode::UNAUTHORIZED);
    assert!(t.app.store().volumes("tenant", false).await.unwrap().is_empty());
    assert_eq!(t.app.store().count_templates("tenant").await.unwrap(), 0);
    let told = t.app.store().audit("tenant", None, 100).await.unwrap();
    for action in ["template.delete", "snapshot.delete", "volume.delete"] {
        assert!(told.iter().any(|entry| entry.action == action), "{action} is not in {told:?}");
    }
}

#[tokio::test]
async fn a_volume_of_an_organisation_that_is_gone_is_opened_by_nobody() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/volumes", json!({"name": "v"}), "id").await;
    let token = call(&t, &t.key, "GET", &format!("/e2b/volumes/{id}"), "").await.json()["token"].clone();
    let token = token.as_str().unwrap();
    assert_eq!(opens(&t, &id, token).await, StatusCode::OK);
    // As an earlier version left it: that deleted organisations without a look at their volumes.
    let left = t.app.store().volume("default", "v").await.unwrap().unwrap();
    let orphan: VolumeId = "o".repeat(20).parse().unwrap();
    let left = Volume { id: orphan.clone(), organisation: "gone".into(), ..left };
    assert!(t.app.store().insert_volume(&left, Beside::default()).await.unwrap());
    assert_eq!(opens(&t, orphan.as_str(), token).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn the_last_key_of_an_operator_is_revoked_by_force_alone() {
    let t = TestApp::new().await;
    let first = format!("/api/keys/{}", t.caller.key);
    let short = json!({"name": "k", "scope": "operator", "expires_in_seconds": 60});
    made(&t, "/api/keys", short, "id").await;
    t.clock.advance(std::time::Duration::from_secs(61));
    let refused = ask(&t, "DELETE", &first, Value::Null).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "one that has expired is none: {}", refused.text());
    assert!(refused.text().contains("the last operator key"), "{}", refused.text());
    // Another organisation's runs the server as well.
    made(&t, "/api/organisations", json!({"id": "operators"}), "id").await;
    let other = key_of(&t, "operator", "operators").await;
    assert_eq!(ask(&t, "DELETE", &first, Value::Null).await.status, StatusCode::NO_CONTENT);
    let me = call(&t, &other, "GET", "/api/whoami", "").await.json();
    let last = format!("/api/keys/{}", me["key"].as_str().unwrap());
    assert_eq!(call(&t, &other, "DELETE", &last, "").await.status, StatusCode::CONFLICT);
    assert_eq!(call(&t, &other, "DELETE", &format!("{last}?force=true"), "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(call(&t, &other, "GET", "/api/whoami", "").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_key_that_may_only_read_looks_at_what_runs_and_wakes_nothing() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({"timers": {"auto_resume": true}}), "id").await;
    let reader = key_of(&t, "read", "default").await;
    let looks = [
        format!("/api/sandboxes/{id}/files?path=/"),
        format!("/api/sandboxes/{id}/processes"),
        format!("/api/sandboxes/{id}/git/status?path=/tmp"),
        format!("/daytona/toolbox/{id}/files?path=/"),
    ];
    for path in &looks[..2] {
        let answer = call(&t, &reader, "GET", path, "").await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
    }
    let asleep = call(&t, &t.key, "POST", &format!("/api/sandboxes/{id}/pause"), "").await;
    assert_eq!(asleep.json()["state"], "paused", "{}", asleep.text());
    for path in &looks {
        let answer = call(&t, &reader, "GET", path, "").await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{path}: {}", answer.text());
        assert!(answer.text().contains("does not wake it"), "{path}: {}", answer.text());
        assert!(paused(&t, &id).await, "{path} woke it");
    }
    call(&t, &t.key, "GET", &looks[1], "").await;
    assert!(!paused(&t, &id).await, "a key that may write wakes it");
}

#[tokio::test]
async fn who_may_not_make_a_call_is_not_told_what_it_takes() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    let reader = key_of(&t, "read", "default").await;
    for (method, path) in [
        ("POST", "/api/sandboxes"),
        ("DELETE", "/api/sandboxes/ID"),
        ("POST", "/api/sandboxes/ID/stop"),
        ("GET", "/api/sandboxes/ID/tokens"),
        ("POST", "/api/execute"),
        ("POST", "/api/e2b/execute"),
        ("GET", "/api/keys"),
        ("POST", "/e2b/sandboxes"),
        ("POST", "/daytona/api/sandbox"),
    ] {
        let path = format!("{}?zz_stranger=1", path.replace("ID", &id));
        let answer = call(&t, &reader, method, &path, r#"{"zz_stranger": 1}"#).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path}: {}", answer.text());
    }
}

#[tokio::test]
async fn words_that_look_like_keys_cost_a_request_only_so_many_lookups() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({"public": true}), "id").await;
    let doors = door::router(t.app.clone());
    let host = format!("80-{id}.localhost:7070");
    let word = |number: usize| format!("e2b_{number:040x}");
    let few: Vec<String> = (0..10).map(word).collect();
    let heard = send(&doors, "GET", &host, "/", &[("x-own", &few.join(" "))], "").await.text();
    assert!(heard.contains("X-Own: "), "words that are no keys of ours pass: {heard}");
    // Each word is a read of the store, and nobody's key pays for it.
    let many: Vec<String> = (0..200).map(word).collect();
    let heard = send(&doors, "GET", &host, "/", &[("x-own", &many.join(" "))], "").await.text();
    assert!(heard.starts_with("GET / HTTP/1.1") && !heard.contains("X-Own: "), "{heard}");
    let question = ["api_key=x"; 200].join("&");
    let heard = send(&doors, "GET", &host, &format!("/?{question}"), &[], "").await.text();
    let passed = heard.lines().next().unwrap_or_default().matches("api_key").count();
    assert!(passed <= 32, "{passed} of 200 were looked up");
}

#[tokio::test]
async fn why_a_delivery_failed_is_told_without_the_webhooks_secrets() {
    let t = TestApp::new().await;
    let url = "http://user:pa55word@127.0.0.1:1/services/secret?token=hidden";
    ask(&t, "POST", "/api/webhooks", json!({"url": url})).await;
    t.app.begin();
    made(&t, "/api/sandboxes", json!({}), "id").await;
    let reader = key_of(&t, "read", "default").await;
    let failed = async || {
        let jobs = call(&t, &reader, "GET", "/api/jobs", "").await.json();
        jobs.as_array().into_iter().flatten().find_map(|job| job["error"].as_str().map(ToOwned::to_owned))
    };
    eventually("a delivery has failed", || async { failed().await.is_some() }).await;
    let error = failed().await.unwrap();
    assert!(error.starts_with("deliver to http://127.0.0.1:1: Connection refused"), "{error}");
    for secret in ["user", "pa55word", "services", "hidden"] {
        assert!(!error.contains(secret), "{error}");
    }
}

#[tokio::test]
async fn what_waits_for_a_webhook_goes_with_it() {
    let t = TestApp::new().await;
    let gone = made(&t, "/api/webhooks", json!({"url": "http://127.0.0.1:1/gone"}), "id").await;
    let kept = made(&t, "/api/webhooks", json!({"url": "http://127.0.0.1:1/kept"}), "id").await;
    t.app.begin();
    made(&t, "/api/sandboxes", json!({}), "id").await;
    let waiting = async |hook: &str| {
        let jobs = t.app.store().jobs(None, Some(JobState::Queued), 100).await.unwrap();
        jobs.iter().any(|job| job.subject == hook && job.attempts > 0)
    };
    eventually("both were tried in vain", || async { waiting(&gone).await && waiting(&kept).await }).await;
    ask(&t, "DELETE", &format!("/api/webhooks/{gone}"), Value::Null).await;
    let jobs = t.app.store().jobs(None, None, 100).await.unwrap();
    let left: Vec<_> = jobs.iter().filter(|job| job.subject == gone && job.state == JobState::Queued).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(waiting(&kept).await);
}

#[tokio::test]
async fn a_path_that_leads_nowhere_is_told_as_it_was_asked_for() {
    let t = TestApp::new().await;
    for (method, path, status, expected) in [
        ("GET", "/api/nope", 404, "route /api/nope does not exist"),
        ("PATCH", "/api/whoami", 405, "/api/whoami takes no PATCH"),
        ("GET", "/nope", 404, "there is nothing at /nope: the API is below /api"),
        ("GET", "/sandboxes", 404, "the API is below /api"),
    ] {
        let answer = ask(&t, method, path, Value::Null).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text());
        let told = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(told.contains(expected), "{path}: {told}");
    }
}

#[tokio::test]
async fn a_line_where_words_are_wanted_is_told_where_it_goes() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    let path = format!("/api/sandboxes/{id}/exec");
    let refused = ask(&t, "POST", &path, json!({"command": "echo hi"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("a line for the shell goes into `shell`"), "{}", refused.text());
    let refused = ask(&t, "POST", &path, json!({"command": [1]})).await;
    assert!(refused.text().contains("`command`: invalid type"), "{}", refused.text());
    for body in [json!({"command": ["echo", "hi"]}), json!({"command": null, "shell": "echo hi"})] {
        assert_eq!(ask(&t, "POST", &path, body).await.json()["stdout"], "hi\n");
    }
}

#[tokio::test]
async fn the_head_of_a_forms_part_has_an_end() {
    let t = TestApp::new().await;
    let id = made(&t, "/e2b/sandboxes", json!({"templateID": "base"}), "sandboxID").await;
    let token = t.app.sandbox(&t.caller, &id).await.unwrap().access_token;
    let doors = door::router(t.app.clone());
    let daemon = format!("49983-{id}.localhost:7070");
    let bearer = format!("Bearer {}", t.key);
    let (form, key) = (("content-type", "multipart/form-data; boundary=b"), ("authorization", bearer.as_str()));
    let calls = [
        (daemon.as_str(), "/files?path=/tmp/a".to_owned(), [form, ("x-access-token", token.as_str())], "file"),
        (HERE, format!("/daytona/toolbox/{id}/files/upload?path=/tmp/a"), [form, key], "file"),
        (HERE, format!("/daytona/toolbox/{id}/files/bulk-upload"), [form, key], "f.path"),
    ];
    let long = "x".repeat(64 << 10);
    for (host, path, headers, name) in calls {
        let named = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"");
        for wrong in [long.clone(), format!("{named}; filename=\"{long}"), format!("--b\r\n\r\n{long}")] {
            let answer = send(&doors, "POST", host, &path, &headers, &wrong).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.text());
            assert!(answer.text().contains("longer than 16384 bytes"), "{path}: {}", answer.text());
        }
        if path.starts_with("/daytona/") && name == "file" {
            let right = format!("{named}; filename=\"a\"\r\n\r\n{long}\r\n--b--\r\n");
            let answer = send(&doors, "POST", host, &path, &headers, &right).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn a_new_signing_key_ends_what_goes_on_by_the_old_one() {
    let t = TestApp::new().await;
    let id = made(&t, "/api/sandboxes", json!({}), "id").await;
    let path = format!("/daytona/api/sandbox/{id}/signing-key");
    let key = call(&t, &t.key, "GET", &path, "").await.json().as_str().unwrap().to_owned();
    let server = crate::live::serve(&t).await;
    let url = format!("http://{}/daytona/toolbox/{id}/files/upload?path=/tmp/late", server.address);
    let (pieces, body) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body = futures::stream::unfold(body, |mut body| async move { body.recv().await.map(|piece| (piece, body)) });
    let request = reqwest::Client::new()
        .post(format!("{url}&{}", signed(&key, "POST", "/tmp/late")))
        .body(reqwest::Body::wrap_stream(body));
    let uploading = tokio::spawn(request.send());
    // More than the kernel keeps on the way: the server has let it in and reads.
    for _ in 0..5 {
        pieces.send(Ok(vec![7; 8 << 20])).await.unwrap();
    }
    let rotated = call(&t, &t.key, "POST", &format!("{path}/rotate"), "").await;
    assert_eq!(rotated.status, StatusCode::OK, "{}", rotated.text());
    // The end of the body would complete the file.
    drop(pieces);
    let answer = uploading.await.unwrap();
    assert!(!answer.is_ok_and(|answer| answer.status().is_success()), "written by a link that is worth nothing");
    server.stop.send(()).unwrap();
    server.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_deleted_volume_ends_what_its_token_has_opened() {
    // More than the kernel keeps on the way.
    const LARGE: usize = 64 << 20;
    let t = TestApp::new().await;
    let id = made(&t, "/api/volumes", json!({"name": "v", "size": 128 << 20}), "id").await;
    let token = call(&t, &t.key, "GET", &format!("/e2b/volumes/{id}"), "").await.json()["token"].clone();
    let token = token.as_str().unwrap();
    let files = t.app.volume_files(&t.caller, "v", Scope::Write).await.unwrap();
    files.write("/large", WriteFile::default(), &vec![7; LARGE][..]).await.unwrap();
    let server = crate::live::serve(&t).await;
    let url = format!("http://{}/e2b/volumecontent/{id}/file?path=/large", server.address);
    let client = reqwest::Client::new();
    let mut download = client.get(&url).bearer_auth(token).send().await.unwrap();
    assert_eq!(download.status(), 200);
    let mut read = download.chunk().await.unwrap().expect("the beginning of the file").len();
    let deleted = call(&t, &t.key, "DELETE", "/api/volumes/v", "").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT, "{}", deleted.text());
    // The file itself stays for whoever has it open.
    let broke_off = loop {
        match download.chunk().await {
            Ok(Some(piece)) => read += piece.len(),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(broke_off && read < LARGE, "{read} of {LARGE} bytes came");
    let late = client.get(&url).bearer_auth(token).send().await.unwrap();
    assert_eq!(late.status(), 401, "as a volume that never was");
    server.stop.send(()).unwrap();
    server.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_socket_whose_key_comes_later_is_one_of_its_organisations_streams() {
    let connections = Connections { most: 32, ..Connections::default() };
    let t = TestApp::with(Config { connections, ..Config::default() }).await;
    let server = crate::live::serve(&t).await;
    let url = format!("ws://{}/daytona/api/socket.io/?EIO=4&transport=websocket", server.address);
    let mut open = Vec::new();
    loop {
        let (mut socket, _) = tokio_tungstenite::connect_async(url.as_str()).await.unwrap();
        socket.send(Message::text(format!("40{}", json!({"token": t.key})))).await.unwrap();
        let mut is_in = false;
        while let Some(Ok(Message::Text(text))) = socket.next().await {
            is_in = text.starts_with("40");
            if is_in || text.starts_with("44") {
                break;
            }
        }
        if !is_in {
            break;
        }
        open.push(socket);
        assert!(open.len() < 32, "there is no end to them");
    }
    assert_eq!(open.len(), 12, "three quarters of sixteen");
    let short = reqwest::Client::new().get(format!("http://{}/api/whoami", server.address)).bearer_auth(&t.key);
    assert_eq!(short.send().await.unwrap().status(), 200, "the rest is for short requests");
    drop(open);
    server.stop.send(()).unwrap();
    server.running.await.unwrap().unwrap();
}
