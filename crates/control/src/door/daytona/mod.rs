//! The Daytona dialect: today's Daytona SDKs work unmodified.
//!
//! ```text
//!   SDK ── /daytona/api/…          [api]: sandboxes, snapshots, account        ──▶ App
//!       ── /daytona/api/socket.io  [events]: states as they change             ◀── App::changes
//!       ── /daytona/toolbox/{id}/… [admit] → [toolbox]: files, processes, git  ──▶ Guest
//!       ── /daytona/preview/{id}/… [preview]: a port of the sandbox            ──▶ Guest::dial
//!       ── /daytona/storage/…      [storage]: build contexts, as S3 takes them ──▶ App
//! ```
//!
//! Links are made from the address that the request came by ([`origin`]), so a client on another machine gets links
//! that work there. What this server does not offer is answered with a sentence that says so, never with silence.
//!
//! What each route asks for stands with it in the tables; [`admit`] checks it on the route that matched.
//!
//! # Layout
//! * [`view`]: a sandbox as this dialect shows it · [`problem`]: the error envelope · [`body`], [`query`], [`sdk`]:
//!   clients as they really are · [`known`]: what each call takes · [`cors`]: pages of other origins
//! * [`token`]: what opens one sandbox · [`naming`]: how templates are called here

mod admit;
mod api;
mod body;
mod cors;
mod events;
mod forward;
mod known;
mod marks;
mod naming;
mod origin;
mod preview;
mod problem;
mod query;
mod sdk;
mod storage;
mod token;
mod toolbox;
mod view;

use axum::extract::Request;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::{Extension, Router};

use super::parts;
use super::peer::Subject;
use super::table::{Needs, Route};
use crate::sandbox::Sandbox;
use crate::{App, Error};
use api::Nursery;
use storage::Dock;
use token::Memory;
pub use token::sign_file;
use toolbox::Desk;

/// What every handler of the door holds.
#[derive(Clone)]
pub struct Door {
    pub app: App,
    pub desk: Desk,
    /// Sandboxes that wait for their images.
    pub nursery: Nursery,
    /// Build contexts on their way in.
    pub dock: Dock,
}

/// What this door remembers of a copy of a sandbox.
pub(super) fn note_of_copy(source: &Sandbox) -> Result<serde_json::Value, Error> {
    Memory::of_copy(source).as_door()
}

/// The control plane's routes and what each asks for.
pub fn api_routes() -> Vec<Route> {
    api::table().routes()
}

/// The toolbox's, below a sandbox's id.
pub fn toolbox_routes() -> Vec<Route> {
    toolbox::table().routes()
}

/// Where build contexts are sent.
pub fn storage_routes() -> Vec<Route> {
    storage::table().routes()
}

pub fn preview_routes() -> Vec<Route> {
    preview::table().routes()
}

/// All of it, to be nested under `/daytona`.
pub fn router(app: App) -> Router {
    let door = Door { dock: Dock::new(&app), app, desk: Desk::default(), nursery: Nursery::default() };
    // What a call takes is checked once it is known who asks.
    let keyed = |needs: Needs, handler: MethodRouter<Door>| {
        let strict = handler.route_layer(from_fn(known::guard));
        strict.route_layer(from_fn_with_state((door.clone(), needs), admit::keyed))
    };
    let inside = |needs: Needs, handler: MethodRouter<()>| {
        let strict = handler.route_layer(from_fn(known::guard));
        strict.route_layer(from_fn_with_state((door.clone(), needs), admit::into_toolbox))
    };
    let toolbox = toolbox::limits(toolbox::table().guarded(inside)).fallback(no_such_call);
    let own_toolbox = Extension(preview::Toolbox(toolbox.clone()));
    let named = tower::service_fn(move |request: Request| {
        let toolbox = toolbox.clone();
        async move { Ok::<_, std::convert::Infallible>(admit::toolbox(toolbox, request).await.into_response()) }
    });
    Router::new()
        .nest_service("/toolbox", named.clone())
        // Where SDKs before 0.128 look for it.
        .nest_service("/api/toolbox", named)
        // It checks the sandbox's own tokens itself.
        .nest("/preview", preview::table().guarded(|_, handler| handler).layer(own_toolbox).with_state(door.clone()))
        // It checks the signatures itself, and answers as S3 does.
        .nest("/storage", storage::table().guarded(|_, handler| handler).with_state(door.clone()))
        .nest(
            "/api",
            api::table().guarded(keyed).fallback(no_such_call).layer(from_fn(within_budget)).with_state(door.clone()),
        )
        .fallback(no_such_call)
        .layer(from_fn(problem::name_the_request))
        .layer(from_fn(cors::open))
}

/// Which sandbox a request is about, by its path below `/daytona`.
pub fn subject(path: &str) -> Subject {
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        ["api", "sandbox", word, ..] | ["toolbox" | "preview", word, ..] | ["api", "toolbox", word, ..] => {
            Subject::by_name(word)
        }
        _ => Subject::Nothing,
    }
}

/// The path, query and headers of every call of the control plane.
async fn within_budget(request: Request, next: Next) -> Response {
    match parts::check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(excess) => problem::Problem::from(crate::Error::from(excess)).into_response(),
    }
}

async fn no_such_call(request: Request) -> problem::Problem {
    let message = format!("{} {} is no call of this server's Daytona API", request.method(), request.uri().path());
    problem::Problem::api(axum::http::StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_sandbox() {
        let id = "abcdefghij0123456789";
        for path in ["/api/sandbox/ID/start", "/toolbox/ID/process/execute", "/api/toolbox/ID/files", "/preview/ID/80/"]
        {
            assert_eq!(subject(&path.replace("ID", id)), Subject::by_id(id), "{path}");
        }
        assert_eq!(subject("/api/sandbox/box"), Subject::Named("box".into()));
        assert_eq!(subject("/api/sandbox"), Subject::Nothing);
    }
}
