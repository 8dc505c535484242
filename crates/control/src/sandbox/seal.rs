//! Durable pauses and stops: all files on the disk, and a manifest that proves them.
//!
//! ```text
//!   pause ─▶ write `pausing`, sealing ─▶ freeze ─▶ sync, manifest ─▶ write `paused` with its digest
//!   resume ─▶ write `resuming` without it, on the disk ─▶ thaw            from here on files may change
//! ```
//! The digest is in the row as long as it holds: no process has moved since. A crash before the last write leaves a row that
//! says what was under way, and whoever finishes the change writes the manifest anew. A crash after it changes nothing. Where a
//! manifest cannot be written, the sandbox is paused or stopped all the same, without one, and the caller is told why.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attempts::Attempts;
use super::state::{Effect, Event, Step};
use super::{Sandbox, State};
use crate::clock::Timestamp;
use crate::event::Kind;
use crate::provider::Ability;
use crate::store::Written;
use crate::{App, Error};

/// What files a sandbox has, since no process has moved in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Manifest {
    /// The SHA-256 that the manifest ends with: it proves the files and the layers below. Hexadecimal.
    pub digest: String,
    /// Names: files, directories, links and all else.
    pub files: u64,
    /// Bytes of their data, without holes.
    pub bytes: u64,
    #[schema(value_type = String, format = DateTime)]
    pub written_at: Timestamp,
}

/// Whether a pause or a stop ends with a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durable {
    /// As the operator has it (`durable`), where the provider can.
    #[default]
    AsConfigured,
    Yes,
    No,
}

impl From<Option<bool>> for Durable {
    fn from(asked: Option<bool>) -> Durable {
        match asked {
            None => Durable::AsConfigured,
            Some(true) => Durable::Yes,
            Some(false) => Durable::No,
        }
    }
}

/// Whether a manifest holds in this state: no process has moved since it was written, and the files are there.
pub(super) fn holds_in(state: State) -> bool {
    match state {
        State::Paused | State::Stopped | State::Archiving | State::Failed => true,
        State::Creating
        | State::Starting
        | State::Running
        | State::Pausing
        | State::Resuming
        // A stop lets processes end by themselves.
        | State::Stopping
        | State::Archived
        | State::Restoring
        | State::Destroying
        | State::Destroyed => false,
    }
}

impl App {
    /// Whether a change ends with a manifest: one that is asked for now, or that was begun with one.
    pub(super) fn wants_manifest(&self, sandbox: &Sandbox, event: Event, durable: Durable) -> Result<bool, Error> {
        match (event, durable) {
            // What was begun is finished as it was asked for.
            (Event::Seen(_), _) => Ok(sandbox.sealing),
            (Event::Pause | Event::Stop | Event::Kill, Durable::Yes) => {
                self.require(&sandbox.provider, Ability::Manifest).map(|()| true)
            }
            (Event::Pause | Event::Stop | Event::Kill, Durable::AsConfigured) => {
                Ok(self.config().durable && self.is_able(&sandbox.provider, Ability::Manifest))
            }
            _ => Ok(false),
        }
    }

    /// Notes whether the change ends with a manifest. One that was left after its effect and before its manifest is carried out
    /// once more, with all that belongs to it: effects are idempotent.
    pub(super) fn with_manifest(
        &self,
        sandbox: &mut Sandbox,
        event: Event,
        durable: Durable,
        step: Step,
    ) -> Result<Step, Error> {
        let wanted = self.wants_manifest(sandbox, event, durable)?;
        let step = match (sandbox.state, step.state, step.effect) {
            (State::Pausing, State::Paused, None) if wanted => {
                Step { state: State::Pausing, effect: Some(Effect::Pause) }
            }
            (State::Stopping, State::Stopped, None) if wanted => {
                Step { state: State::Stopping, effect: Some(Effect::Stop) }
            }
            // Also where its processes ended in another way meanwhile: nobody was told that it is durable.
            _ => step,
        };
        sandbox.sealing = wanted && step.effect.is_some();
        Ok(step)
    }

    /// The manifest of a sandbox whose processes do not move.
    pub(super) async fn seal(&self, sandbox: &Sandbox) -> Result<Manifest, Error> {
        let provider = self.provider(&sandbox.provider)?;
        let sealed = provider.manifests().seal(&sandbox.handle(), Arc::default()).await?;
        let (files, bytes) = (sealed.files, sealed.bytes);
        Ok(Manifest { digest: sealed.digest, files, bytes, written_at: self.now() })
    }

    /// A sandbox that is paused or stopped already gets its manifest. For those who hold its lock.
    pub(super) async fn seal_at_rest(&self, sandbox: Sandbox) -> Result<Sandbox, Error> {
        let manifest = self.seal(&sandbox).await?;
        let state = sandbox.state;
        let note = |sandbox: &mut Sandbox| {
            // Another server was quicker: what it has begun holds.
            let same = sandbox.state == state && sandbox.manifest.is_none();
            if same {
                sandbox.manifest = Some(manifest.clone());
            }
            same
        };
        self.note_manifest(sandbox, note).await
    }

    /// Before something else than a process changes its files: the manifest holds no more, also after a power cut. For those who
    /// hold its lock.
    pub(crate) async fn forget_manifest(&self, sandbox: Sandbox) -> Result<Sandbox, Error> {
        self.note_manifest(sandbox, |sandbox| sandbox.manifest.take().is_some()).await
    }

    /// Writes the sandbox where `note` has changed it.
    async fn note_manifest(&self, mut sandbox: Sandbox, note: impl Fn(&mut Sandbox) -> bool) -> Result<Sandbox, Error> {
        let id = sandbox.id.clone();
        let mut attempts = Attempts::on(&id);
        while note(&mut sandbox) {
            attempts.again()?;
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            if self.store().update_sandbox(&mut sandbox, Some(&event)).await? == Written::Done {
                self.announce(sandbox.state, &sandbox);
                break;
            }
            let found = self.store().sandbox_by_id(&id).await?;
            sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
        }
        Ok(sandbox)
    }
}

/// What the caller reads where the sandbox is where it shall be, and its manifest is not written.
pub(super) fn unsealed(effect: Effect, error: Error) -> Error {
    let done = if effect == Effect::Pause { "paused" } else { "stopped" };
    match error {
        Error::Full(why) => Error::Full(format!("it is {done}, without a manifest of its files: {why}")),
        Error::Invalid { message, .. } | Error::Unsupported(message) | Error::Exhausted { message, .. } => {
            Error::Conflict(format!("it is {done}, without a manifest of its files: {message}"))
        }
        Error::NotFound { .. } => Error::Conflict(format!("it is {done}, and its files are not there")),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_holds_only_where_no_process_can_have_moved() {
        for state in State::ALL {
            assert!(!holds_in(state) || !state.has_processes() || state == State::Paused, "{state}");
        }
    }

    #[test]
    fn what_is_not_said_is_as_configured() {
        let durable = [None, Some(true), Some(false)].map(Durable::from);
        assert_eq!(durable, [Durable::AsConfigured, Durable::Yes, Durable::No]);
    }
}
