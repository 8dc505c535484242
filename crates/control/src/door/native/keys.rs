//! API keys.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path};
use crate::App;
use crate::clock::Timestamp;
use crate::key::manage::{Force, NewKey};
use crate::key::{Key, Scope};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct KeyView {
    id: String,
    name: String,
    scope: Scope,
    /// The secret's first letters.
    prefix: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
}

impl From<Key> for KeyView {
    fn from(key: Key) -> Self {
        KeyView {
            id: key.id,
            name: key.name,
            scope: key.scope,
            prefix: key.prefix,
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    name: String,
    scope: Scope,
    expires_in_seconds: Option<u64>,
    /// Another organisation than your own: operators only.
    organisation: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    key: KeyView,
    /// Told this once.
    secret: String,
}

/// Create an API key
///
/// No key can make one that may do more than itself.
#[utoipa::path(post, path = "/keys", tag = "keys", request_body = CreateKey,
    responses((status = 201, description = "The key and its secret", body = CreatedKey)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let new = NewKey {
        name: body.name,
        scope: body.scope,
        expires_in_seconds: body.expires_in_seconds,
        organisation: body.organisation,
    };
    let (key, secret) = app.create_key(&caller, new).await?;
    Ok((StatusCode::CREATED, Json(CreatedKey { key: key.into(), secret })))
}

/// List API keys
#[utoipa::path(get, path = "/keys", tag = "keys",
    responses((status = 200, description = "Without their secrets", body = Vec<KeyView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Vec<KeyView>>, ApiError> {
    Ok(Json(app.list_keys(&caller).await?.into_iter().map(Into::into).collect()))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ForceQuery {
    /// Do it although more goes with it; the refusal says what.
    force: Option<bool>,
}

impl ForceQuery {
    pub fn force(&self) -> Force {
        if self.force.unwrap_or(false) { Force::Yes } else { Force::No }
    }
}

/// Revoke an API key
///
/// The last valid key of an operator is revoked with `force` alone: without one nobody can run the server.
#[utoipa::path(delete, path = "/keys/{id}", tag = "keys", params(("id" = String, Path), ForceQuery),
    responses((status = 204, description = "It opens nothing any more"),
        (status = 409, description = "It is the last key of an operator")))]
pub async fn revoke(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<ForceQuery>,
) -> Result<StatusCode, ApiError> {
    app.revoke_key(&caller, &id, query.force()).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Whoami {
    organisation: String,
    key: String,
    scopes: Vec<Scope>,
}

/// Who am I
#[utoipa::path(get, path = "/whoami", tag = "keys",
    responses((status = 200, description = "The key's organisation and scopes", body = Whoami)))]
pub async fn whoami(Authenticated(caller): Authenticated) -> Json<Whoami> {
    Json(Whoami { organisation: caller.organisation, key: caller.key, scopes: caller.scopes })
}
