//! The API dialects on one port, each below its prefix. A door translates and decides nothing.

pub mod daytona;
pub mod e2b;
pub(crate) mod entrance;
pub mod native;
mod observe;
pub(crate) mod peer;
mod prometheus;
mod relay;
mod root;
mod shield;
mod websocket;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::App;

/// Every door of the server.
pub fn router(app: App) -> Router {
    let e2b = e2b::Door::new(app.clone());
    let director = peer::Director::new(app.clone());
    Router::new()
        .route("/", get(root::page))
        .route("/healthz", get(health))
        .route("/metrics", get(prometheus::metrics))
        .with_state(app.clone())
        .nest("/daytona", daytona::router(app.clone()))
        .nest("/api", native::router(app))
        // A sandbox's host name decides before any path does.
        .layer(axum::middleware::from_fn_with_state(e2b, e2b::intercept))
        .layer(axum::middleware::from_fn(observe::observe))
        // Outermost: what another server must answer none of our doors can.
        .layer(axum::middleware::from_fn_with_state(director, peer::direct))
}

/// 200 when the server is ready to serve.
async fn health(State(app): State<App>) -> impl IntoResponse {
    match app.store().ping().await {
        Ok(()) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}
