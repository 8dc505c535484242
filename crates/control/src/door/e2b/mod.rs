//! The E2B dialect: unmodified E2B clients work against this server by environment variables alone.
//!
//! ```text
//!   request ─▶ destination (pure: host, headers, path)
//!                ├─ API ──────────▶ api/*        sandboxes, templates …       [api::table]
//!                ├─ sandbox:49983 ▶ envd ─▶ process · filesystem · files      [envd::table]
//!                ├─ sandbox:49999 ▶ code_interpreter    stateful cells        [code_interpreter::table]
//!                ├─ sandbox:port ─▶ preview      HTTP and WebSockets to what listens inside
//!                └─ elsewhere ────▶ the other doors
//! ```
//!
//! * [`connect`]: the Connect protocol, both encodings; [`message`]: the messages, defined once
//! * [`envd`]: the daemon's routes, users and paths; [`files`]: bytes in and out, signed links
//! * [`known`]: what each call takes
//! * [`traffic`]: which sandbox, and whether the caller may; [`api`]: the control plane
//! * [`upload`]: files for builds, by signed links; [`volume_content`]: files of volumes, by their tokens
//!
//! The daemons are spoken here and carried out by the guest. Each table says what every route asks for; the guard of the
//! daemons, in [`traffic`], checks it on the route that matched.
//!
//! What the dialect does not know of itself the domain decides: this door translates.

pub mod api;
pub mod code_interpreter;
pub mod connect;
pub mod destination;
pub mod envd;
pub mod error;
pub mod facts;
pub mod figures;
pub mod files;
pub mod filesystem;
mod known;
pub mod marks;
pub mod message;
pub mod preview;
pub mod process;
pub mod query;
pub mod signers;
pub mod traffic;
pub mod upload;
pub mod volume_content;
pub mod watchers;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use tower::ServiceExt;

use self::destination::{Destination, Names};
use self::error::plain;
use self::signers::Signers;
use self::traffic::Guard;
use self::watchers::Watchers;
use super::peer::Subject;
use crate::App;

/// The door: what its requests share.
#[derive(Clone)]
pub struct Door {
    pub app: App,
    pub signers: Arc<Signers>,
    api: Router,
    envd: Router,
    interpreter: Router,
}

impl Door {
    pub fn new(app: App) -> Self {
        let guard = Guard { app: app.clone(), watchers: Arc::<Watchers>::default() };
        Door {
            api: api::router(app.clone()),
            envd: guard.around(envd::table()),
            interpreter: guard.around(code_interpreter::table()),
            signers: Arc::default(),
            app,
        }
    }

    /// The API, below any prefix.
    pub fn api(&self) -> Router {
        self.api.clone()
    }
}

fn names(app: &App) -> Names<'_> {
    Names { domain: &app.config().domain, public_url: app.config().public_url.as_deref() }
}

/// Takes what its host name or its headers give to this dialect, and passes the rest on to the paths.
pub async fn by_name(State(door): State<Door>, request: Request<Body>, next: Next) -> Response {
    match destination::of(request.method(), request.uri(), request.headers(), names(&door.app)) {
        Destination::Elsewhere => next.run(request).await,
        Destination::Sandbox { id, port, reached } => door.traffic(&id, port, reached, request).await,
        Destination::SignedFile => {
            let mut response = door.signed_file(request).await;
            traffic::open_to_browsers(response.headers_mut());
            response
        }
        Destination::Preflight => {
            let mut response = StatusCode::NO_CONTENT.into_response();
            traffic::open_to_browsers(response.headers_mut());
            response
        }
        Destination::Api => door.api().oneshot(request).await.unwrap_or_else(|never| match never {}),
        Destination::NoSuchHost => plain(StatusCode::NOT_FOUND, "no sandbox and no API has this host name"),
        Destination::Malformed(reason) => plain(StatusCode::BAD_REQUEST, reason),
    }
}

/// Which sandbox a request of this dialect is about; nothing where it is another dialect's.
pub fn subject(app: &App, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Subject> {
    let path = match destination::of(method, uri, headers, names(app)) {
        Destination::Sandbox { id, .. } => return Some(Subject::by_id(&id)),
        Destination::Api => uri.path(),
        // Below its prefix it is found by path.
        Destination::Elsewhere => destination::strip(uri.path())?,
        Destination::SignedFile | Destination::Preflight | Destination::NoSuchHost | Destination::Malformed(_) => {
            return Some(Subject::Nothing);
        }
    };
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    Some(match words.as_slice() {
        ["sandboxes", id, ..] | ["v2", "sandboxes", id, ..] => Subject::by_id(destination::sandbox_id(id)),
        _ => Subject::Nothing,
    })
}
