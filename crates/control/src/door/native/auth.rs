//! Who is calling: `Authorization: Bearer KEY` or `X-API-Key: KEY`.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;

use super::error::ApiError;
use crate::{App, Caller, Error};

/// A caller whose key was checked.
pub struct Authenticated(pub Caller);

impl FromRequestParts<App> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let secret = secret(parts).ok_or_else(|| {
            Error::Unauthenticated("no API key: send `Authorization: Bearer KEY` or `X-API-Key: KEY`".into())
        })?;
        Ok(Authenticated(app.authenticate(secret).await?))
    }
}

fn secret(parts: &Parts) -> Option<&str> {
    let bearer = parts
        .headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")));
    let header = || parts.headers.get("x-api-key").and_then(|value| value.to_str().ok());
    bearer.or_else(header).map(str::trim)
}
