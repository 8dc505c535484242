//! Manifests: what a provider has written down of a sandbox's files, and what it finds when it compares.
//!
//! Not every provider has them. [`Provider::manifests`](super::Provider::manifests) leads to [`Nowhere`] unless it says
//! otherwise, and [`Ability::Manifest`](super::Ability::Manifest) says why.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Handle, LayerId, ProviderError, VolumeId};

/// How far a provider is with reading files, and the word that it is enough.
#[derive(Debug, Default)]
pub struct Pulse {
    files: AtomicU64,
    bytes: AtomicU64,
    over: AtomicBool,
}

impl Pulse {
    /// So many more were read. Whoever reads ends at a `Break`.
    pub fn beat(&self, files: u64, bytes: u64) -> ControlFlow<()> {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.over.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Names and bytes so far.
    pub fn so_far(&self) -> (u64, u64) {
        (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A manifest that is on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Proves all that it names, and the manifests of the layers below. Hexadecimal.
    pub digest: String,
    /// Names: files, directories, links and all else.
    pub files: u64,
    /// Bytes of data, without holes.
    pub bytes: u64,
}

/// What is compared, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thing {
    /// One that is paused or stopped; without a digest all of it is read.
    Sandbox {
        handle: Handle,
        digest: Option<String>,
    },
    Layer {
        layer: LayerId,
        against: Against,
    },
    Volume(VolumeId),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Against {
    /// The manifest with this digest.
    Manifest(String),
    /// Its own manifest; without one all of it is read.
    Own,
    /// As [`Against::Own`]; without a manifest its name, which is a digest of its content.
    Name,
}

/// What something was compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CheckedBy)]
pub enum How {
    /// A manifest: every name, and the digest of its data.
    Manifest,
    /// Its own name, which is a digest of its content.
    Name,
    /// Nothing: all of it could be read. Where the filesystem has checksums, the data is what was written.
    Read,
    /// Nothing: every name could be looked at, and no data was read.
    Names,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    Missing,
    Added,
    Changed,
    Unreadable,
    /// The manifest itself is gone, damaged, or another one.
    Manifest,
    /// Files that the database knows nothing of.
    Unreferenced,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem {
    pub kind: ProblemKind,
    /// As the sandbox sees it; bytes that are no text, and characters that would steer a terminal, are escaped. Empty where it
    /// is about no file.
    pub path: String,
    /// What differs, or why it cannot be read.
    pub detail: String,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub how: How,
    /// Names that were looked at, and bytes of data that were read.
    pub files: u64,
    pub bytes: u64,
    pub missing: u64,
    pub added: u64,
    pub changed: u64,
    pub unreadable: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
    /// The layers below a sandbox with the digests of their manifests, as its own manifest names them.
    pub layers: Vec<(LayerId, String)>,
}

impl Checked {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.missing + self.added + self.changed + self.unreadable == 0
    }
}

#[async_trait]
pub trait Manifests: Send + Sync {
    /// Writes out all files of a sandbox that is paused or stopped, and a manifest of them in place of the one before. On the
    /// disk when it returns.
    async fn seal(&self, handle: &Handle, pulse: Arc<Pulse>) -> Result<Sealed, ProviderError>;

    /// Compares; changes nothing. What is not there is [`ProviderError::NotFound`] or [`ProviderError::Refused`], a sandbox that
    /// runs is [`ProviderError::Exhausted`].
    async fn check(&self, thing: Thing, pulse: Arc<Pulse>) -> Result<Checked, ProviderError>;
}

/// Where there are no manifests.
#[derive(Debug, Clone, Copy)]
pub struct Nowhere;

fn no_manifests<T>() -> Result<T, ProviderError> {
    Err(ProviderError::Unsupported("this provider has no manifests".into()))
}

#[async_trait]
impl Manifests for Nowhere {
    async fn seal(&self, _handle: &Handle, _pulse: Arc<Pulse>) -> Result<Sealed, ProviderError> {
        no_manifests()
    }

    async fn check(&self, _thing: Thing, _pulse: Arc<Pulse>) -> Result<Checked, ProviderError> {
        no_manifests()
    }
}
