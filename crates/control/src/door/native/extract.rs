//! Bodies and queries, with refusals in the API's own shape.

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::door::known::explained;
use crate::door::size;
use crate::{Error, border, heavy};

/// A JSON body that must be there.
pub struct Body<T>(pub T);

/// A JSON body; without one everything has its default.
pub struct OptionalBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = whole(request).await?;
        if bytes.is_empty() {
            return Err(Error::invalid("body", "a JSON object is wanted, nothing came").into());
        }
        Ok(Body(parse(bytes).await?))
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default + Send + 'static> FromRequest<S> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = whole(request).await?;
        Ok(OptionalBody(if bytes.is_empty() { T::default() } else { parse(bytes).await? }))
    }
}

async fn whole(request: Request) -> Result<Bytes, Error> {
    let most = size::most(request.extensions());
    size::whole(request.into_body(), most).await
}

async fn parse<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T, Error> {
    // A list would be taken for an object's fields in their order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Error::invalid("body", "a JSON object is wanted"));
    }
    let read = heavy::run(bytes.len(), heavy::SMALL, move || {
        border::shape::check(&bytes)?;
        serde_json::from_slice(&bytes).map_err(|error| Error::invalid("body", explained(&error.to_string())))
    });
    read.await
}

/// A number that was asked for, or the usual one; never one outside of what the document says.
pub fn within(field: &str, asked: Option<u32>, usual: u32, most: u32) -> Result<u32, Error> {
    match asked {
        Some(number) if !(1..=most).contains(&number) => Err(Error::invalid(field, format!("1 to {most}"))),
        asked => Ok(asked.unwrap_or(usual)),
    }
}

/// The query.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::try_from_uri(&parts.uri).map_err(|error| {
            Error::invalid("query", explained(&error.body_text().replace("Failed to deserialize query string: ", "")))
        })?;
        Ok(Params(query.0))
    }
}

/// What stands in the path.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(path) => Ok(Path(path.0)),
            Err(rejection) => Err(Error::invalid("path", rejection.body_text()).into()),
        }
    }
}

/// For fields that are objects: a list would be taken for an object's fields in their order.
pub fn object<'de, D: serde::Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<T, D::Error> {
    match serde_json::Value::deserialize(from)? {
        object @ serde_json::Value::Object(_) => serde_json::from_value(object).map_err(serde::de::Error::custom),
        _ => Err(serde::de::Error::custom("an object is wanted")),
    }
}

/// For fields where absent, `null` and a value are three things.
pub fn maybe<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Ok(Some(Option::deserialize(from)?))
}
