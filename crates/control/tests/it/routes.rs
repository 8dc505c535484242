//! Every route of every door, walked from the doors' own tables by those who may not: without a key, with one that may
//! only look, with another organisation's, with one that is revoked; under its own path and under every other spelling of
//! it. Nobody gets in, and nobody wakes a sandbox that sleeps.
//!
//! A route that is added later is walked too, because the table that serves it is the one that is read here.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use cove_control::Scope;
use cove_control::door::table::Needs;
use cove_control::door::walk::{Attempt, Things, Who, attempts};
use cove_control::door::{self, At};
use cove_control::sandbox::State;
use serde_json::json;
use tower::ServiceExt as _;

use crate::api::call;
use crate::harness::TestApp;

/// What one organisation has: a sandbox that sleeps and would wake for a request, and more.
struct House {
    t: TestApp,
    doors: Router,
    /// Made through E2B's door: its ports are public, its daemons ask for its token.
    public: String,
    private: String,
    session: String,
    key: String,
    hook: String,
    reader: String,
    revoked: String,
    stranger: String,
}

impl House {
    async fn new() -> House {
        let t = TestApp::new().await;
        let make = async |path: &str, body: serde_json::Value, field: &str| {
            let made = call(&t, &t.key, "POST", path, body.to_string()).await;
            made.json()[field].as_str().unwrap_or_else(|| panic!("{path}: {}", made.text())).to_owned()
        };
        let public = make("/e2b/sandboxes", json!({"templateID": "base"}), "sandboxID").await;
        let private = make("/api/sandboxes", json!({"name": "theirs"}), "id").await;
        let session = make("/api/sessions", json!({}), "session_id").await;
        let hook = make("/api/webhooks", json!({"url": "http://127.0.0.1:1/"}), "id").await;
        let reader = make("/api/keys", json!({"name": "r", "scope": "read"}), "secret").await;
        let dead =
            call(&t, &t.key, "POST", "/api/keys", json!({"name": "d", "scope": "admin"}).to_string()).await.json();
        let (key, revoked) = (dead["id"].as_str().unwrap().to_owned(), dead["secret"].as_str().unwrap().to_owned());
        call(&t, &t.key, "DELETE", &format!("/api/keys/{key}"), "").await;
        make("/api/organisations", json!({"id": "stranger", "name": "stranger"}), "id").await;
        let body = json!({"name": "s", "scope": "admin", "organisation": "stranger"});
        let stranger = make("/api/keys", body, "secret").await;
        for id in [&public, &private] {
            call(&t, &t.key, "PATCH", &format!("/api/sandboxes/{id}/timers"), r#"{"auto_resume": true}"#).await;
            let asleep = call(&t, &t.key, "POST", &format!("/api/sandboxes/{id}/pause"), "").await;
            assert_eq!(asleep.json()["state"], "paused", "{}", asleep.text());
        }
        let doors = door::router(t.app.clone());
        House { t, doors, public, private, session, key, hook, reader, revoked, stranger }
    }

    fn things(&self) -> Things<'_> {
        let House { private, public, session, key, hook, .. } = self;
        Things { private, public, session, key, webhook: hook }
    }

    async fn ask(&self, attempt: &Attempt) -> StatusCode {
        let host = attempt.host(self.things()).unwrap_or_else(|| "127.0.0.1:7070".into());
        let mut request = Request::builder().method(attempt.method).uri(&attempt.path).header("host", host);
        let key = match attempt.who {
            Who::Nobody => None,
            Who::Reader => Some(&self.reader),
            Who::Stranger => Some(&self.stranger),
            Who::Revoked => Some(&self.revoked),
        };
        if let Some(key) = key {
            // Both ways in which the dialects show one.
            request = request.header("authorization", format!("Bearer {key}")).header("x-api-key", key);
        }
        let request = request.header("content-type", "application/json").body(Body::from("{}")).unwrap();
        self.doors.clone().oneshot(request).await.unwrap().status()
    }

    async fn sleeps(&self) -> bool {
        let mut both = Vec::new();
        for id in [&self.public, &self.private] {
            both.push(self.t.app.sandbox(&self.t.caller, id).await.unwrap().state);
        }
        both == [State::Paused, State::Paused]
    }
}

#[tokio::test]
async fn nobody_gets_in_or_wakes_a_sandbox_through_any_route_in_any_spelling() {
    let house = House::new().await;
    let all = attempts(house.things());
    let mut wrong = Vec::new();
    for (number, attempt) in all.iter().enumerate() {
        let status = house.ask(attempt).await;
        if !attempt.is_refused_by(status.as_u16()) {
            wrong.push(format!("{status} {attempt:?}"));
        }
        if number % 50 == 0 {
            assert!(house.sleeps().await, "a sandbox was woken at or shortly before {attempt:?}");
        }
    }
    assert!(house.sleeps().await, "a sandbox was woken at the end");
    assert!(wrong.is_empty(), "{} of {} got in:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(door::routes().len() > 280 && all.len() > 10_000, "{} attempts", all.len());
    let whole = call(&house.t, &house.t.key, "GET", "/api/sandboxes/theirs", "").await;
    assert_eq!(whole.status, StatusCode::OK, "it is still there: {}", whole.text());
}

#[test]
fn every_door_is_in_the_list_of_routes() {
    let routes = door::routes();
    for (at, path, needs) in [
        (At::Path(""), "/healthz", Needs::Nothing),
        (At::Path(""), "/peer/layers/{id}", Needs::Peer),
        (At::Path("/api"), "/sandboxes/{id}/exec", Needs::Key(Scope::Write)),
        (At::Path("/api"), "/organisations/{id}/quota", Needs::Key(Scope::Operator)),
        (At::Path("/e2b"), "/v2/sandboxes", Needs::Key(Scope::Write)),
        (At::Port(49983), "/files", Needs::AccessOrSignature),
        (At::Port(49999), "/execute", Needs::Access),
        (At::Port(49999), "/contexts/{id}", Needs::AccessOrTraffic),
        (At::Path("/daytona/api"), "/sandbox/{id}/ssh-access", Needs::Key(Scope::Write)),
        (At::Path("/daytona/toolbox/{id}"), "/proxy/{port}/{*path}", Needs::Toolbox(Scope::Write)),
        (At::Path("/daytona/preview"), "/{sandbox}/{port}", Needs::Port),
    ] {
        let found = routes.iter().any(|(where_to, row)| *where_to == at && row.path == path && row.needs == needs);
        assert!(found, "{at:?} {path} {needs:?}");
    }
}
