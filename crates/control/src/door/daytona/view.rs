//! A sandbox as this dialect shows it.
//!
//! The newest Python SDK refuses an object that lacks a required field or has `1.0` where it wants `1`, so the view is a
//! superset of what any version asks for and all numbers are whole.

use serde_json::{Value, json};

use super::origin::Origin;
use super::sdk::Words;
use super::token::Memory;
use crate::clock::Timestamp;
use crate::door::range::EVERYTHING;
use crate::provider::VolumeMount;
use crate::sandbox::network::Access;
use crate::sandbox::{Expiry, Sandbox, State};

/// The one region of this server. Not a name of the original's: its CLI remembers those and would call the cloud.
pub const REGION: &str = "local";

/// What the dialect calls a sandbox that shares the host's kernel.
pub const CLASS: &str = "container";

const GIB: u64 = 1 << 30;

/// Minutes that stand for "never" where the original has a longest time instead.
pub const LONGEST_ARCHIVE_MINUTES: u64 = 43_200;

pub fn state(state: State) -> &'static str {
    match state {
        State::Creating => "creating",
        State::Starting => "starting",
        State::Running => "started",
        State::Pausing => "pausing",
        State::Paused => "paused",
        State::Resuming => "resuming",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Archiving => "archiving",
        State::Archived => "archived",
        State::Restoring => "restoring",
        State::Destroying => "destroying",
        State::Destroyed => "destroyed",
        State::Failed => "error",
    }
}

/// The nearest word that the client has.
fn state_in(words: Words, of: State) -> &'static str {
    match (words, of) {
        (Words::WithoutPause, State::Pausing) => state(State::Stopping),
        (Words::WithoutPause, State::Paused) => state(State::Stopped),
        (Words::WithoutPause, State::Resuming) => state(State::Starting),
        (_, of) => state(of),
    }
}

/// Every word that the dialect has for a state.
pub const WORDS: [&str; 22] = [
    "creating",
    "restoring",
    "destroyed",
    "destroying",
    "started",
    "stopped",
    "starting",
    "stopping",
    "error",
    "build_failed",
    "pending_build",
    "building_snapshot",
    "unknown",
    "pulling_snapshot",
    "archived",
    "archiving",
    "resizing",
    "snapshotting",
    "forking",
    "pausing",
    "paused",
    "resuming",
];

/// States of ours that a word of theirs stands for: none where no sandbox here is ever so. `None` for a word that the
/// dialect does not have.
pub fn states(word: &str) -> Option<Vec<State>> {
    let known = WORDS.contains(&word);
    known.then(|| State::ALL.into_iter().filter(|known| state(*known) == word).collect())
}

/// Where a sandbox is headed.
fn desired(state: State) -> &'static str {
    match state {
        State::Creating | State::Starting | State::Running | State::Resuming | State::Restoring => "started",
        State::Pausing | State::Paused | State::Stopping | State::Stopped | State::Failed => "stopped",
        State::Archiving | State::Archived => "archived",
        State::Destroying | State::Destroyed => "destroyed",
    }
}

pub fn cpu(sandbox: &Sandbox) -> u64 {
    sandbox.limits.cpus.ceil().max(1.0) as u64
}

/// In GiB.
pub fn memory(sandbox: &Sandbox) -> u64 {
    sandbox.limits.memory.div_ceil(GIB)
}

/// In GiB.
pub fn disk(sandbox: &Sandbox) -> u64 {
    sandbox.limits.disk.unwrap_or(0).div_ceil(GIB)
}

/// The latest change, of its state or of what it is given.
pub fn updated_at(sandbox: &Sandbox) -> Timestamp {
    sandbox.updated_at.map_or(sandbox.state_since, |changed| changed.max(sandbox.state_since))
}

/// What the dialect calls a backup is an archive, in the object store or on its way there, or a checkpoint that was
/// asked for.
fn backup(state: State, has_checkpoint: bool) -> &'static str {
    match state {
        State::Archiving => "InProgress",
        State::Archived | State::Restoring => "Completed",
        _ if has_checkpoint => "Completed",
        _ => "None",
    }
}

fn whole_minutes(seconds: Option<u64>) -> u64 {
    seconds.map_or(0, |seconds| seconds.div_ceil(60))
}

pub fn sandbox(sandbox: &Sandbox, origin: &Origin) -> Value {
    let timers = &sandbox.timers;
    let idle = whole_minutes(timers.idle_seconds);
    let (stop, pause) = if timers.at_idle == Expiry::Pause { (0, idle) } else { (idle, 0) };
    let delete = match (timers.ephemeral, timers.delete_after_seconds) {
        (true, _) => 0,
        (false, Some(seconds)) => seconds.div_ceil(60) as i64,
        (false, None) => -1,
    };
    let network = &sandbox.network;
    let denies_all = EVERYTHING.iter().all(|range| network.deny.iter().any(|denied| denied == range));
    let closed = network.access == Access::Closed || denies_all;
    let allowed = (closed && !network.allow.is_empty()).then(|| network.allow.join(","));
    let failed = sandbox.state == State::Failed;
    let known = Memory::of(sandbox);
    let archived_at = (sandbox.state == State::Archived).then_some(sandbox.state_since);
    let mount = |mount: &VolumeMount| {
        let mut view = json!({ "volumeId": mount.volume, "mountPath": mount.target });
        if let Some(subpath) = &mount.subpath {
            view["subpath"] = json!(subpath);
        }
        view
    };
    let volumes: Vec<Value> = sandbox.volumes.iter().map(mount).collect();
    let build = known.build.as_ref().map(|build| {
        json!({
            "dockerfileContent": build.dockerfile,
            "contextHashes": build.contexts,
            "createdAt": build.created_at.to_string(),
            "updatedAt": build.updated_at.to_string(),
            "snapshotRef": build.id,
        })
    });
    json!({
        "id": sandbox.id.as_str(),
        "organizationId": sandbox.organisation,
        "name": sandbox.name.clone().unwrap_or_else(|| sandbox.id.to_string()),
        "user": sandbox.user,
        "env": super::marks::without(&sandbox.env),
        "labels": sandbox.labels,
        "public": sandbox.public,
        "networkBlockAll": closed && network.allow.is_empty(),
        "networkAllowList": allowed,
        "kvm": false,
        "spot": false,
        "target": REGION,
        "cpu": cpu(sandbox),
        "gpu": 0,
        "memory": memory(sandbox),
        "disk": disk(sandbox),
        "toolboxProxyUrl": origin.toolbox(),
        "snapshot": known.build.is_none().then_some(known.snapshot.as_ref().unwrap_or(&sandbox.template)),
        "state": state_in(origin.words, sandbox.state),
        "desiredState": desired(sandbox.state),
        "errorReason": failed.then_some(&sandbox.cause.message),
        "recoverable": failed,
        "backupState": backup(sandbox.state, known.backup_at.is_some()),
        "backupCreatedAt": archived_at.or(known.backup_at).map(|at| at.to_string()),
        "autoStopInterval": stop,
        "autoPauseInterval": pause,
        "autoArchiveInterval": whole_minutes(timers.archive_after_seconds),
        "autoDeleteInterval": delete,
        "autoDestroyAt": timers.deadline.filter(|_| timers.at_deadline == Expiry::Destroy).map(|at| at.to_string()),
        "volumes": volumes,
        "buildInfo": build,
        "createdAt": sandbox.created_at.to_string(),
        "updatedAt": updated_at(sandbox).to_string(),
        "lastActivityAt": sandbox.last_activity_at.to_string(),
        "sandboxClass": CLASS,
        "daemonVersion": env!("CARGO_PKG_VERSION"),
    })
}
