//! The E2B dialect: unmodified E2B clients work against this server by environment variables alone.
//!
//! ```text
//!   request ─▶ destination (pure: host, headers, path)
//!                ├─ API ──────────▶ api/*        sandboxes, templates …
//!                ├─ sandbox:49983 ▶ envd ─▶ process · filesystem · files      spoken here, carried out by the guest
//!                ├─ sandbox:49999 ▶ code_interpreter                        stateful cells
//!                ├─ sandbox:port ─▶ preview      HTTP and WebSockets to what listens inside
//!                └─ elsewhere ────▶ the other doors
//! ```
//!
//! * [`connect`]: the Connect protocol, both encodings; [`message`]: the messages, defined once
//! * [`envd`]: the daemon's routes, users and paths; [`files`]: bytes in and out, signed links
//! * [`traffic`]: which sandbox, and whether the caller may; [`api`]: the control plane
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
pub mod marks;
pub mod message;
pub mod preview;
pub mod process;
pub mod query;
pub mod signers;
pub mod traffic;
pub mod watchers;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use tower::ServiceExt;

use self::destination::{Destination, Names};
use self::error::plain;
use self::signers::Signers;
use self::watchers::Watchers;
use crate::App;

/// The door: what its requests share.
#[derive(Clone)]
pub struct Door {
    pub app: App,
    pub watchers: Arc<Watchers>,
    pub signers: Arc<Signers>,
    api: Router,
}

impl Door {
    pub fn new(app: App) -> Self {
        let api = api::router(app.clone());
        Door { app, watchers: Arc::default(), signers: Arc::default(), api }
    }
}

/// Takes what is of this dialect and passes the rest on. To be laid around all other doors, since a sandbox's host
/// name decides before any path does.
pub async fn intercept(State(door): State<Door>, mut request: Request<Body>, next: Next) -> Response {
    let config = door.app.config();
    let names = Names { domain: &config.domain, public_url: config.public_url.as_deref() };
    match destination::of(request.method(), request.uri(), request.headers(), names) {
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
        Destination::Api => {
            traffic::strip_prefix(&mut request);
            match door.api.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
        Destination::NoSuchHost => plain(StatusCode::NOT_FOUND, "no sandbox and no API has this host name"),
        Destination::Malformed(reason) => plain(StatusCode::BAD_REQUEST, reason),
    }
}
