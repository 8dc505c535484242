//! Builds: how a template's files come to be.
//!
//! A build is immutable once it is ready: a root (names of layers) and the defaults of its sandboxes. It is made of an
//! image, of steps, of a Dockerfile, of an archive, or captured of a sandbox (`snapshot`).
//!
//! ```text
//!              start_build            the job ends
//!   Waiting ──────────────▶ Building ─────────────▶ Ready      its tags lead to it from now on
//!      │                       │ └────────────────▶ Error      with the step and the reason
//!      └──── cancel ───────────┴──────────────────▶ Cancelled  by a caller, or by a newer build of the same tag
//! ```
//!
//! The work is a job of the server (`job/`), so a server that dies takes it up again; steps that were done are found in
//! the cache (`cache`). [`plan`] says what is to be done, [`execute`] does it in a sandbox of ours that nobody else
//! sees, [`log`] tells about it while it goes on.

pub mod cache;
mod copy;
mod copying;
mod cover;
mod dockerfile;
mod execute;
mod files;
mod log;
mod manage;
mod people;
pub mod plan;
pub mod request;
mod secret;
mod under_way;
mod workshop;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::cache::Step;
pub use self::files::{BuildFile, Meant};
pub(crate) use self::log::Log;
pub use self::log::{Level, LogEntry};
pub use self::manage::{BUILD_JOB, Status};
pub use self::request::{Act, Base, Confidential, Credentials, Habits, NewStep, Recipe, Request, SecretMount};
pub use self::under_way::{Builds, UnderWay};
use crate::clock::Timestamp;
use crate::provider::{Image, Isolation, LayerId, Limits};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BuildState)]
pub enum State {
    /// Made, and not started: its files may still be sent.
    Waiting,
    Building,
    Ready,
    Error,
    Cancelled,
}

impl State {
    pub const ALL: [State; 5] = [State::Waiting, State::Building, State::Ready, State::Error, State::Cancelled];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Building => "building",
            State::Ready => "ready",
            State::Error => "error",
            State::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        State::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Nothing changes it any more.
    pub fn is_final(self) -> bool {
        matches!(self, State::Ready | State::Error | State::Cancelled)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a build is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BuildKind)]
pub enum Kind {
    /// An image as it is.
    Image,
    Steps,
    Dockerfile,
    /// An archive that was sent.
    Archive,
    /// Packages over the host's own programs.
    Packages,
    /// A sandbox.
    Capture,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Image => "image",
            Kind::Steps => "steps",
            Kind::Dockerfile => "dockerfile",
            Kind::Archive => "archive",
            Kind::Packages => "packages",
            Kind::Capture => "capture",
        }
    }
}

impl Build {
    /// Every layer that it needs.
    pub fn layers(&self) -> Vec<LayerId> {
        let mut layers = self.image.root.over.clone();
        layers.extend(self.delta.filter(|delta| !layers.contains(delta)));
        layers
    }
}

/// Who wanted a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A caller.
    #[default]
    Asked,
    /// A rule: before a command.
    Automatic,
    /// What a rollback replaced, so that it can be undone.
    Undo,
}

/// What sandboxes of a build have unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Defaults {
    pub env: BTreeMap<String, String>,
    /// The user of commands that name none.
    pub user: String,
    pub cwd: Option<String>,
    /// A command that runs from the start of every sandbox on.
    pub start: Option<String>,
    /// Succeeds once the start command has done its work.
    pub ready: Option<String>,
    pub limits: Option<Limits>,
    /// The weakest isolation that its sandboxes may have.
    pub isolation: Option<Isolation>,
    /// For cells: its sandboxes start their interpreter ahead.
    pub interpreter: bool,
    /// The machine's Python that its files are for, as `3.11`; empty where they are for any.
    pub python: String,
}

/// Why a build has no files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = BuildFailure)]
pub struct Failure {
    /// `base`, the number of the step from 1, or `finalize`.
    pub step: Option<String>,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// A UUID: SDKs parse it as one.
    pub id: String,
    pub template: String,
    pub organisation: String,
    pub kind: Kind,
    pub state: State,
    /// The server that has its files.
    pub server: String,
    pub provider: String,
    /// Tags that lead to it once it is ready.
    pub tags: Vec<String>,
    /// What its sandboxes start from; nothing until it is ready.
    pub image: Image,
    /// What its sandbox had written; of captures alone.
    #[serde(default)]
    pub delta: Option<LayerId>,
    pub defaults: Defaults,
    /// The sandbox that it was captured of.
    #[serde(default)]
    pub source_sandbox: Option<String>,
    /// The build that it was built on, or that its sandbox started from.
    #[serde(default)]
    pub parent_build: Option<String>,
    #[serde(default)]
    pub origin: Origin,
    /// A word about it: of a checkpoint the command that it was made before.
    #[serde(default)]
    pub note: Option<String>,
    /// Bytes of its files that no other build brought.
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub failure: Option<Failure>,
    pub created_at: Timestamp,
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    #[serde(default)]
    pub last_used_at: Option<Timestamp>,
    /// Rises with every write.
    #[serde(default)]
    pub generation: i64,
}
