//! Background work that outlives the server: a table, a lease, retries with growing pauses.
//!
//! A job is idempotent and named by its kind; `unique_key` keeps a second one from being queued while the first is not
//! done. When a worker dies, its lease runs out and another worker takes the job. An outcome that cannot be written is
//! kept, and written when the database takes it.

pub mod at_work;
pub mod run;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    Running,
    Done,
    /// Failed too often and was given up.
    Failed,
}

impl JobState {
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [JobState::Queued, JobState::Running, JobState::Done, JobState::Failed]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// A separate line of the queue. Tenants and their receivers decide how many deliveries there are and how long each
/// takes, so work on sandboxes does not wait behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Upkeep,
    Deliveries,
}

/// The kind of job in the line of deliveries.
pub const DELIVERY: &str = "webhook.deliver";

/// The most deliveries that a server makes for one organisation at one time. The other places are for other
/// organisations.
pub const SHARE: u32 = 64;

#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    pub kind: String,
    /// The object that the job is about.
    pub subject: String,
    pub organisation: String,
    /// The server that must do the job, if the object is bound to a machine.
    pub server: Option<String>,
    pub unique_key: Option<String>,
    pub run_at: Timestamp,
    pub payload: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Job {
    pub id: String,
    pub kind: String,
    pub subject: String,
    pub organisation: String,
    pub state: JobState,
    #[schema(value_type = String, format = DateTime)]
    pub run_at: Timestamp,
    pub attempts: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// Why the latest attempt failed.
    pub error: Option<String>,
    #[serde(skip)]
    pub payload: serde_json::Value,
}
