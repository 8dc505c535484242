//! Who gets in at the doors, and what of ours gets through them: each story is one trick that worked once.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_control::door;
use cove_control::sandbox::State;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::api::{Answer, ask, call};
use crate::harness::TestApp;

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
        ("POST", "/daytona/api/sandbox/ID/fork"),
        ("POST", "/daytona/api/snapshots"),
        ("PUT", "/daytona/api/snapshots/x/y"),
        ("GET", "/daytona/api/secret"),
        ("POST", "/daytona/api/warm-pools"),
        ("GET", "/daytona/api/object-storage/push-access"),
        ("POST", "/e2b/v3/templates"),
        ("POST", "/e2b/volumes"),
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
