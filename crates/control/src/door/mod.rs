//! The API dialects on one port, each below its prefix. A door translates and decides nothing.

pub mod native;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::App;

/// Every door of the server.
pub fn router(app: App) -> Router {
    Router::new().route("/healthz", get(health)).with_state(app.clone()).nest("/api", native::router(app))
}

/// 200 when the server is ready to serve.
async fn health(State(app): State<App>) -> impl IntoResponse {
    match app.store().ping().await {
        Ok(()) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n"),
    }
}
