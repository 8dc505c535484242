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
    /// A copy of another.
    #[serde(rename = "sandbox.forked")]
    Forked,
    #[serde(rename = "sandbox.rolled_back")]
    RolledBack,
    #[serde(rename = "template.built")]
    TemplateBuilt,
    /// A build ended without files.
    #[serde(rename = "template.failed")]
    TemplateFailed,
    #[serde(rename = "template.deleted")]
    TemplateDeleted,
    #[serde(rename = "snapshot.created")]
    SnapshotCreated,
    #[serde(rename = "snapshot.deleted")]
    SnapshotDeleted,
    #[serde(rename = "volume.created")]
    VolumeCreated,
    #[serde(rename = "volume.deleted")]
    VolumeDeleted,
}

impl Kind {
    pub const ALL: [Kind; 18] = [
        Kind::Created,
        Kind::Started,
        Kind::Paused,
        Kind::Resumed,
        Kind::Stopped,
        Kind::Archived,
        Kind::Destroyed,
        Kind::Failed,
        Kind::Updated,
        Kind::Forked,
        Kind::RolledBack,
        Kind::TemplateBuilt,
        Kind::TemplateFailed,
        Kind::TemplateDeleted,
        Kind::SnapshotCreated,
        Kind::SnapshotDeleted,
        Kind::VolumeCreated,
        Kind::VolumeDeleted,
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
            Kind::Forked => "sandbox.forked",
            Kind::RolledBack => "sandbox.rolled_back",
            Kind::TemplateBuilt => "template.built",
            Kind::TemplateFailed => "template.failed",
            Kind::TemplateDeleted => "template.deleted",
            Kind::SnapshotCreated => "snapshot.created",
            Kind::SnapshotDeleted => "snapshot.deleted",
            Kind::VolumeCreated => "volume.created",
            Kind::VolumeDeleted => "volume.deleted",
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
    /// Name, state and cause at that time, and the manifest of its files where it had one.
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
        let mut data = serde_json::json!({
            "name": sandbox.name,
            "template": sandbox.template,
            "state": sandbox.state,
            "cause": sandbox.cause,
            "labels": sandbox.labels,
            "owner": sandbox.owner,
        });
        if let Some(manifest) = &sandbox.manifest {
            data["manifest"] = serde_json::json!(manifest);
        }
        NewEvent {
            organisation: sandbox.organisation.clone(),
            sandbox: Some(sandbox.id.to_string()),
            kind,
            at: self.now(),
            data,
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
