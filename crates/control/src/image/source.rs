//! Registries and archives, as far as the domain knows them.
//!
//! The crate `cove-image` speaks to them; [`Source`] is what this side asks of it. Everything that comes from there is
//! hostile: digests are compared and sizes are bounded before a [`Fill`] is handed over.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::export::Packed;
use crate::Error;
use crate::build::Credentials;
use crate::provider::LayerId;
use crate::provider::images::Fill;

/// What an image wants of those who run it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub shell: Vec<String>,
    /// Steps of a Dockerfile that are done where another is built on it.
    pub on_build: Vec<String>,
}

/// What a name means at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name as a registry knows it.
    pub reference: String,
    /// Of the manifest for this machine.
    pub digest: String,
    /// The name of its tree.
    pub layer: LayerId,
    pub config: Config,
    /// Bytes to fetch.
    pub bytes: u64,
}

/// What a reference stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meant {
    /// An image of a registry, by its full name.
    Image(String),
    /// A template of this installation, by an alias of the operator's.
    Template(String),
}

/// How far a fetch or a push has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub bytes: u64,
}

/// Tells every tenth of a progress once, without the beginning and the end.
#[derive(Default)]
pub struct Tenths(Mutex<u64>);

impl Tenths {
    /// The percentage, where there is a new one to tell.
    pub fn next(&self, progress: Progress) -> Option<u64> {
        let tenth = progress.done.saturating_mul(10).checked_div(progress.bytes.max(1)).unwrap_or(10);
        let mut told = self.0.lock().expect("no panic while held");
        if tenth <= *told || tenth >= 10 {
            return None;
        }
        *told = tenth;
        Some(tenth * 10)
    }
}

/// Where an image is pushed, and with which right.
#[derive(Debug, Clone, Copy)]
pub struct Outward<'a> {
    /// As [`Source::target`] gave it.
    pub target: &'a str,
    pub who: Option<&'a Credentials>,
    /// Where nobody is named: as those that the operator configured.
    pub as_operator: bool,
}

/// What an archive may take when it is unpacked.
#[derive(Clone)]
pub struct Room {
    pub bytes: u64,
    /// Whether the disk of this server still has any. Asked while it is filled.
    pub check: Arc<dyn Fn() -> Result<(), Error> + Send + Sync>,
}

pub type Tell<'a> = &'a (dyn Fn(Progress) + Send + Sync);

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The name is none, or nothing has it.
    #[error("{0}")]
    NotFound(String),
    /// The registry wants other credentials, or forbids it.
    #[error("{0}")]
    Refused(String),
    /// What came is not what it should be; the sentence says what is wrong with it.
    #[error("{0}")]
    Invalid(String),
    /// The registry does not answer, or says that it has no time. May succeed later.
    #[error("{0}")]
    Unreachable(String),
    /// This server's own disk.
    #[error("{0}")]
    Disk(String),
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Error {
        match error {
            SourceError::NotFound(message) | SourceError::Refused(message) | SourceError::Invalid(message) => {
                Error::invalid("image", message)
            }
            SourceError::Unreachable(message) => Error::exhausted(message),
            SourceError::Disk(detail) => {
                tracing::error!(detail, "keep what came of an image");
                Error::Full("this server's disk is full; nothing was kept of the image".into())
            }
        }
    }
}

#[async_trait]
pub trait Source: Send + Sync {
    /// What a name stands for, by the operator's aliases. No registry is asked.
    fn meaning(&self, name: &str) -> Result<Meant, SourceError>;

    /// Asks the registry what a full name means now.
    async fn resolve(&self, reference: &str, who: Option<&Credentials>) -> Result<Found, SourceError>;

    /// Fetches all of an image. The result unpacks it.
    async fn fetch(&self, found: &Found, who: Option<&Credentials>, tell: Tell<'_>) -> Result<Fill, SourceError>;

    /// Fetches all of an image and compares it with what its config says, without unpacking it. Whoever asks gets it by that,
    /// and not by knowing its digests.
    async fn prove(&self, found: &Found, who: Option<&Credentials>, tell: Tell<'_>) -> Result<(), SourceError>;

    /// An image in a file: as `docker save` and OCI layouts have it, or the tar of a tree. Of several the one with this
    /// name.
    async fn open(&self, archive: &Path, name: Option<&str>, room: Room) -> Result<(Found, Fill), SourceError>;

    /// The full name that an image may be pushed under. No registry is asked.
    fn target(&self, name: &str) -> Result<String, SourceError>;

    /// Sends an image to a registry. Returns the digest of its manifest.
    async fn push(&self, packed: &Packed, to: Outward<'_>, tell: Tell<'_>) -> Result<String, SourceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenth_is_told_once() {
        let tenths = Tenths::default();
        let told: Vec<u64> = (0..=1000).filter_map(|done| tenths.next(Progress { done, bytes: 1000 })).collect();
        assert_eq!(told, [10, 20, 30, 40, 50, 60, 70, 80, 90]);
        assert_eq!(Tenths::default().next(Progress { done: 0, bytes: 0 }), None);
    }
}
