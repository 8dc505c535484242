//! Sandboxes over HTTP.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::auth::Authenticated;
use super::error::ApiError;
use super::view::SandboxView;
use crate::App;
use crate::sandbox::{Filter, NewSandbox, Page};

#[derive(Debug, serde::Deserialize)]
pub struct Create {
    name: Option<String>,
    template: Option<String>,
}

type One = Result<Json<SandboxView>, ApiError>;

pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Json(body): Json<Create>,
) -> Result<(StatusCode, Json<SandboxView>), ApiError> {
    let new = NewSandbox { name: body.name, template: body.template, ..NewSandbox::default() };
    Ok((StatusCode::CREATED, Json(app.create_sandbox(&caller, new).await?.into())))
}

pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Vec<SandboxView>>, ApiError> {
    let listed = app.list_sandboxes(&caller, &Filter::default(), &Page::default()).await?;
    Ok(Json(listed.items.into_iter().map(Into::into).collect()))
}

pub async fn get(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.sandbox(&caller, &id).await?.into()))
}

pub async fn start(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.start(&caller, &id).await?.into()))
}

pub async fn stop(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.stop(&caller, &id).await?.into()))
}

pub async fn pause(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.pause(&caller, &id).await?.into()))
}

pub async fn resume(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.resume(&caller, &id).await?.into()))
}

pub async fn destroy(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.destroy(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
