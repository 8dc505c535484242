//! What happened, in order: for people, for followers and for webhooks.
//!
//! The event of a state change is written in the same transaction as the state.

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::App;
use crate::clock::Timestamp;
use crate::sandbox::{Sandbox, State};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub enum Kind {
    #[serde(rename = "sandbox.created")]
    Created,
    #[serde(rename = "sandbox.started")]
    Started,
    #[serde(rename = "sandbox.paused")]
    Paused,
    #[serde(rename = "sandbox.resumed")]
    Resumed,
    #[serde(rename = "sandbox.stopped")]
    Stopped,
    #[serde(rename = "sandbox.archived")]
    Archived,
    #[serde(rename = "sandbox.destroyed")]
    Destroyed,
    #[serde(rename = "sandbox.failed")]
    Failed,
    /// Labels, limits, timers, network or name.
    #[serde(rename = "sandbox.updated")]
    Updated,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Created,
        Kind::Started,
        Kind::Paused,
        Kind::Resumed,
        Kind::Stopped,
        Kind::Archived,
        Kind::Destroyed,
        Kind::Failed,
        Kind::Updated,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Created => "sandbox.created",
            Kind::Started => "sandbox.started",
            Kind::Paused => "sandbox.paused",
            Kind::Resumed => "sandbox.resumed",
            Kind::Stopped => "sandbox.stopped",
            Kind::Archived => "sandbox.archived",
            Kind::Destroyed => "sandbox.destroyed",
            Kind::Failed => "sandbox.failed",
            Kind::Updated => "sandbox.updated",
        }
    }
}

#[derive(Debug, Clone)]
pub struct NewEvent {
    pub organisation: String,
    pub sandbox: Option<String>,
    pub kind: Kind,
    pub at: Timestamp,
    pub data: serde_json::Value,
}

/// An event as callers see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// A rising number; a follower continues after the last one it saw.
    pub seq: i64,
    pub organisation: String,
    pub sandbox: Option<String>,
    #[schema(value_type = Kind)]
    pub kind: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Name, state and cause at that time.
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
}

#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub organisation: Option<String>,
    pub sandbox: Option<String>,
    pub kind: Option<String>,
    /// At this time or later.
    pub since: Option<Timestamp>,
    /// Earlier than this time.
    pub before: Option<Timestamp>,
    /// Before the event of this number.
    pub before_seq: Option<i64>,
}

/// A state that this server has just written, transitions included: for doors with live clients.
#[derive(Debug, Clone)]
pub struct Changed {
    pub from: State,
    pub sandbox: Sandbox,
}

/// Informs listeners in this process.
pub struct Bus {
    changes: broadcast::Sender<Changed>,
}

impl Default for Bus {
    fn default() -> Self {
        Bus { changes: broadcast::channel(1024).0 }
    }
}

impl App {
    pub(crate) fn sandbox_event(&self, sandbox: &Sandbox, kind: Kind) -> NewEvent {
        NewEvent {
            organisation: sandbox.organisation.clone(),
            sandbox: Some(sandbox.id.to_string()),
            kind,
            at: self.now(),
            data: serde_json::json!({
                "name": sandbox.name,
                "template": sandbox.template,
                "state": sandbox.state,
                "cause": sandbox.cause,
                "labels": sandbox.labels,
                "owner": sandbox.owner,
            }),
        }
    }

    /// State changes from now on, of all organisations: the door filters. A listener that lags loses the oldest.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.bus().changes.subscribe()
    }

    pub(crate) fn announce(&self, from: State, sandbox: &Sandbox) {
        if self.bus().changes.receiver_count() > 0 {
            let _ = self.bus().changes.send(Changed { from, sandbox: sandbox.clone() });
        }
    }
}
