//! Layers that another server has: they come here when something is to be started from them.
//!
//! ```text
//!   create of a template ─▶ every layer here? ─ yes ─▶ launch
//!                                │ no
//!                                ▼
//!      held by work ─▶ asked of each server that has it ─▶ draft, compared ─▶ layer, and a place in the store
//! ```
//! The store says who has which layer. A layer is the same everywhere: whoever fetched it can send it on, so it survives the
//! server that made it. It goes everywhere when nobody needs it any more, anywhere.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::DuplexStream;
use tokio::sync::Semaphore;
use tokio_util::io::StreamReader;

use super::line;
use crate::image::Layer;
use crate::image::work::Work;
use crate::provider::images::LayerInfo;
use crate::provider::{LayerId, ProviderError, Root};
use crate::{App, Error};

/// A server that sends nothing for this long has gone.
const STALLED: Duration = Duration::from_secs(60);
/// Layers that are sent at one time, and that are fetched at one time: each takes a processor.
static SENDING: Semaphore = Semaphore::const_new(4);
static FETCHING: Semaphore = Semaphore::const_new(4);
/// Between the thread that packs and the connection.
const BUFFER: usize = 256 << 10;
/// What a layer may take here beyond what it takes there: other blocks, and names that several files have for a moment.
const MARGIN: u64 = 256 << 20;

/// Why a layer did not come.
enum Failed {
    /// From that server; continues a sentence that begins with it.
    There(String),
    /// From no server.
    Here(Error),
}

impl App {
    /// Sees to it that this server has the layers of a root. Where some had to be fetched, all of them are held until what is
    /// returned is dropped: by then whoever needs them has a row that says so.
    pub(crate) async fn layers_here(&self, provider: &str, root: &Root) -> Result<Option<Work>, Error> {
        if self.missing_layers(provider, root).await?.is_empty() {
            return Ok(None);
        }
        let work = Work::begin(self);
        self.bring_layers(&work, provider, root).await?;
        Ok(Some(work))
    }

    /// The same for somebody whose work holds layers.
    pub(crate) async fn bring_layers(&self, work: &Work, provider: &str, root: &Root) -> Result<(), Error> {
        let missing = self.missing_layers(provider, root).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let gone = || Error::Conflict("what it is made of was just deleted; try again".into());
        if !work.hold(&root.over).await? {
            return Err(gone());
        }
        for id in missing {
            let layer = self.store().layer(id).await?.ok_or_else(gone)?;
            let make = || self.fetch_layer(provider, &layer);
            work.make(id, layer.kind, layer.organisation.as_deref(), provider, make).await?;
        }
        Ok(())
    }

    /// Those that are not here. With one server nobody else could have them, and a provider elsewhere has its own for all.
    async fn missing_layers(&self, provider: &str, root: &Root) -> Result<Vec<LayerId>, Error> {
        let mut missing = Vec::new();
        if root.over.is_empty() || !self.shares_its_store() || !self.is_bound_to_host(provider) {
            return Ok(missing);
        }
        let layers = self.provider(provider)?.layers();
        for layer in &root.over {
            if layers.layer(*layer).await?.is_none() {
                missing.push(*layer);
            }
        }
        Ok(missing)
    }

    /// From the first server that sends it whole.
    async fn fetch_layer(&self, provider: &str, layer: &Layer) -> Result<LayerInfo, Error> {
        self.check_disk(provider)?;
        let _turn = FETCHING.acquire().await.map_err(|_| Error::exhausted("the server ends"))?;
        let mut why = None;
        for (server, there) in self.store().places_of_layer(layer.id).await? {
            if server == self.server() {
                continue;
            }
            match self.fetch_from(&server, &there, provider, layer).await {
                Ok(made) => {
                    tracing::info!(layer = %layer.id, server, bytes = made.bytes, "fetched a layer");
                    return Ok(made);
                }
                Err(Failed::Here(error)) => return Err(error),
                Err(Failed::There(reason)) => {
                    tracing::warn!(layer = %layer.id, server, reason, "fetch a layer");
                    why.get_or_insert(format!("server {server}, which {reason}"));
                }
            }
        }
        let place = why.unwrap_or_else(|| "no server that is known".to_owned());
        Err(Error::exhausted(format!("its files are on {place}; try again later")))
    }

    async fn fetch_from(&self, server: &str, there: &str, here: &str, layer: &Layer) -> Result<LayerInfo, Failed> {
        let peer = self.store().peer(server).await.map_err(Failed::Here)?;
        let peer = peer.ok_or_else(|| Failed::There("was never heard of".to_owned()))?;
        if !self.is_alive(&peer) {
            return Err(Failed::There(format!("was last heard of at {}; start it again", peer.seen_at)));
        }
        let unknown = || Failed::There("has published no address; start it with --peer-url".to_owned());
        let url = peer.url.ok_or_else(unknown)?;
        let path = format!("/peer/layers/{}?provider={}", layer.id, word(there));
        let answer = line::ask(self, &url, &path).await.map_err(Failed::There)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(Failed::There("does not have them any more".to_owned())),
            status => return Err(Failed::There(format!("answers {status}"))),
        }
        let limit = layer.bytes.saturating_mul(2).saturating_add(MARGIN);
        let mut from = StreamReader::new(Box::pin(patient(answer.into_body())));
        let provider = self.provider(here).map_err(Failed::Here)?;
        provider.layers().receive(layer.id, limit, &mut from).await.map_err(|error| match error {
            // The fault of what came, or of the line.
            ProviderError::Refused(_) | ProviderError::Failed(_) => {
                tracing::warn!(layer = %layer.id, server, %error, "receive a layer");
                Failed::There("did not send them whole".to_owned())
            }
            error => Failed::Here(error.into()),
        })
    }

    /// A layer of this server, for another one. One that cannot be read to its end breaks off, which the other side notices.
    pub(crate) async fn send_layer(&self, layer: LayerId, provider: &str) -> Result<DuplexStream, Error> {
        let unknown = || Error::not_found("layer", layer.to_string());
        let provider = self.provider(provider).map_err(|_| unknown())?.clone();
        if provider.layers().layer(layer).await?.is_none() {
            return Err(unknown());
        }
        let turn = SENDING.acquire().await.map_err(|_| Error::exhausted("the server ends"))?;
        let (mut near, far) = tokio::io::duplex(BUFFER);
        self.tasks().spawn(async move {
            let _turn = turn;
            if let Err(error) = provider.layers().send(layer, &mut near).await {
                tracing::warn!(%layer, %error, "send a layer to another server");
            }
        });
        Ok(far)
    }
}

/// In a query.
fn word(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// A body whose sender must go on sending.
fn patient(body: Incoming) -> impl futures::Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::unfold(body.into_data_stream(), |mut pieces| async move {
        let piece: io::Result<Bytes> = match tokio::time::timeout(STALLED, pieces.next()).await {
            Ok(Some(Ok(piece))) => Ok(piece),
            Ok(Some(Err(error))) => Err(io::Error::other(line::cause(&error))),
            Ok(None) => return None,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for a minute")),
        };
        Some((piece, pieces))
    })
}
