//! Layers as the store knows them: whose they are, who needs them, and whether they may go.
//!
//! ```text
//!   begin ──▶ draft ──seal──▶ ready ──nobody uses it──▶ going ──removed everywhere──▶ (no row)
//!             ▲ └────── failed, or its maker is dead ────▲ │
//!             └────── wanted again, and who has it is away ┘
//! ```
//!
//! The row is there before the files: whatever a crash leaves has a row that says so. A user (build, step, image,
//! sandbox) writes its uses in its own transaction, which fails where a layer is going. A draft is held by the work that
//! makes it, and is nobody's without.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::provider::LayerId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// The whole tree of an image.
    Image,
    /// What a sandbox had written.
    Delta,
    /// Packages over the host's own programs.
    Packages,
}

impl LayerKind {
    pub fn as_str(self) -> &'static str {
        match self {
            LayerKind::Image => "image",
            LayerKind::Delta => "delta",
            LayerKind::Packages => "packages",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [LayerKind::Image, LayerKind::Delta, LayerKind::Packages].into_iter().find(|kind| kind.as_str() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Being made.
    Draft,
    Ready,
    /// Being removed: nobody may begin to use it.
    Going,
}

impl LayerState {
    pub fn as_str(self) -> &'static str {
        match self {
            LayerState::Draft => "draft",
            LayerState::Ready => "ready",
            LayerState::Going => "going",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [LayerState::Draft, LayerState::Ready, LayerState::Going].into_iter().find(|state| state.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub id: LayerId,
    pub kind: LayerKind,
    /// Whose bytes they are; `None` where several organisations share them.
    pub organisation: Option<String>,
    pub bytes: u64,
    pub files: u64,
    pub state: LayerState,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
}

/// A layer that is about to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewLayer<'a> {
    pub id: LayerId,
    pub kind: LayerKind,
    pub organisation: Option<&'a str>,
    pub server: &'a str,
    pub provider: &'a str,
}

/// Who needs a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User<'a> {
    Build(&'a str),
    /// A step of the cache, by [`step_user`].
    Step(&'a str),
    /// By digest.
    Image(&'a str),
    Sandbox(&'a str),
    /// Work of a server that is under way: `SERVER/…`. It ends with the server.
    Work(&'a str),
}

impl User<'_> {
    pub fn kind(&self) -> &'static str {
        match self {
            User::Build(_) => "build",
            User::Step(_) => "step",
            User::Image(_) => "image",
            User::Sandbox(_) => "sandbox",
            User::Work(_) => "work",
        }
    }

    pub fn id(&self) -> &str {
        match self {
            User::Build(id) | User::Step(id) | User::Image(id) | User::Sandbox(id) | User::Work(id) => id,
        }
    }
}
