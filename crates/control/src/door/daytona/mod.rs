//! The Daytona dialect: today's Daytona SDKs work unmodified.
//!
//! ```text
//!   SDK ── /daytona/api/…          [api]: sandboxes, snapshots, account        ──▶ App
//!       ── /daytona/api/socket.io  [events]: states as they change             ◀── App::changes
//!       ── /daytona/toolbox/{id}/… [admit] → [toolbox]: files, processes, git  ──▶ Guest
//!       ── /daytona/preview/{id}/… [preview]: a port of the sandbox            ──▶ Guest::dial
//! ```
//!
//! Links are made from the address that the request came by ([`origin`]), so a client on another machine gets links
//! that work there. What this server does not offer is answered with a sentence that says so, never with silence.
//!
//! # Layout
//! * [`view`]: a sandbox as this dialect shows it · [`problem`]: the error envelope · [`body`], [`query`], [`sdk`]:
//!   clients as they really are · [`token`]: what opens one sandbox

mod admit;
mod api;
mod body;
mod events;
mod forward;
mod marks;
mod origin;
mod preview;
mod problem;
mod query;
mod sdk;
mod token;
mod toolbox;
mod view;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn;
use axum::response::IntoResponse;

use crate::App;
use toolbox::Desk;

/// What every handler of the door holds.
#[derive(Clone)]
pub struct Door {
    pub app: App,
    pub desk: Desk,
}

/// All of it, to be nested under `/daytona`.
pub fn router(app: App) -> Router {
    let door = Door { app, desk: Desk::default() };
    let toolbox: Router = toolbox::router().fallback(no_such_call);
    let admitted = {
        let door = door.clone();
        tower::service_fn(move |request: Request| {
            let (door, toolbox) = (door.clone(), toolbox.clone());
            async move { Ok::<_, std::convert::Infallible>(admit::toolbox(door, toolbox, request).await.into_response()) }
        })
    };
    let previewed = {
        let door = door.clone();
        tower::service_fn(move |request: Request| {
            let door = door.clone();
            async move { Ok::<_, std::convert::Infallible>(preview::serve(door, request).await.into_response()) }
        })
    };
    Router::new()
        .nest_service("/toolbox", admitted.clone())
        // Where SDKs before 0.128 look for it.
        .nest_service("/api/toolbox", admitted)
        .nest_service("/preview", previewed)
        .nest("/api", api::router().fallback(no_such_call).with_state(door))
        .fallback(no_such_call)
        .layer(from_fn(problem::name_the_request))
}

async fn no_such_call(request: Request) -> problem::Problem {
    let message = format!("{} {} is no call of this server's Daytona API", request.method(), request.uri().path());
    problem::Problem::api(axum::http::StatusCode::NOT_FOUND, "NOT_FOUND", message)
}
