//! The native API, below `/api`.

pub mod auth;
pub mod error;
pub mod sandboxes;
pub mod view;

use axum::Router;
use axum::routing::{get, post};

use crate::App;

pub fn router(app: App) -> Router {
    Router::new()
        .route("/sandboxes", post(sandboxes::create).get(sandboxes::list))
        .route("/sandboxes/{id}", get(sandboxes::get).delete(sandboxes::destroy))
        .route("/sandboxes/{id}/start", post(sandboxes::start))
        .route("/sandboxes/{id}/stop", post(sandboxes::stop))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .with_state(app)
}
