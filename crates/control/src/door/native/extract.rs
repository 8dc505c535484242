//! Bodies and queries, with refusals in the API's own shape.

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::Error;

/// Bodies of messages are small; files are streamed.
const LARGEST: usize = 16 << 20;

/// A JSON body. An empty one is `{}`: most fields have defaults.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes: Bytes = axum::body::to_bytes(request.into_body(), LARGEST)
            .await
            .map_err(|error| Error::invalid("body", format!("not read: {error} (at most 16 MiB)")))?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let parsed = serde_json::from_slice(text).map_err(|error| Error::invalid("body", error.to_string()))?;
        Ok(Body(parsed))
    }
}

/// The query.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::try_from_uri(&parts.uri).map_err(|error| {
            Error::invalid("query", error.body_text().replace("Failed to deserialize query string: ", ""))
        })?;
        Ok(Params(query.0))
    }
}

/// For fields where absent, `null` and a value are three things.
pub fn maybe<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Ok(Some(Option::deserialize(from)?))
}
