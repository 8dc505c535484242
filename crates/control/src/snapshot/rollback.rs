//! Going back: a sandbox has again the files that it had at one of its captures.
//!
//! Its processes end, its files are exchanged, and it starts anew where it ran before. What was replaced is a capture of
//! its own, so that going back can be undone in the same way. A crash in between leaves it stopped, with its files from
//! before or from after, and nothing half.

use cove_protocol::SandboxId;

use crate::audit::Entry;
use crate::build::{Build, Kind as BuildKind, Origin, State as BuildState};
use crate::event::Kind as EventKind;
use crate::image::LayerKind;
use crate::image::work::{Made, Work};
use crate::provider::{Ability, LayerId};
use crate::sandbox::cause::Cause;
use crate::sandbox::state::Event;
use crate::sandbox::{Sandbox, State};
use crate::store::templates::Beside;
use crate::template::name::is_uuid;
use crate::{App, Caller, Error, Scope, random};

impl App {
    /// Back to a checkpoint or snapshot of the sandbox: by its build, or by a snapshot's name; to the newest where none is
    /// named. Returns the sandbox, and the capture of what was replaced.
    pub async fn rollback_sandbox(
        &self,
        caller: &Caller,
        id_or_name: &str,
        to: Option<&str>,
    ) -> Result<(Sandbox, Build), Error> {
        caller.require(Scope::Write)?;
        let sandbox = self.sandbox(caller, id_or_name).await?;
        self.require(&sandbox.provider, Ability::Snapshot)?;
        let build = self.capture_of(caller, &sandbox, to).await?;
        let layer = exchangeable(&sandbox, &build)?;
        let asked = self.audit_entry(caller, "sandbox.rollback", sandbox.id.as_str());
        let (app, id) = (self.clone(), sandbox.id);
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            app.rollback_locked(&id, &build, layer, asked).await
        })
        .await
    }

    async fn capture_of(&self, caller: &Caller, sandbox: &Sandbox, to: Option<&str>) -> Result<Build, Error> {
        let unknown = |name: &str| Error::not_found("snapshot", name);
        let build = match to {
            None => {
                let all = self.list_checkpoints(caller, sandbox.id.as_str(), 100).await?;
                let newest = all.into_iter().find(|build| build.origin != Origin::Undo);
                newest.ok_or_else(|| Error::Conflict("the sandbox has no checkpoint to go back to".into()))?
            }
            Some(id) if is_uuid(&id.to_lowercase()) => {
                let found = self.store().build(&id.to_lowercase()).await?;
                found.filter(|build| build.organisation == caller.organisation).ok_or_else(|| unknown(id))?
            }
            Some(name) => {
                let template = self.template(caller, name).await.map_err(|_| unknown(name))?;
                let id = template.build.ok_or_else(|| unknown(name))?;
                self.store().build(&id).await?.ok_or_else(|| unknown(name))?
            }
        };
        if build.source_sandbox.as_deref() != Some(sandbox.id.as_str()) || build.state != BuildState::Ready {
            return Err(Error::invalid("snapshot", "it is not one of this sandbox; start a new sandbox from it"));
        }
        Ok(build)
    }

    async fn rollback_locked(
        &self,
        id: &SandboxId,
        to: &Build,
        layer: LayerId,
        asked: Entry,
    ) -> Result<(Sandbox, Build), Error> {
        let work = Work::begin(self);
        if !work.hold(&[layer]).await? {
            return Err(Error::not_found("snapshot", to.id.clone()));
        }
        let cause = Cause::requested("a rollback", self.now());
        let found = self.store().sandbox_by_id(id).await?;
        let before = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
        self.check_storage(&before.organisation, 0).await?;
        let ran = matches!(before.state, State::Running | State::Paused);
        let stopped = self.change_locked(id, Event::Halt, cause.clone(), Some(&asked)).await?;
        let stopped = self.forget_manifest(stopped).await?;
        let replaced = self.exchange(&work, &stopped, layer, to).await;
        let sandbox = if ran { self.change_locked(id, Event::Start, cause, None).await } else { Ok(stopped) };
        let (replaced, sandbox) = (replaced?, sandbox?);
        let mut event = self.sandbox_event(&sandbox, EventKind::RolledBack);
        event.data["to"] = serde_json::json!(to.id);
        event.data["replaced"] = serde_json::json!(replaced.id);
        self.store().add_event(&event).await?;
        work.end().await?;
        Ok((sandbox, replaced))
    }

    /// Exchanges the files of a stopped sandbox. Returns the capture of what it had.
    async fn exchange(&self, work: &Work, sandbox: &Sandbox, to: LayerId, build: &Build) -> Result<Build, Error> {
        let record = self.checkpoints_of(sandbox).await?;
        let kept = random::layer_id();
        let provider = self.provider(&sandbox.provider)?;
        let handle = sandbox.handle();
        let make = || async { Ok(provider.layers().rollback(&handle, to, kept).await?) };
        let made = work.make(kept, LayerKind::Delta, Some(&sandbox.organisation), &sandbox.provider, make).await?;
        let size = match made {
            Made::Now(info) => info.bytes,
            Made::Found => 0,
        };
        let now = self.now();
        let mut root = sandbox.image.root.clone();
        root.over.insert(0, kept);
        let mut undo = Build {
            id: random::uuid(),
            template: record.id.clone(),
            kind: BuildKind::Capture,
            state: BuildState::Building,
            tags: Vec::new(),
            image: root.into(),
            delta: Some(kept),
            origin: Origin::Undo,
            note: Some(format!("before the rollback to {}", build.id)),
            bytes: size,
            created_at: now,
            started_at: Some(now),
            finished_at: Some(now),
            last_used_at: None,
            generation: 0,
            ..build.clone()
        };
        let finished = match self.store().insert_build(&undo, Beside::default()).await {
            Ok(()) => {
                undo.state = BuildState::Ready;
                self.store().finish_build(&mut undo, now.as_millisecond(), Beside::default()).await
            }
            Err(error) => Err(error),
        };
        let gone = || Error::internal("what a rollback replaced is gone");
        if let Err(error) = finished.and_then(|written| written.ok_or_else(gone)) {
            self.take_back_capture(&undo, &record).await;
            return Err(error);
        }
        let builds = self.store().builds_of_template(&record.id, None, 1000).await?.items;
        self.prune_undos(&builds).await?;
        Ok(undo)
    }
}

/// The layer that can take the place of what the sandbox has written: one that lies on the same files.
fn exchangeable(sandbox: &Sandbox, build: &Build) -> Result<LayerId, Error> {
    let other = || Error::invalid("snapshot", "the sandbox stands on other files by now; start a new sandbox from it");
    build.delta.filter(|_| build.source_sandbox.as_deref() == Some(sandbox.id.as_str())).ok_or_else(other)
}
