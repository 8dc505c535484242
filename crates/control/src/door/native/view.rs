//! A sandbox as the native API shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::App;
use crate::clock::Timestamp;
use crate::provider::Access;
use crate::sandbox::{Cause, Expiry, IdleMeasure, Manifest, NetworkPolicy, Sandbox, State, Timers};
use crate::snapshot::Rule;

#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxView {
    pub id: String,
    pub name: Option<String>,
    pub template: String,
    pub provider: String,
    pub state: State,
    /// Why it is in this state.
    pub cause: Cause,
    pub labels: BTreeMap<String, String>,
    pub owner: Option<String>,
    pub limits: LimitsView,
    /// Which of the limits nothing holds, because the server runs without root. Told by `read` and `create`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheld: Vec<String>,
    pub network: NetworkPolicy,
    #[serde(default)]
    pub volumes: Vec<VolumeMountView>,
    /// When checkpoints are made by themselves.
    #[serde(default)]
    pub checkpoints: Option<Rule>,
    /// The sandbox that it is a copy of.
    #[serde(default)]
    pub parent: Option<String>,
    /// The build of its template that it started from.
    #[serde(default)]
    pub build: Option<String>,
    /// What proves its files since a durable pause or stop: nothing has run in it since. Absent otherwise.
    #[serde(default)]
    pub manifest: Option<Manifest>,
    pub timers: TimersView,
    /// Previews need no token.
    pub public: bool,
    /// The user of commands that name none.
    pub user: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    pub state_since: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub last_activity_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VolumeMountView {
    /// The volume's id.
    pub volume: String,
    /// Where it is in the sandbox.
    pub path: String,
    /// The directory of the volume that is shown there; all of it where absent.
    pub subpath: Option<String>,
    pub read_only: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LimitsView {
    pub cpus: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub disk: Option<u64>,
    pub pids: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TimersView {
    /// The end of its lifetime.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub deadline: Option<Timestamp>,
    pub at_deadline: Expiry,
    pub idle_seconds: Option<u64>,
    pub at_idle: Expiry,
    pub idle_measure: IdleMeasure,
    pub archive_after_seconds: Option<u64>,
    pub delete_after_seconds: Option<u64>,
    pub ephemeral: bool,
    pub auto_resume: bool,
}

impl From<&crate::provider::Limits> for LimitsView {
    fn from(limits: &crate::provider::Limits) -> Self {
        LimitsView { cpus: limits.cpus, memory: limits.memory, disk: limits.disk, pids: limits.pids }
    }
}

impl From<crate::provider::VolumeMount> for VolumeMountView {
    fn from(mount: crate::provider::VolumeMount) -> Self {
        VolumeMountView {
            volume: mount.volume.to_string(),
            path: mount.target,
            subpath: mount.subpath,
            read_only: mount.access == Access::ReadOnly,
        }
    }
}

impl From<&Timers> for TimersView {
    fn from(timers: &Timers) -> Self {
        TimersView {
            deadline: timers.deadline,
            at_deadline: timers.at_deadline,
            idle_seconds: timers.idle_seconds,
            at_idle: timers.at_idle,
            idle_measure: timers.idle_measure,
            archive_after_seconds: timers.archive_after_seconds,
            delete_after_seconds: timers.delete_after_seconds,
            ephemeral: timers.ephemeral,
            auto_resume: timers.auto_resume,
        }
    }
}

impl SandboxView {
    /// As a person looks at it, with what only its provider knows.
    pub fn of(app: &App, sandbox: Sandbox) -> SandboxView {
        let unheld = app.unheld(&sandbox.provider);
        SandboxView { unheld, ..SandboxView::from(sandbox) }
    }
}

impl From<Sandbox> for SandboxView {
    fn from(sandbox: Sandbox) -> Self {
        SandboxView {
            id: sandbox.id.to_string(),
            name: sandbox.name,
            template: sandbox.template,
            provider: sandbox.provider,
            state: sandbox.state,
            cause: sandbox.cause,
            labels: sandbox.labels,
            owner: sandbox.owner,
            limits: (&sandbox.limits).into(),
            unheld: Vec::new(),
            network: sandbox.network,
            volumes: sandbox.volumes.into_iter().map(Into::into).collect(),
            checkpoints: sandbox.checkpoints,
            parent: sandbox.parent.map(|parent| parent.to_string()),
            build: sandbox.build,
            manifest: sandbox.manifest,
            timers: TimersView::from(&sandbox.timers),
            public: sandbox.public,
            user: sandbox.user,
            created_at: sandbox.created_at,
            started_at: sandbox.started_at,
            state_since: sandbox.state_since,
            last_activity_at: sandbox.last_activity_at,
        }
    }
}
