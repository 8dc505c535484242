//! Changing a sandbox without moving it to another state: timers, labels, name, limits, network.

use std::collections::BTreeMap;

use cove_engine::SandboxId;

use super::create::{check_env, check_labels, check_name};
use super::{LimitsChange, NetworkPolicy, Sandbox, State, TimersChange};
use crate::event::Kind;
use crate::store::Written;
use crate::store::sandboxes::Along;
use crate::{App, Caller, Error, Scope};

/// Another server may write between our read and our write.
const ATTEMPTS: usize = 8;

impl App {
    pub async fn set_timers(&self, caller: &Caller, id_or_name: &str, change: TimersChange) -> Result<Sandbox, Error> {
        change.check()?;
        self.edit(caller, id_or_name, move |app, sandbox| {
            change.apply(&mut sandbox.timers, app.now());
            Ok(())
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
        for _ in 0..ATTEMPTS {
            let mut sandbox = self.there(&id).await?;
            sandbox.labels = labels.clone();
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            let entry = self.audit_entry(caller, "sandbox.update", sandbox.id.as_str());
            let along = Along { event: Some(&event), audit: Some(&entry), ..Along::default() };
            if self.store().update_labels(&mut sandbox, along).await? == Written::Done {
                self.announce(sandbox.state, &sandbox);
                return Ok(sandbox);
            }
        }
        Err(overtaken(&id))
    }

    pub async fn rename(&self, caller: &Caller, id_or_name: &str, name: Option<String>) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        if let Some(name) = &name {
            check_name(name)?;
        }
        let id = self.sandbox(caller, id_or_name).await?.id;
        let _lock = self.locks().lock(&id).await;
        for _ in 0..ATTEMPTS {
            let mut sandbox = self.there(&id).await?;
            sandbox.name = name.clone();
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
        Err(overtaken(&id))
    }

    /// What the door remembers; no event.
    pub async fn set_door(&self, caller: &Caller, id_or_name: &str, door: serde_json::Value) -> Result<Sandbox, Error> {
        self.edit(caller, id_or_name, move |_, sandbox| {
            sandbox.door = door.clone();
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
        for _ in 0..ATTEMPTS {
            let mut sandbox = self.there(id).await?;
            change(&mut sandbox.env);
            check_env(&sandbox.env)?;
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            if self.store().update_sandbox(&mut sandbox, Some(&event)).await? == Written::Done {
                return Ok(sandbox);
            }
        }
        Err(overtaken(id))
    }

    pub async fn set_public(&self, caller: &Caller, id_or_name: &str, public: Visibility) -> Result<Sandbox, Error> {
        self.edit(caller, id_or_name, move |_, sandbox| {
            sandbox.public = public == Visibility::Public;
            Ok(())
        })
        .await
    }

    /// New tokens; the old ones open nothing from now on.
    pub async fn rotate_tokens(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.edit(caller, id_or_name, |_, sandbox| {
            sandbox.access_token = crate::random::token();
            sandbox.traffic_token = crate::random::token();
            Ok(())
        })
        .await
    }

    pub async fn set_network(
        &self,
        caller: &Caller,
        id_or_name: &str,
        network: NetworkPolicy,
    ) -> Result<Sandbox, Error> {
        let engine = self.check_network(caller, &network)?;
        let sandbox = self.edit(caller, id_or_name, move |_, sandbox| {
            sandbox.network = network.clone();
            Ok(())
        });
        let sandbox = sandbox.await?;
        if sandbox.state.has_processes() {
            self.check_here(&sandbox).await?;
            self.provider(&sandbox.provider)?.set_network(&sandbox.id, &engine).await?;
        }
        Ok(sandbox)
    }

    /// New limits. A running sandbox gets them at once; what holds a smaller disk than asked is told no.
    pub async fn resize(&self, caller: &Caller, id_or_name: &str, change: LimitsChange) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        let before = self.sandbox(caller, id_or_name).await?;
        self.check_held(&before.provider, &change)?;
        let limits = change.apply(before.limits);
        self.check_limits(&caller.organisation, limits).await?;
        if let (Some(old), Some(new)) = (before.limits.disk, limits.disk)
            && new < old
        {
            return Err(Error::invalid("limits.disk", "a disk can grow but not shrink"));
        }
        if before.state.has_processes() {
            self.check_here(&before).await?;
            let provider = self.provider(&before.provider)?;
            if limits.memory > before.limits.memory {
                self.admit_resized(&before, limits.memory)?;
            }
            if !provider.capabilities().resize {
                return Err(Error::Unsupported(format!("provider {} cannot resize", before.provider)));
            }
            provider.resize(&before.id, &limits).await?;
        }
        let app = self.clone();
        let id = before.id.clone();
        let entry = self.audit_entry(caller, "sandbox.resize", id.as_str());
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            for _ in 0..ATTEMPTS {
                let mut sandbox = app.there(&id).await?;
                let now = app.now();
                let span = crate::usage::open_span(&sandbox, now);
                sandbox.limits = limits;
                sandbox.metered_from = now;
                let event = app.sandbox_event(&sandbox, Kind::Updated);
                let along = Along { event: Some(&event), span: span.as_ref(), audit: Some(&entry) };
                let written = app.store().update_sandbox_along(&mut sandbox, along).await?;
                if written == Written::Done {
                    app.announce(sandbox.state, &sandbox);
                    return Ok(sandbox);
                }
            }
            Err(overtaken(&id))
        })
        .await
    }

    async fn edit(
        &self,
        caller: &Caller,
        id_or_name: &str,
        change: impl Fn(&App, &mut Sandbox) -> Result<(), Error> + Send + 'static,
    ) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        let id = self.sandbox(caller, id_or_name).await?.id;
        let _lock = self.locks().lock(&id).await;
        for _ in 0..ATTEMPTS {
            let mut sandbox = self.there(&id).await?;
            change(self, &mut sandbox)?;
            let event = self.sandbox_event(&sandbox, Kind::Updated);
            let entry = self.audit_entry(caller, "sandbox.update", sandbox.id.as_str());
            let along = Along { event: Some(&event), audit: Some(&entry), ..Along::default() };
            if self.store().update_sandbox_along(&mut sandbox, along).await? == Written::Done {
                self.announce(sandbox.state, &sandbox);
                return Ok(sandbox);
            }
        }
        Err(overtaken(&id))
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

fn overtaken(id: &SandboxId) -> Error {
    Error::Conflict(format!("sandbox {id} is being changed by others; try again"))
}
