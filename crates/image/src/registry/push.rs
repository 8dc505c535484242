//! The other way: blobs and a manifest into a registry.
//!
//! A blob that is there is not sent. One that another repository of the registry has is mounted. Others go in one piece, or
//! in several where they are large.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Body, Method, Response, Url};

use super::auth::Action;
use super::send::Call;
use super::{Endpoint, Error, Registry};
use crate::digest::Digest;
use crate::manifest::{Manifest, OCI_MANIFEST};
use crate::reference::Reference;

const BUFFER: u64 = 256 << 10;

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    pub manifest: Digest,
    /// Blobs that were sent; the others were there.
    pub sent: usize,
}

impl Registry {
    /// Sends an image: its blobs (config and layers) by digest, then its manifest under the reference's tag or digest.
    /// `from` names repositories of the same registry whose blobs may be mounted.
    pub async fn push(
        &self,
        reference: &Reference,
        manifest: &Manifest,
        blobs: &BTreeMap<Digest, Arc<File>>,
        from: Option<&str>,
    ) -> Result<Pushed, Error> {
        let endpoint = Endpoint::new(reference.registry(), reference.name());
        let mut sent = 0;
        let all: BTreeMap<Digest, u64> =
            manifest.layers.iter().chain([&manifest.config]).map(|part| (part.digest, part.size)).collect();
        for (digest, size) in all {
            let missing =
                || Error::Content { what: endpoint.blob(&digest), why: "it is not among the blobs to send".into() };
            let file = blobs.get(&digest).ok_or_else(missing)?;
            sent += usize::from(self.push_blob(&endpoint, digest, size, file, from).await?);
        }
        let bytes = Bytes::from(serde_json::to_vec(manifest).map_err(io::Error::from)?);
        let digest = Digest::of(&bytes);
        let target = reference.tag().map_or_else(|| digest.to_string(), str::to_owned);
        let url = self.manifest_url(&endpoint, &target).await?;
        let body = || Body::from(bytes.clone());
        let mut call = push_call(Method::PUT, url, &endpoint, endpoint.what(&target), &body);
        let media_type = manifest.media_type.as_deref().unwrap_or(OCI_MANIFEST);
        let media_type = HeaderValue::from_str(media_type).unwrap_or(HeaderValue::from_static(OCI_MANIFEST));
        call.headers.insert(CONTENT_TYPE, media_type);
        self.send(&call).await?;
        Ok(Pushed { manifest: digest, sent })
    }

    /// Whether it had to be sent.
    async fn push_blob(
        &self,
        endpoint: &Endpoint,
        digest: Digest,
        size: u64,
        file: &Arc<File>,
        from: Option<&str>,
    ) -> Result<bool, Error> {
        let what = endpoint.blob(&digest);
        let url = self.url(endpoint, &format!("blobs/{digest}")).await?;
        let mut head = Call::new(Method::HEAD, url, endpoint, what.clone());
        head.action = Action::Push;
        match self.send(&head).await {
            Ok(_) => return Ok(false),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut begin = self.url(endpoint, "blobs/uploads/").await?;
        if let Some(from) = from {
            begin.query_pairs_mut().append_pair("mount", &digest.to_string()).append_pair("from", from);
        }
        let empty = || Body::from("");
        let mut call = push_call(Method::POST, begin.clone(), endpoint, what.clone(), &empty);
        call.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let response = self.send(&call).await?;
        // 201: mounted, nothing is sent.
        if response.status().as_u16() == 201 {
            return Ok(false);
        }
        let mut upload = location(&begin, &response, &what)?;
        let mut at = 0;
        let length = self.options().piece.max(1);
        while size - at > length {
            let body = || Body::wrap_stream(pieces(Arc::clone(file), at, length));
            let mut call = push_call(Method::PATCH, upload.clone(), endpoint, what.clone(), &body);
            call.headers = octets(length);
            let range = HeaderValue::from_str(&format!("{at}-{}", at + length - 1)).map_err(io::Error::other)?;
            call.headers.insert(CONTENT_RANGE, range);
            // Not sent twice: the registry already has the first part of a piece that broke off.
            let response = self.attempt(&call).await?;
            upload = location(&upload, &response, &what)?;
            at += length;
        }
        upload.query_pairs_mut().append_pair("digest", &digest.to_string());
        let body = || Body::wrap_stream(pieces(Arc::clone(file), at, size - at));
        let mut call = push_call(Method::PUT, upload, endpoint, what, &body);
        call.headers = octets(size - at);
        self.attempt(&call).await?;
        Ok(true)
    }
}

fn push_call<'a>(
    method: Method,
    url: Url,
    endpoint: &'a Endpoint,
    what: String,
    body: &'a (dyn Fn() -> Body + Send + Sync),
) -> Call<'a> {
    Call { action: Action::Push, body: Some(body), ..Call::new(method, url, endpoint, what) }
}

fn octets(length: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers
}

/// Where the upload goes on. Only on the registry itself: the credentials are for it.
fn location(base: &Url, response: &Response, what: &str) -> Result<Url, Error> {
    let wrong = |why: &str| Error::Content { what: what.to_owned(), why: why.to_owned() };
    let text = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let next =
        text.and_then(|text| base.join(text).ok()).ok_or_else(|| wrong("the registry does not say where to upload"))?;
    match next.origin() == base.origin() {
        true => Ok(next),
        false => Err(wrong("the registry wants the upload at another host")),
    }
}

/// A part of a file, piece by piece.
fn pieces(file: Arc<File>, at: u64, length: u64) -> impl futures::Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold((at, length), move |(at, left)| {
        let file = Arc::clone(&file);
        async move {
            let most = left.min(BUFFER);
            if most == 0 {
                return Ok(None);
            }
            let read = move || {
                let mut buffer = vec![0; usize::try_from(most).unwrap_or(0)];
                file.read_exact_at(&mut buffer, at).map(|()| buffer)
            };
            let buffer = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
            Ok(Some((Bytes::from(buffer), (at + most, left - most))))
        }
    })
}
