//! Checkpoints: captures that a sandbox's rule asks for, before each command, and those that a rollback leaves.
//!
//! A command is a process that somebody starts, or a cell that an interpreter runs. They belong to the sandbox: no list of
//! snapshots shows them, the rule removes the oldest, and all of them go with the sandbox.

use std::sync::Arc;

use cove_protocol::SandboxId;

use super::Rule;
use super::create::{Capture, Standing};
use crate::build::{Build, Origin};
use crate::guest::Before;
use crate::sandbox::Sandbox;
use crate::store::templates::{Beside, TemplateFilter};
use crate::template::{Kind, Record};
use crate::{App, Caller, Error, Scope};

/// Characters of the command that a checkpoint remembers.
const NOTE_MAX: usize = 200;
/// What rollbacks replaced, of one sandbox.
const UNDOS_KEPT: usize = 3;

impl App {
    /// From now on a checkpoint is made before each command; none where there is no rule.
    pub async fn set_checkpoints(
        &self,
        caller: &Caller,
        id_or_name: &str,
        rule: Option<Rule>,
    ) -> Result<Sandbox, Error> {
        if let Some(rule) = &rule {
            rule.check()?;
            let sandbox = self.sandbox(caller, id_or_name).await?;
            self.require(&sandbox.provider, crate::provider::Ability::Snapshot)?;
        }
        self.edit(caller, id_or_name, move |_, sandbox| {
            sandbox.checkpoints = rule;
            Ok(())
        })
        .await
    }

    /// Checkpoints and snapshots of a sandbox, newest first: what it can be rolled back to.
    pub async fn list_checkpoints(&self, caller: &Caller, id_or_name: &str, limit: u32) -> Result<Vec<Build>, Error> {
        let sandbox = self.sandbox(caller, id_or_name).await?;
        let page = self.store().builds_of_sandbox(&caller.organisation, sandbox.id.as_str(), None, limit).await?;
        Ok(page.items.into_iter().filter(|build| build.state == crate::build::State::Ready).collect())
    }

    /// A checkpoint that a caller asks for.
    pub async fn checkpoint(&self, caller: &Caller, id_or_name: &str, note: Option<String>) -> Result<Build, Error> {
        caller.require(Scope::Write)?;
        let sandbox = self.sandbox(caller, id_or_name).await?;
        let audit = Some(self.audit_entry(caller, "sandbox.checkpoint", sandbox.id.as_str()));
        let (app, id) = (self.clone(), sandbox.id);
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            app.checkpoint_locked(&id, Origin::Asked, note, audit).await
        })
        .await
    }

    /// What is done before each command of a sandbox with a rule.
    pub(crate) fn checkpoints_before(&self, id: &SandboxId, rule: Rule) -> Before {
        let (app, id) = (self.clone(), id.clone());
        Arc::new(move |command: &str| {
            let (app, id) = (app.clone(), id.clone());
            let note: String = command.chars().take(NOTE_MAX).collect();
            Box::pin(async move { app.checkpoint_before(&id, rule, note).await })
        })
    }

    /// Before a command, where the sandbox's rule says so. Removes those that the rule does not keep.
    async fn checkpoint_before(&self, id: &SandboxId, rule: Rule, note: String) -> Result<(), Error> {
        let app = self.clone();
        let id = id.clone();
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            app.checkpoint_locked(&id, Origin::Automatic, Some(note), None).await?;
            app.prune_checkpoints(&id, rule).await
        })
        .await
    }

    pub(super) async fn checkpoint_locked(
        &self,
        id: &SandboxId,
        origin: Origin,
        note: Option<String>,
        audit: Option<crate::audit::Entry>,
    ) -> Result<Build, Error> {
        let found = self.store().sandbox_by_id(id).await?;
        let sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
        let record = self.checkpoints_of(&sandbox).await?;
        let capture = Capture { record, standing: Standing::There, tags: Vec::new(), origin, note, audit };
        let (_, build) = self.capture_locked(id, capture).await?;
        Ok(build)
    }

    /// The template that a sandbox's checkpoints are builds of.
    pub(super) async fn checkpoints_of(&self, sandbox: &Sandbox) -> Result<Record, Error> {
        let filter = TemplateFilter {
            kind: Kind::Checkpoints,
            source_sandbox: Some(sandbox.id.to_string()),
            ..TemplateFilter::default()
        };
        let mut found = self.store().list_templates(&sandbox.organisation, &filter, None, 1).await?.items;
        if let Some(record) = found.pop() {
            return Ok(record);
        }
        let record = self.new_snapshot_record(sandbox, Kind::Checkpoints, None, serde_json::Value::Null);
        self.store().insert_template(&record, None, Beside::default()).await?;
        Ok(record)
    }

    async fn prune_checkpoints(&self, id: &SandboxId, rule: Rule) -> Result<(), Error> {
        let found = self.store().sandbox_by_id(id).await?;
        let Some(sandbox) = found else { return Ok(()) };
        let record = self.checkpoints_of(&sandbox).await?;
        let now = self.now().as_millisecond();
        let too_old = |build: &Build| {
            let age = now - build.created_at.as_millisecond();
            rule.keep_seconds.is_some_and(|seconds| age > i64::try_from(seconds).unwrap_or(i64::MAX / 1000) * 1000)
        };
        let builds = self.store().builds_of_template(&record.id, None, 10_000).await?.items;
        let automatic = builds.iter().filter(|build| build.origin == Origin::Automatic);
        for (place, build) in automatic.enumerate() {
            if place >= rule.keep as usize || too_old(build) {
                self.store().remove_build(&build.id).await?;
            }
        }
        self.prune_undos(&builds).await
    }

    pub(super) async fn prune_undos(&self, builds: &[Build]) -> Result<(), Error> {
        for build in builds.iter().filter(|build| build.origin == Origin::Undo).skip(UNDOS_KEPT) {
            self.store().remove_build(&build.id).await?;
        }
        Ok(())
    }

    /// Checkpoints whose time is over, of sandboxes that got no command since.
    pub(crate) async fn prune_old_checkpoints(&self) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            let some = self.store().sandboxes_with_checkpoints(self.server(), &after).await?;
            let Some((last, _)) = some.last() else { return Ok(()) };
            after.clone_from(last);
            for (_, sandbox) in &some {
                let Ok(id) = sandbox.parse::<SandboxId>() else { continue };
                let found = self.store().sandbox_by_id(&id).await?;
                let rule = found.and_then(|sandbox| sandbox.checkpoints).filter(|rule| rule.keep_seconds.is_some());
                // Whoever works on it prunes it, or the next round does.
                if let (Some(rule), Some(_lock)) = (rule, self.locks().try_lock(&id)) {
                    self.prune_checkpoints(&id, rule).await?;
                }
            }
        }
    }

    /// Checkpoints of sandboxes that are gone. Snapshots stay.
    pub(crate) async fn forget_checkpoints(&self) -> Result<(), Error> {
        let now = self.now().as_millisecond();
        for id in self.store().checkpoints_of_destroyed().await? {
            let _or_by_another = self.store().delete_template(&id, now, Beside::default()).await?;
        }
        Ok(())
    }
}
