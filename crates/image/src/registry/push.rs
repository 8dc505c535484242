//! The other way: blobs and a manifest into a registry.
//!
//! ```text
//!   blob ─▶ HEAD ─▶ there                              nothing is sent
//!             └──▶ not ─▶ POST ─▶ 201: mounted         nothing is sent
//!                           └──▶ 202 ─▶ PATCH … ─▶ PUT       breaks off: again from HEAD on, a few times
//!   all of them there ─▶ PUT of the manifest
//! ```
//!
//! What is sent stays at the registry that was named: an upload that is to go on elsewhere, and an answer that sends it on,
//! are refused. A peer is given up that neither takes anything nor answers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Body, Method, Response, Url};

use super::auth::Action;
use super::send::{Call, Upload};
use super::{Endpoint, Error, Progress, Registry};
use crate::digest::Digest;
use crate::manifest::{Manifest, OCI_MANIFEST};
use crate::reference::Reference;

const BUFFER: u64 = 256 << 10;
/// How much of a digest is shown that a registry claims.
const CLAIMED: usize = 80;

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    pub manifest: Digest,
    /// Blobs that were sent; the others were there.
    pub sent: usize,
}

/// One blob on its way.
struct Blob<'a> {
    endpoint: &'a Endpoint,
    digest: Digest,
    size: u64,
    file: Arc<File>,
    /// Another repository of the registry that may have it.
    from: Option<&'a str>,
    what: String,
}

impl Registry {
    /// Sends an image: its blobs (config and layers) by digest, then its manifest under the reference's tag or digest.
    /// `from` names a repository of the same registry whose blobs may be mounted. Mirrors are not asked: what is pushed goes
    /// to the registry itself.
    pub async fn push(
        &self,
        reference: &Reference,
        manifest: &Manifest,
        blobs: &BTreeMap<Digest, Arc<File>>,
        from: Option<&str>,
        progress: impl Fn(Progress) + Sync,
    ) -> Result<Pushed, Error> {
        let endpoint = Endpoint::new(reference.registry(), reference.name());
        let all: BTreeMap<Digest, u64> =
            manifest.layers.iter().chain([&manifest.config]).map(|part| (part.digest, part.size)).collect();
        let mut parts = Vec::new();
        for (digest, size) in all {
            let what = endpoint.blob(&digest);
            let missing = || Error::Content { what: what.clone(), why: "it is not among the blobs to send".into() };
            let file = Arc::clone(blobs.get(&digest).ok_or_else(missing)?);
            parts.push(Blob { endpoint: &endpoint, digest, size, file, from, what });
        }
        // As futures before they are a stream: a closure over one that borrows is not general enough to be sent between threads.
        let mut sending = Vec::new();
        for blob in &parts {
            sending.push(self.push_blob(blob, &progress));
        }
        let sent: Vec<bool> =
            stream::iter(sending).buffer_unordered(self.options().parallel.max(1)).try_collect().await?;
        let manifest = self.push_manifest(&endpoint, reference, manifest).await?;
        Ok(Pushed { manifest, sent: sent.into_iter().filter(|sent| *sent).count() })
    }

    async fn push_manifest(
        &self,
        endpoint: &Endpoint,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<Digest, Error> {
        let bytes = Bytes::from(serde_json::to_vec(manifest).map_err(io::Error::from)?);
        let digest = Digest::of(&bytes);
        let target = reference.tag().map_or_else(|| digest.to_string(), str::to_owned);
        let (url, what) = (self.manifest_url(endpoint, &target).await?, endpoint.what(&target));
        let body = || Body::from(bytes.clone());
        let mut call = push_call(Method::PUT, url, endpoint, what.clone(), &body);
        let media_type = manifest.media_type.as_deref().unwrap_or(OCI_MANIFEST);
        let media_type = HeaderValue::from_str(media_type).unwrap_or(HeaderValue::from_static(OCI_MANIFEST));
        call.headers.insert(CONTENT_TYPE, media_type);
        confirm(&self.send(&call).await?, &digest, &what)?;
        Ok(digest)
    }

    /// Whether it had to be sent. What breaks off is begun again, a few times.
    async fn push_blob(&self, blob: &Blob<'_>, progress: &(impl Fn(Progress) + Sync)) -> Result<bool, Error> {
        let mut attempt = 1;
        loop {
            let error = match self.try_blob(blob, progress).await {
                Ok(sent) => {
                    progress(Progress { layer: blob.digest, done: blob.size, size: blob.size });
                    return Ok(sent);
                }
                Err(error) => error,
            };
            if !error.is_passing() || attempt >= self.options().attempts {
                return Err(error);
            }
            self.pause(attempt, &error).await?;
            attempt += 1;
        }
    }

    async fn try_blob(&self, blob: &Blob<'_>, progress: &(impl Fn(Progress) + Sync)) -> Result<bool, Error> {
        let Blob { endpoint, digest, size, what, .. } = blob;
        if self.has_blob(blob).await? {
            return Ok(false);
        }
        let mut begin = self.url(endpoint, "blobs/uploads/").await?;
        if let Some(from) = blob.from {
            begin.query_pairs_mut().append_pair("mount", &digest.to_string()).append_pair("from", from);
        }
        let empty = || Body::from("");
        let mut call = push_call(Method::POST, begin.clone(), endpoint, what.clone(), &empty);
        call.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let response = self.attempt(&call).await?;
        // 201: mounted, nothing is sent.
        if response.status().as_u16() == 201 {
            return Ok(false);
        }
        let mut upload = location(&begin, &response, what)?;
        let mut at = 0;
        let length = self.options().piece.max(1);
        while size - at > length {
            let mut headers = octets(length);
            let range = HeaderValue::from_str(&format!("{at}-{}", at + length - 1)).map_err(io::Error::other)?;
            headers.insert(CONTENT_RANGE, range);
            let piece = Piece { method: Method::PATCH, url: upload.clone(), headers, at, length };
            let response = self.push_piece(blob, piece, progress).await?;
            upload = location(&upload, &response, what)?;
            at += length;
        }
        upload.query_pairs_mut().append_pair("digest", &digest.to_string());
        let length = size - at;
        let piece = Piece { method: Method::PUT, url: upload, headers: octets(length), at, length };
        let response = self.push_piece(blob, piece, progress).await?;
        confirm(&response, digest, what)?;
        Ok(true)
    }

    async fn has_blob(&self, blob: &Blob<'_>) -> Result<bool, Error> {
        let url = self.url(blob.endpoint, &format!("blobs/{}", blob.digest)).await?;
        let mut head = Call::new(Method::HEAD, url, blob.endpoint, blob.what.clone());
        head.action = Action::Push;
        match self.attempt(&head).await {
            Ok(response) => confirm(&response, &blob.digest, &blob.what).map(|()| true),
            // Some have no HEAD.
            Err(Error::NotFound { .. } | Error::Answer { status: 405 | 501, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Not sent twice: the registry already has the first part of a piece that broke off.
    async fn push_piece(
        &self,
        blob: &Blob<'_>,
        piece: Piece,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Result<Response, Error> {
        let Piece { method, url, headers, at, length } = piece;
        let taken = Arc::new(AtomicU64::new(0));
        let body = || {
            taken.store(0, Ordering::Relaxed);
            Body::wrap_stream(pieces(Arc::clone(&blob.file), at, length, Arc::clone(&taken)))
        };
        let tell = |taken: u64| progress(Progress { layer: blob.digest, done: at + taken, size: blob.size });
        let mut call = push_call(method, url, blob.endpoint, blob.what.clone(), &body);
        call.headers = headers;
        call.upload = Some(Upload { taken: &taken, tell: &tell });
        match self.attempt(&call).await {
            // Another upload may fare better.
            Err(Error::NotFound { what }) => {
                Err(Error::Unreachable { what, why: "the registry does not know the upload that it began".into() })
            }
            other => other,
        }
    }
}

/// A part of a blob, and where it goes.
struct Piece {
    method: Method,
    url: Url,
    headers: HeaderMap,
    at: u64,
    length: u64,
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

/// Where a registry says what it has, it is what was meant.
fn confirm(response: &Response, digest: &Digest, what: &str) -> Result<(), Error> {
    let told = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
    match told {
        Some(told) if told != digest.to_string() => {
            let told: String = told.chars().take(CLAIMED).collect();
            let why = format!("the registry says that it has another content: {told}");
            Err(Error::Content { what: what.to_owned(), why })
        }
        _ => Ok(()),
    }
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

/// A part of a file, piece by piece. `taken` is how much of it was wanted so far.
fn pieces(
    file: Arc<File>,
    at: u64,
    length: u64,
    taken: Arc<AtomicU64>,
) -> impl futures::Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold((at, length), move |(at, left)| {
        let (file, taken) = (Arc::clone(&file), Arc::clone(&taken));
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
            taken.fetch_add(most, Ordering::Relaxed);
            Ok(Some((Bytes::from(buffer), (at + most, left - most))))
        }
    })
}
