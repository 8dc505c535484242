//! Bodies: JSON with the fields that the dialect has, and no others.

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::error::Refusal;
use crate::door::{known, size};
use crate::{border, heavy};

/// No body at all is `{}`: some calls send a content type and nothing.
pub struct Strict<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Strict<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let most = size::most(request.extensions());
        let bytes = size::whole(request.into_body(), most).await?;
        let text = if bytes.iter().all(u8::is_ascii_whitespace) { Bytes::from_static(b"{}") } else { bytes };
        let read = heavy::run(text.len(), heavy::SMALL, move || {
            border::shape::check(&text).map_err(|excess| excess.to_string())?;
            known::read(&text)
        });
        read.await.map(Strict).map_err(|reason| Refusal::bad(format!("body: {reason}")))
    }
}
