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

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

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

/// 200 when the server is ready for all that may be asked of it, 503 with the reason when it is not. In detail for those who
/// take JSON.
async fn health(State(app): State<App>, headers: HeaderMap) -> Response {
    let checks = app.health().await;
    let ok = checks.iter().all(|check| check.ok);
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let takes_json = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let mut response = if takes_json.contains("application/json") {
        let word = if ok { "ok" } else { "in trouble" };
        (status, Json(serde_json::json!({"status": word, "checks": checks}))).into_response()
    } else {
        let wrong: Vec<String> = checks.into_iter().filter_map(|check| check.message).collect();
        (status, if ok { "ok\n".to_owned() } else { format!("{}\n", wrong.join("\n")) }).into_response()
    };
    if !ok {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    }
    response
}
