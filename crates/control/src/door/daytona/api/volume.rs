//! Volumes: not offered yet, with a clear error.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::problem::Problem;

pub async fn list(Authenticated(_): Authenticated) -> Json<Value> {
    Json(json!([]))
}

pub async fn none(Authenticated(_): Authenticated) -> Problem {
    super::not_offered("volumes are not offered")
}

pub async fn show(Authenticated(_): Authenticated, Path(id): Path<String>) -> Problem {
    Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", format!("volume {id} not found"))
}

pub async fn show_by_name(Authenticated(_): Authenticated, Path(name): Path<String>) -> Problem {
    Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", format!("volume {name} not found"))
}
