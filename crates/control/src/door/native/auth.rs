//! Who is calling: `Authorization: Bearer KEY`, `X-API-Key: KEY`, or for WebSockets of browsers `?api_key=KEY`.
//!
//! The guard stands before every route: it checks the key, counts the request, and adds what is left to the answer.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, rate_headers};
use crate::door::parts;
use crate::rate::Allowance;
use crate::{App, Caller, Error};

/// A caller whose key was checked.
pub struct Authenticated(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Authenticated(caller.ok_or_else(|| Error::internal("a route without its guard"))?))
    }
}

pub async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if let Err(excess) = parts::check(request.uri(), request.headers()) {
        return ApiError(excess.into()).into_response();
    }
    let admitted = admit(&app, request.headers(), request.uri().query()).await;
    let (caller, allowance) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => return ApiError(error).into_response(),
    };
    request.extensions_mut().insert(caller);
    let mut response = next.run(request).await;
    rate_headers(response.headers_mut(), allowance.limit, allowance.remaining, allowance.reset);
    response
}

async fn admit(app: &App, headers: &HeaderMap, query: Option<&str>) -> Result<(Caller, Allowance), Error> {
    let secret = shown(headers, query).ok_or_else(|| {
        Error::Unauthenticated("no API key: send `Authorization: Bearer KEY` or `X-API-Key: KEY`".into())
    })?;
    let caller = app.authenticate(&secret).await?;
    let allowance = app.admit(&caller).await?;
    Ok((caller, allowance))
}

/// The secret that a call shows, wherever it may.
pub fn shown(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    secret(headers).or_else(|| secret_in_query(headers, query))
}

pub fn secret(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(AUTHORIZATION.as_str())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, secret)| secret);
    bearer.or_else(|| text("x-api-key")).map(|secret| secret.trim().to_owned())
}

/// Only for WebSockets: a browser cannot set their headers. Elsewhere a key in a URL would end up in logs.
fn secret_in_query(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    headers.get("upgrade")?;
    query?.split('&').find_map(|pair| pair.strip_prefix("api_key=")).map(ToOwned::to_owned)
}
