//! The Vercel dialect: today's Vercel Sandbox SDKs work unmodified, once their `fetch` leads here.
//!
//! ```text
//!   SDK ── /vercel/api/v3/sandboxes …            [create] [find] [change]   ──▶ App
//!       ── /vercel/api/v2/sandboxes/sessions/… ─┬ [command]: NDJSON         ──▶ Guest
//!                                               └ [files]: tar.gz in, bytes out
//!       ── …/snapshots, …/drives                [snapshot] [drive]          ──▶ App: templates, volumes
//! ```
//!
//! A sandbox here is a name, and a *session* is one run of it: [`naming`] makes the session's id of the sandbox's and of
//! the moment of its start, so a session that is over is known to be over and the SDK begins the next one. What was asked
//! for and the domain has no word for (which ports, whether it persists) is remembered with the sandbox ([`memory`]).
//!
//! What each route asks for stands with it in the table; [`guard`] checks it on the route that matched. What this server does
//! not offer is answered with a sentence that says so.

mod body;
mod change;
mod command;
mod create;
mod drive;
mod error;
mod files;
mod find;
mod known;
mod memory;
mod naming;
mod network;
mod person;
mod snapshot;
mod text;
mod view;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use serde_json::Value;

use self::error::{Answer, Refusal};
use super::parts;
use super::peer::Subject;
use super::table::{Needs, Route, Table};
use crate::sandbox::Sandbox;
use crate::{App, Caller, Error, Scope};

/// The routes and what each asks for, below `/vercel/api`.
pub fn table() -> Table<App> {
    let (look, act) = (Needs::Key(Scope::Read), Needs::Key(Scope::Write));
    Table::new()
        .post("/v3/sandboxes", act, create::create)
        .post("/v2/sandboxes", act, create::create)
        .get("/v2/sandboxes", look, find::list)
        .get("/v2/sandboxes/sessions", look, find::sessions)
        .get("/v2/sandboxes/sessions/{session}", look, find::session)
        .post("/v2/sandboxes/sessions/{session}/stop", act, change::stop)
        .post("/v2/sandboxes/sessions/{session}/extend-timeout", act, change::extend)
        .post("/v2/sandboxes/sessions/{session}/network-policy", act, change::network)
        .post("/v2/sandboxes/sessions/{session}/snapshot", act, snapshot::create)
        .post("/v2/sandboxes/sessions/{session}/interactive", act, command::no_terminal)
        .post("/v2/sandboxes/sessions/{session}/cmd", act, command::run)
        .get("/v2/sandboxes/sessions/{session}/cmd/{command}", act, command::show)
        .get("/v2/sandboxes/sessions/{session}/cmd/{command}/logs", act, command::logs)
        .post("/v2/sandboxes/sessions/{session}/cmd/{command}/kill", act, command::kill)
        .post("/v2/sandboxes/sessions/{session}/cmd/{command}/stdin", act, command::input)
        .post("/v2/sandboxes/sessions/{session}/fs/mkdir", act, files::make_directory)
        .post("/v2/sandboxes/sessions/{session}/fs/write", act, files::write)
        .post("/v2/sandboxes/sessions/{session}/fs/read", act, files::read)
        .get("/v2/sandboxes/snapshots", look, snapshot::list)
        .get("/v2/sandboxes/snapshots/tree", look, snapshot::no_tree)
        .get("/v2/sandboxes/snapshots/{snapshot}", look, snapshot::show)
        .delete("/v2/sandboxes/snapshots/{snapshot}", act, snapshot::delete)
        .get("/v2/sandboxes/drives", look, drive::list)
        .post("/v2/sandboxes/drives/{drive}", act, drive::ensure)
        .delete("/v2/sandboxes/drives/{drive}", act, drive::delete)
        // A sandbox that sleeps is woken by it where the query says so: then it asks for more, see there.
        .get("/v2/sandboxes/{sandbox}", look, find::show)
        .patch("/v2/sandboxes/{sandbox}", act, change::update)
        .delete("/v2/sandboxes/{sandbox}", act, change::delete)
        .post("/v2/sandboxes/{sandbox}/fork", act, create::fork)
}

pub fn routes() -> Vec<Route> {
    table().routes()
}

/// All of it, to be nested under `/vercel`.
pub fn router(app: App) -> Router {
    let guarded = |needs: Needs, handler: MethodRouter<App>| {
        let strict = handler.route_layer(from_fn(known::guard));
        strict.route_layer(from_fn_with_state((app.clone(), needs), guard))
    };
    let api = table().guarded(guarded).fallback(no_such_call).layer(from_fn(within_budget)).with_state(app.clone());
    Router::new().nest("/api", api).fallback(no_such_call)
}

/// Which sandbox a request is about, by its path below `/vercel`.
pub fn subject(path: &str) -> Subject {
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        ["api", "v2", "sandboxes", "sessions", session, ..] => {
            naming::sandbox_of(session).map_or(Subject::Nothing, Subject::by_id)
        }
        ["api", "v2", "sandboxes", "sessions" | "snapshots" | "drives", ..] => Subject::Nothing,
        ["api", "v2", "sandboxes", name, ..] => Subject::by_name(name),
        _ => Subject::Nothing,
    }
}

/// What this door remembers of a copy of a sandbox, beside what the others do.
pub(super) fn note_of_copy(source: &Sandbox, door: &Value) -> Value {
    memory::Memory::of(source).into_note(door)
}

/// A caller whose key the guard has checked and counted. The team of the query is not looked at: the key says whose it is.
pub struct By(pub Caller);

impl FromRequestParts<App> for By {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(By(caller.ok_or_else(|| Error::internal("a route without its guard"))?))
    }
}

/// The key that the route asks for.
async fn guard(State((app, needs)): State<(App, Needs)>, mut request: Request, next: Next) -> Answer<Response> {
    match needs {
        Needs::Key(scope) => {
            let key = bearer(request.headers()).ok_or_else(unauthorised)?;
            let caller = app.authenticate(key).await?;
            app.admit(&caller).await?;
            caller.require(scope)?;
            request.extensions_mut().insert(caller);
            Ok(next.run(request).await)
        }
        Needs::Nothing => Ok(next.run(request).await),
        // No row of this door asks for these.
        Needs::KeyOnSocket
        | Needs::Toolbox(_)
        | Needs::ToolboxFile(_)
        | Needs::Life
        | Needs::Access
        | Needs::AccessOrSignature
        | Needs::AccessOrTraffic
        | Needs::SignedUpload
        | Needs::VolumeToken
        | Needs::Port
        | Needs::Peer => Err(unauthorised()),
    }
}

/// The key of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

fn unauthorised() -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "forbidden", "no API key: send Authorization: Bearer KEY")
}

/// The path, query and headers of every call.
async fn within_budget(request: Request, next: Next) -> Response {
    match parts::check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(excess) => Refusal::from(Error::from(excess)).into_response(),
    }
}

async fn no_such_call(request: Request) -> Refusal {
    let message = format!("{} {} is no call of this server's Vercel API", request.method(), request.uri().path());
    Refusal::new(StatusCode::NOT_FOUND, "not_found", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_sandbox() {
        let id = "abcdefghij0123456789";
        let session = format!("/api/v2/sandboxes/sessions/sbx_{id}1700000000000/cmd");
        assert_eq!(subject(&session), Subject::by_id(id));
        assert_eq!(subject("/api/v2/sandboxes/box/fork"), Subject::Named("box".into()));
        assert_eq!(subject("/api/v2/sandboxes/snapshots/x"), Subject::Nothing);
        assert_eq!(subject("/api/v3/sandboxes"), Subject::Nothing);
    }
}
