//! Changing a sandbox without moving it to another state: timers, labels, name, limits, network.

use std::collections::BTreeMap;

use cove_protocol::SandboxId;

use super::attempts::Attempts;
use super::create::{check_env, check_labels, check_name};
use super::{LimitsChange, NetworkPolicy, Sandbox, State, TimersChange};
use crate::audit::Entry;
use crate::event::Kind;
use crate::ledger::{counted_disk, counts_as};
use crate::provider::{Ability, Limits, ProviderError};
use crate::right::Right;
use crate::store::Written;
use crate::store::sandboxes::Along;
use crate::store::usage::Span;
use crate::{App, Caller, Error, Scope};

impl App {
    pub async fn set_timers(&self, caller: &Caller, id_or_name: &str, change: TimersChange) -> Result<Sandbox, Error> {
        change.check()?;
        self.edit(caller, id_or_name, move |app, sandbox| {
            change.apply(&mut sandbox.timers, app.now());
            app.check_able(sandbox)
        })
        .await
    }

    pub async fn set_labels(
        &self,
        caller: &Caller,
        id_or_name: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        check_labels(&labels)?;
        let id = self.sandbox(caller, id_or_name).await?.id;
        let _lock = self.locks().lock(&id).await;
        let mut attempts = Attempts::on(&id);
        loop {
            attempts.again()?;
            let mut sandbox = self.there(&id).await?;
            sandbox.labels = labels.clone();
            sandbox.updated_at = Some(self.now());
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            let entry = self.audit_entry(caller, "sandbox.update", sandbox.id.as_str());
            let along = Along { event: Some(&event), audit: Some(&entry), ..Along::default() };
            if self.store().update_labels(&mut sandbox, along).await? == Written::Done {
                self.announce(sandbox.state, &sandbox);
                return Ok(sandbox);
            }
        }
    }

    pub async fn rename(&self, caller: &Caller, id_or_name: &str, name: Option<String>) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        if let Some(name) = &name {
            check_name(name)?;
            self.check_is_no_id(caller, name).await?;
        }
        let id = self.sandbox(caller, id_or_name).await?.id;
        let _lock = self.locks().lock(&id).await;
        let mut attempts = Attempts::on(&id);
        loop {
            attempts.again()?;
            let mut sandbox = self.there(&id).await?;
            sandbox.name = name.clone();
            sandbox.updated_at = Some(self.now());
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            let entry = self.audit_entry(caller, "sandbox.update", sandbox.id.as_str());
            let along = Along { event: Some(&event), audit: Some(&entry), ..Along::default() };
            match self.store().rename_sandbox(&mut sandbox, along).await? {
                Some(Written::Done) => {
                    self.announce(sandbox.state, &sandbox);
                    return Ok(sandbox);
                }
                Some(Written::Overtaken) => continue,
                None => {
                    let name = name.unwrap_or_default();
                    return Err(Error::Conflict(format!("a sandbox named {name:?} is there already")));
                }
            }
        }
    }

    /// What the doors remember, made of the sandbox as it is at that moment: of two who change it neither is lost.
    pub async fn change_door(
        &self,
        caller: &Caller,
        id_or_name: &str,
        change: impl Fn(&Sandbox) -> Result<serde_json::Value, Error>,
    ) -> Result<Sandbox, Error> {
        self.edit(caller, id_or_name, |_, sandbox| {
            sandbox.door = change(sandbox)?;
            Ok(())
        })
        .await
    }

    /// What every process that is started from now on inherits, after a restart too. For doors that have checked who
    /// asks; processes inside are told by the guest.
    pub(crate) async fn change_env(
        &self,
        id: &SandboxId,
        change: impl Fn(&mut BTreeMap<String, String>),
    ) -> Result<Sandbox, Error> {
        let _lock = self.locks().lock(id).await;
        let mut attempts = Attempts::on(id);
        loop {
            attempts.again()?;
            let mut sandbox = self.there(id).await?;
            change(&mut sandbox.env);
            check_env(&sandbox.env)?;
            sandbox.updated_at = Some(self.now());
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            if self.store().update_sandbox(&mut sandbox, Some(&event)).await? == Written::Done {
                return Ok(sandbox);
            }
        }
    }

    pub async fn set_public(&self, caller: &Caller, id_or_name: &str, public: Visibility) -> Result<Sandbox, Error> {
        let sandbox = self
            .edit(caller, id_or_name, move |_, sandbox| {
                sandbox.public = public == Visibility::Public;
                Ok(())
            })
            .await?;
        if public == Visibility::Private {
            self.end_keyless(&sandbox).await?;
        }
        Ok(sandbox)
    }

    /// New tokens; the old ones open nothing from now on.
    pub async fn rotate_tokens(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        let sandbox = self
            .edit(caller, id_or_name, |_, sandbox| {
                sandbox.access_token = crate::random::token();
                sandbox.traffic_token = crate::random::token();
                Ok(())
            })
            .await?;
        self.end_keyless(&sandbox).await?;
        Ok(sandbox)
    }

    /// Ends what goes on without a key: by the sandbox's tokens, by links made of them, or because it was public.
    pub(crate) async fn end_keyless(&self, sandbox: &Sandbox) -> Result<(), Error> {
        self.rights().end(&Right::Sandbox(sandbox.id.clone()));
        self.store().note_rights_changed().await
    }

    /// Another policy, held before it is told. A caller that hangs up half-way leaves no policy told that is not held.
    pub async fn set_network(
        &self,
        caller: &Caller,
        id_or_name: &str,
        network: NetworkPolicy,
    ) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        let wanted = self.check_network(caller, &network).await?;
        let id = self.sandbox(caller, id_or_name).await?.id;
        let entry = self.audit_entry(caller, "sandbox.update", id.as_str());
        let app = self.clone();
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            let before = app.there(&id).await?;
            app.check_able(&Sandbox { network: network.clone(), ..before.clone() })?;
            let write = |_: &App, sandbox: &mut Sandbox| {
                sandbox.network = network.clone();
                Ok(())
            };
            if !before.state.has_processes() {
                return app.edit_locked(&id, &entry, write).await;
            }
            app.check_here(&before).await?;
            let provider = app.provider(&before.provider)?;
            let handle = before.handle();
            provider.set_network(&handle, &wanted).await?;
            let written = app.edit_locked(&id, &entry, write).await;
            if written.is_err() {
                put_back(&id, provider.set_network(&handle, &before.network.to_network()?).await);
            }
            written
        })
        .await
    }

    /// New limits. A running sandbox gets them at once; what holds a smaller disk than asked is told no.
    pub async fn resize(&self, caller: &Caller, id_or_name: &str, change: LimitsChange) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        let found = self.sandbox(caller, id_or_name).await?;
        self.check_held(&found.provider, &change)?;
        let (app, id, organisation) = (self.clone(), found.id, caller.organisation.clone());
        let entry = self.audit_entry(caller, "sandbox.resize", id.as_str());
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            let before = app.there(&id).await?;
            let limits = change.apply(before.limits);
            app.check_limits(&organisation, limits).await?;
            if let (Some(old), Some(new)) = (before.limits.disk, limits.disk)
                && new < old
            {
                return Err(Error::invalid("limits.disk", "a disk can grow but not shrink"));
            }
            // What is in the archive has no disk until it starts.
            let counts = |limits: Limits| counts_as(before.state, counted_disk(limits.disk)).disk;
            let more = counts(limits).saturating_sub(counts(before.limits));
            let quota = app.quota(&organisation).await?;
            let mut place = app.ledger().claim_disk(&organisation, &quota, more)?;
            if !before.state.has_processes() {
                let written = app.write_limits(&id, limits, &entry).await?;
                place.is_written();
                return Ok(written);
            }
            app.resize_running(&before, limits).await?;
            let written = app.write_limits(&id, limits, &entry).await;
            match &written {
                Ok(_) => place.is_written(),
                Err(_) => {
                    put_back(&id, app.provider(&before.provider)?.resize(&before.handle(), &before.limits).await);
                    app.capacity().note(&id, before.limits.memory);
                }
            }
            written
        })
        .await
    }

    /// What runs has other limits from now on, and as much of the server's room.
    async fn resize_running(&self, before: &Sandbox, limits: Limits) -> Result<(), Error> {
        self.check_here(before).await?;
        self.require(&before.provider, Ability::Resize)?;
        let provider = self.provider(&before.provider)?;
        if limits.memory > before.limits.memory {
            self.admit_resized(before, limits.memory)?;
        }
        let resized = provider.resize(&before.handle(), &limits).await;
        let memory = if resized.is_ok() { limits.memory } else { before.limits.memory };
        self.capacity().note(&before.id, memory);
        Ok(resized?)
    }

    async fn write_limits(&self, id: &SandboxId, limits: Limits, asked: &Entry) -> Result<Sandbox, Error> {
        let change = |app: &App, sandbox: &mut Sandbox| {
            let now = app.now();
            let span = crate::usage::open_span(sandbox, now);
            sandbox.limits = limits;
            sandbox.metered_from = now;
            Ok(span)
        };
        self.rewrite(id, asked, change).await
    }

    pub(crate) async fn edit(
        &self,
        caller: &Caller,
        id_or_name: &str,
        change: impl Fn(&App, &mut Sandbox) -> Result<(), Error>,
    ) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        let id = self.sandbox(caller, id_or_name).await?.id;
        let entry = self.audit_entry(caller, "sandbox.update", id.as_str());
        let _lock = self.locks().lock(&id).await;
        self.edit_locked(&id, &entry, change).await
    }

    /// As [`App::edit`], for those who hold the lock.
    async fn edit_locked(
        &self,
        id: &SandboxId,
        asked: &Entry,
        change: impl Fn(&App, &mut Sandbox) -> Result<(), Error>,
    ) -> Result<Sandbox, Error> {
        self.rewrite(id, asked, |app, sandbox| change(app, sandbox).map(|()| None)).await
    }

    /// Changes the row as often as others come first. What `change` answers was used until now and is written with it.
    async fn rewrite(
        &self,
        id: &SandboxId,
        asked: &Entry,
        change: impl Fn(&App, &mut Sandbox) -> Result<Option<Span>, Error>,
    ) -> Result<Sandbox, Error> {
        let mut attempts = Attempts::on(id);
        loop {
            attempts.again()?;
            let mut sandbox = self.there(id).await?;
            let span = change(self, &mut sandbox)?;
            sandbox.updated_at = Some(self.now());
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            let along = Along { event: Some(&event), span: span.as_ref(), audit: Some(asked), ..Along::default() };
            if self.store().update_sandbox_along(&mut sandbox, along).await? == Written::Done {
                self.announce(sandbox.state, &sandbox);
                return Ok(sandbox);
            }
        }
    }

    /// The sandbox as the store has it now, unless it is gone.
    async fn there(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        let found = self.store().sandbox_by_id(id).await?;
        found
            .filter(|sandbox| !matches!(sandbox.state, State::Destroyed | State::Destroying))
            .ok_or_else(|| Error::not_found("sandbox", id.to_string()))
    }
}

/// Who may see a sandbox's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    Public,
    Private,
}

/// What could not be written must not be held either; the first error is the one to tell.
fn put_back(id: &SandboxId, done: Result<(), ProviderError>) {
    if let Err(error) = done {
        tracing::error!(sandbox = %id, %error, "what it has is not what is written of it, until it starts anew");
    }
}
