//! Pushes: a template or a snapshot on its way to a registry.
//!
//! ```text
//!              the job ends
//!   Pushing ─────────────────▶ Done        the registry has it, under its tag and its digest
//!      │ └───────────────────▶ Error       with the reason
//!      └──── cancel ─────────▶ Cancelled
//! ```
//!
//! A push is a job of the server (`job/`): its layers are packed as for an export (`image/export.rs`), then sent blob by
//! blob. A server that dies begins again, and blobs that are there are not sent twice. Credentials are kept in memory
//! alone: where they were given, a push ends with its server. What is said meanwhile is kept with the lines of builds.

mod manage;
mod run;
mod under_way;

use serde::{Deserialize, Serialize};

pub use self::manage::{NewPush, Status};
pub use self::run::PUSH_JOB;
pub use self::under_way::Pushes;
use crate::clock::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PushState)]
pub enum State {
    Pushing,
    /// The registry has all of it.
    Done,
    Error,
    Cancelled,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pushing => "pushing",
            State::Done => "done",
            State::Error => "error",
            State::Cancelled => "cancelled",
        }
    }

    /// Nothing changes it any more.
    pub fn is_final(self) -> bool {
        self != State::Pushing
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Push {
    pub id: String,
    pub organisation: String,
    /// The template's or snapshot's id.
    pub template: String,
    /// What it is called.
    pub name: String,
    /// The build that is pushed.
    pub build: String,
    /// Where to: the full name in the registry.
    pub image: String,
    pub state: State,
    /// The server that does it.
    pub server: String,
    /// Credentials were given, which are in no row.
    pub is_confidential: bool,
    /// Whoever asked for it may push as the operator.
    pub as_operator: bool,
    /// Of the manifest, once the registry has it.
    #[serde(default)]
    pub digest: Option<String>,
    /// Why the registry does not have it.
    #[serde(default)]
    pub failure: Option<String>,
    pub created_at: Timestamp,
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
}
