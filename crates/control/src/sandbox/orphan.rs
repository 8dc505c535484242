//! Files of sandboxes that the database does not know.
//!
//! They are left by a power cut that took the last rows of a database, by a database that was restored from an older backup, or by one
//! that was replaced. Nobody can tell from here whether they are worth something, so they are kept: their processes
//! end, their files stay where they are with a note of when and why, and an operator adopts or removes them. What stays is removed after
//! a configured time. What is known to be nobody's goes at once: see [`reconcile`](super::reconcile).

use std::time::Duration;

use cove_protocol::SandboxId;
use serde::Serialize;

use super::cause::Cause;
use super::create::check_name;
use super::{NetworkPolicy, Sandbox, State, Timers};
use crate::clock::{Timestamp, after, from_millisecond};
use crate::event::Kind;
use crate::provider::{Aside, Handle, Image, Limits, Provider, Seen, Sighting};
use crate::store::sandboxes::Inserted;
use crate::{App, Caller, Error, Scope, random};

/// How often those whose time is over are looked for.
pub(crate) const EVERY: Duration = Duration::from_secs(3600);

const DAY: u64 = 24 * 3600;

/// Files that nobody is known to own.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Orphan {
    pub id: String,
    pub provider: String,
    /// Since when it is kept.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// A sentence.
    pub reason: String,
    /// Bytes that it has written, where they are counted.
    pub bytes: Option<u64>,
    /// When it is removed, unless somebody adopts it; never where absent.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub removed_at: Option<Timestamp>,
}

/// Whose an orphan becomes.
#[derive(Debug, Clone, Default)]
pub struct Adoption {
    /// The caller's own where absent.
    pub organisation: Option<String>,
    pub name: Option<String>,
}

/// What was done with files of which the store knows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Somebody's after all, or not ours to judge.
    LeftAlone,
    Removed,
    KeptAside,
}

impl App {
    /// Every sandbox of this server's machine that is kept although nobody is known to own it.
    pub async fn orphans(&self, caller: &Caller) -> Result<Vec<Orphan>, Error> {
        caller.require(Scope::Operator)?;
        let mut all = Vec::new();
        for provider in self.providers() {
            for sighting in provider.sightings().await? {
                let Some(aside) = &sighting.aside else { continue };
                // Its size is of interest, and nothing depends on it.
                let bytes = provider.usage(&sighting.handle).await.ok().map(|usage| usage.disk);
                all.push(self.orphan(provider.as_ref(), &sighting.id, aside, bytes));
            }
        }
        all.sort_by(|a, b| (a.since, &a.id).cmp(&(b.since, &b.id)));
        Ok(all)
    }

    fn orphan(&self, provider: &dyn Provider, id: &SandboxId, aside: &Aside, bytes: Option<u64>) -> Orphan {
        let since = from_millisecond(aside.since);
        let days = self.config().orphans.keep_days;
        Orphan {
            id: id.to_string(),
            provider: provider.name().to_owned(),
            since,
            reason: aside.reason.clone(),
            bytes,
            removed_at: (days > 0).then(|| after(since, days.saturating_mul(DAY))),
        }
    }

    /// It becomes a stopped sandbox of an organisation, with the files that it has, and without a network.
    pub async fn adopt_orphan(&self, caller: &Caller, id: &str, adoption: Adoption) -> Result<Sandbox, Error> {
        caller.require(Scope::Operator)?;
        if let Some(name) = &adoption.name {
            check_name(name)?;
        }
        let organisation = adoption.organisation.clone().unwrap_or_else(|| caller.organisation.clone());
        if self.store().organisation(&organisation).await?.is_none() {
            return Err(Error::not_found("organisation", organisation));
        }
        let id: SandboxId = id.parse().map_err(|_| Error::not_found("orphan", id))?;
        let _lock = self.locks().lock(&id).await;
        let (provider, handle) = self.find_orphan(&id).await?;
        let sandbox = self.adopted(caller, provider.as_ref(), &id, &handle, organisation, adoption.name).await?;
        match self.store().insert_sandbox(&sandbox, None).await? {
            Inserted::New => {}
            Inserted::NameTaken => {
                let name = sandbox.name.unwrap_or_default();
                return Err(Error::Conflict(format!(
                    "a sandbox named {name:?}, or one with this id, is there already"
                )));
            }
            other => return Err(Error::internal(format!("store: an adoption came to {other:?}"))),
        }
        self.ledger().moved(&sandbox, State::Destroyed, State::Stopped);
        let event = self.sandbox_event(&sandbox, Kind::Stopped);
        self.store().add_event(&event).await?;
        // Synced, and with it all that was written before.
        self.audit(caller, "orphan.adopt", id.as_str()).await?;
        // Where this fails the next start of the server does it: its row is there.
        provider.take_back(&handle).await?;
        Ok(sandbox)
    }

    async fn adopted(
        &self,
        caller: &Caller,
        provider: &dyn Provider,
        id: &SandboxId,
        handle: &Handle,
        organisation: String,
        name: Option<String>,
    ) -> Result<Sandbox, Error> {
        let last = provider.last_order(handle).await?;
        let image = last.as_ref().map_or_else(Image::default, |last| last.image.clone());
        let templates = self.list_templates(caller).await?;
        let template = templates.into_iter().find(|template| template.image == image);
        let limits = last.as_ref().map_or_else(Limits::default, |last| last.limits);
        let now = self.now();
        Ok(Sandbox {
            id: id.clone(),
            organisation,
            name,
            template: template.map_or_else(|| "base".into(), |template| template.name),
            image,
            build: None,
            parent: None,
            clone_of: None,
            provider: provider.name().to_owned(),
            handle: Some(handle.clone()),
            server: self.server().to_owned(),
            labels: Default::default(),
            env: last.as_ref().map(|last| last.env.clone()).unwrap_or_default(),
            limits,
            network: NetworkPolicy::default(),
            checkpoints: None,
            volumes: Vec::new(),
            timers: Timers::default(),
            owner: None,
            user: last.as_ref().map_or_else(|| "user".into(), |last| last.user.clone()),
            cwd: last.and_then(|last| last.cwd),
            public: false,
            state: State::Stopped,
            cause: Cause::requested("its adoption", now),
            state_since: now,
            created_at: now,
            started_at: None,
            last_activity_at: now,
            updated_at: None,
            metered_from: now,
            access_token: random::token(),
            traffic_token: random::token(),
            door: serde_json::Value::Null,
            pool: None,
            has_archive: true,
            manifest: None,
            sealing: false,
            generation: 0,
        })
    }

    /// Its files go for good.
    pub async fn remove_orphan(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        caller.require(Scope::Operator)?;
        let id: SandboxId = id.parse().map_err(|_| Error::not_found("orphan", id))?;
        let _lock = self.locks().lock(&id).await;
        let (provider, handle) = self.find_orphan(&id).await?;
        self.audit(caller, "orphan.remove", id.as_str()).await?;
        Ok(provider.destroy(&handle).await?)
    }

    /// Removes those whose time is over.
    pub async fn remove_old_orphans(&self) -> Result<(), Error> {
        let days = self.config().orphans.keep_days;
        if days == 0 {
            return Ok(());
        }
        for provider in self.providers() {
            for Sighting { id, handle, aside, .. } in provider.sightings().await? {
                let Some(aside) = aside else { continue };
                if after(from_millisecond(aside.since), days.saturating_mul(DAY)) > self.now() {
                    continue;
                }
                let _lock = self.locks().lock(&id).await;
                if self.store().sandbox_by_id(&id).await?.is_some() {
                    continue;
                }
                tracing::info!(sandbox = %id, days, reason = aside.reason, "removing files that nobody claimed");
                provider.destroy(&handle).await?;
            }
        }
        Ok(())
    }

    async fn find_orphan(&self, id: &SandboxId) -> Result<(std::sync::Arc<dyn Provider>, Handle), Error> {
        for provider in self.providers() {
            // Nobody has noted its handle: it is looked for by its id.
            if let Some(sighting) = provider.sighting(&Handle::from(id)).await?
                && sighting.aside.is_some()
                && self.store().sandbox_by_id(id).await?.is_none()
            {
                return Ok((std::sync::Arc::clone(provider), sighting.handle));
            }
        }
        Err(Error::not_found("orphan", id.to_string()))
    }

    /// What the provider has and the store does not: removed where it is known to be nobody's, kept aside else. What another
    /// server made a moment ago is left alone.
    pub(super) async fn settle_orphan(&self, provider: &str, sighting: &Sighting) -> Result<Fate, Error> {
        let (id, handle) = (&sighting.id, &sighting.handle);
        let owner = self.provider(provider)?;
        match self.store().sandbox_by_id(id).await? {
            Some(sandbox) if sandbox.state != State::Destroyed => {
                if owner.is_bound_to_host() && sandbox.server != self.server() {
                    tracing::warn!(sandbox = %id, server = sandbox.server, "its files are here, but it is another server's: \
                        the data directory's server-id has changed; put the old name back to have it again");
                }
                return Ok(Fate::LeftAlone);
            }
            Some(_) => {
                tracing::info!(sandbox = %id, provider, "removing what is left of a destroyed sandbox");
                owner.destroy(handle).await?;
                return Ok(Fate::Removed);
            }
            None if !owner.is_exclusive() => return Ok(Fate::LeftAlone),
            None => {}
        }
        if sighting.aside.is_none() && owner.is_blank(handle).await? {
            // A creation that the power cut off: nobody was told of it, and nothing was written.
            tracing::info!(sandbox = %id, provider, "removing a sandbox that nobody owns and that is blank");
            owner.destroy(handle).await?;
            return Ok(Fate::Removed);
        }
        if sighting.aside.is_none() || sighting.state != Seen::Stopped {
            let reason = "the database does not know it: the power went before its row was on the disk, or the \
                          database is an older one";
            let aside = sighting.aside.clone();
            let aside =
                aside.unwrap_or_else(|| Aside { since: self.now().as_millisecond(), reason: reason.to_owned() });
            tracing::warn!(sandbox = %id, provider, "the database does not know it; its files are kept: see `cove orphans ls`");
            owner.keep_aside(handle, &aside).await?;
        }
        Ok(Fate::KeptAside)
    }
}
