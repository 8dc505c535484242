//! Warm pools: sandboxes made ahead, so that a creation does not wait.
//!
//! A pool belongs to an organisation and a template. Its members are sandboxes like any other that nobody sees yet. A
//! creation takes a member that has everything it asks for: the server pings it (a dead one is never handed out), sets
//! its environment, and gives it to the caller with one write. The background replaces it ([`refill`]). Members are ready as
//! soon as they run; then their Python is started for the first cell.

mod members;
mod refill;

use std::collections::HashMap;
use std::sync::Mutex;

use cove_protocol::Request;
use serde::Serialize;
use tokio::sync::{Notify, Semaphore};

use self::members::{Member, Members, Waiting};
use crate::event::Kind;
use crate::sandbox::cause::{Cause, Code};
use crate::sandbox::state::Event;
use crate::sandbox::{NetworkPolicy, NewSandbox, Sandbox, State};
use crate::store::sandboxes::{Along, Idempotency, Taken};
use crate::template::Template;
use crate::{App, Caller, Error, Scope, random};

const LARGEST: u32 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSize {
    pub organisation: String,
    pub template: String,
    pub size: u32,
}

/// The current state of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Pool {
    pub template: String,
    /// How many should be ready.
    pub size: u32,
    /// How many are ready on this server.
    pub ready: u32,
    /// How many of these have a Python ready for its first cell.
    pub warm: u32,
    /// Creations served from it since the server started.
    pub hits: u64,
    /// Creations that found it empty.
    pub misses: u64,
}

type Name = (String, String);

pub struct Pools {
    all: Mutex<HashMap<Name, Members>>,
    /// Turns to import what cells begin with: seconds of a processor each. Half of the processors is left to callers, whose
    /// first cells took ten times as long beside four members that were warmed at once.
    warming: Semaphore,
    /// Something may be missing.
    wanted: Notify,
}

impl Default for Pools {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Pools { all: Mutex::default(), warming: Semaphore::new((processors / 2).max(1)), wanted: Notify::new() }
    }
}

impl Pools {
    fn with<T>(&self, organisation: &str, template: &str, act: impl FnOnce(&mut Members) -> T) -> Option<T> {
        let mut all = self.all.lock().expect("no panic while held");
        // Most installations have no pool: then this allocates no key.
        if all.is_empty() {
            return None;
        }
        all.get_mut(&(organisation.to_owned(), template.to_owned())).map(act)
    }

    /// Removes a member that ended by itself.
    pub fn remove(&self, id: &cove_protocol::SandboxId) {
        for members in self.all.lock().expect("no panic while held").values_mut() {
            members.remove(id);
        }
        self.wake();
    }

    fn wake(&self) {
        self.wanted.notify_one();
    }
}

impl App {
    pub async fn set_pool(&self, caller: &Caller, template: &str, size: u32) -> Result<Pool, Error> {
        caller.require(Scope::Admin)?;
        let template = self.template(caller, template).await?.name;
        if size > LARGEST {
            return Err(Error::invalid("size", format!("at most {LARGEST}")));
        }
        let pool = PoolSize { organisation: caller.organisation.clone(), template: template.clone(), size };
        self.store().set_pool(&pool, self.now().as_millisecond()).await?;
        self.audit(caller, "pool.set", &template).await?;
        self.load_pools().await?;
        self.pools().wake();
        let pools = self.list_pools(caller).await?;
        pools.into_iter().find(|pool| pool.template == template).ok_or_else(|| Error::not_found("pool", template))
    }

    pub async fn delete_pool(&self, caller: &Caller, template: &str) -> Result<(), Error> {
        caller.require(Scope::Admin)?;
        if !self.store().delete_pool(&caller.organisation, template).await? {
            return Err(Error::not_found("pool", template));
        }
        self.audit(caller, "pool.delete", template).await?;
        self.load_pools().await?;
        self.pools().wake();
        Ok(())
    }

    pub async fn list_pools(&self, caller: &Caller) -> Result<Vec<Pool>, Error> {
        let all = self.pools().all.lock().expect("no panic while held");
        let mut pools: Vec<Pool> = all
            .iter()
            .filter(|((organisation, _), members)| {
                *organisation == caller.organisation && (members.size > 0 || !members.is_empty())
            })
            .map(|((_, template), members)| Pool {
                template: template.clone(),
                size: members.size,
                ready: members.ready(),
                warm: members.warm(),
                hits: members.hits,
                misses: members.misses,
            })
            .collect();
        pools.sort_by(|a, b| a.template.cmp(&b.template));
        Ok(pools)
    }

    /// Hits and misses of all pools, for the metrics.
    pub(crate) fn pool_figures(&self) -> Vec<(String, u32, u32, u64, u64)> {
        let all = self.pools().all.lock().expect("no panic while held");
        let figures = all.iter().map(|((_, template), members)| {
            (template.clone(), members.size, members.ready(), members.hits, members.misses)
        });
        figures.collect()
    }

    /// Reads sizes from the store; at the start of a server also the members.
    pub(crate) async fn load_pools(&self) -> Result<(), Error> {
        let sizes = self.store().pools().await?;
        let mut all = self.pools().all.lock().expect("no panic while held");
        for members in all.values_mut() {
            members.size = 0;
        }
        for pool in sizes {
            all.entry((pool.organisation, pool.template)).or_default().size = pool.size;
        }
        Ok(())
    }

    /// After a reconcile: members that still run are ready again.
    pub(crate) async fn readopt_pools(&self) -> Result<(), Error> {
        self.load_pools().await?;
        for sandbox in self.store().pooled_sandboxes(self.server()).await? {
            let Some(template) = sandbox.pool.clone() else { continue };
            if sandbox.state == State::Running {
                let mut all = self.pools().all.lock().expect("no panic while held");
                let members = all.entry((sandbox.organisation.clone(), template)).or_default();
                members.add(Member { sandbox, interpreter: Waiting::NotYet });
            } else if !sandbox.state.is_in_transition() {
                let cause = Cause::new(Code::Pool, "a member of a pool that did not live", self.now());
                self.change_state(&sandbox.id, Event::Destroy, cause).await?;
            }
        }
        Ok(())
    }

    /// A member for this creation, if one fits. It belongs to the caller when this returns.
    pub(crate) async fn take_from_pool(
        &self,
        caller: &Caller,
        draft: &Sandbox,
        new: &NewSandbox,
        template: &Template,
    ) -> Result<Option<Sandbox>, Error> {
        if !fits(draft, new, template) {
            return Ok(None);
        }
        let fingerprint = new.fingerprint();
        let repeatable = new.idempotency_key.as_deref().map(|key| Idempotency { key, fingerprint: &fingerprint });
        loop {
            let member = self.pools().with(&draft.organisation, &draft.template, Members::take);
            let Some(taken) = member.flatten() else { return Ok(None) };
            let member = &taken.sandbox;
            self.pools().wake();
            let mut sandbox = adopt(draft, member, new);
            let outdated = member.image != draft.image;
            if outdated || !self.is_fit_for_use(&sandbox, template, new).await {
                let why = if outdated {
                    "its template was built anew"
                } else {
                    "did not answer when it was to be handed out"
                };
                tracing::warn!(sandbox = %member.id, why, "a member of a pool is replaced");
                let cause = Cause::new(Code::Pool, why, self.now());
                self.change_state(&member.id, Event::Destroy, cause).await?;
                continue;
            }
            let event = self.sandbox_event(&sandbox, Kind::Created);
            let entry = self.audit_entry(caller, "sandbox.create", sandbox.id.as_str());
            let along = Along { event: Some(&event), audit: Some(&entry), ..Along::default() };
            match self.store().take_pooled(&mut sandbox, repeatable, along).await? {
                Taken::Done => {
                    self.announce(State::Creating, &sandbox);
                    return Ok(Some(sandbox));
                }
                // Another server took it, or it ended.
                Taken::Overtaken => continue,
                Taken::NameTaken | Taken::KeyUsed if new.network != NetworkPolicy::open() => {
                    let cause = Cause::new(Code::Pool, "its network was closed for a creation that failed", self.now());
                    self.change_state(&member.id, Event::Destroy, cause).await?;
                    return Ok(None);
                }
                Taken::NameTaken | Taken::KeyUsed => {
                    self.pools().with(&draft.organisation, &draft.template, |members| members.give_back(taken));
                    return Ok(None);
                }
            }
        }
    }

    /// Checks that the member is alive, and sets it up for the caller.
    async fn is_fit_for_use(&self, sandbox: &Sandbox, template: &Template, new: &NewSandbox) -> bool {
        let Ok(provider) = self.provider(&sandbox.provider) else { return false };
        // Members have a network, because a running sandbox cannot get one; removing it works at once.
        if new.network != NetworkPolicy::open() {
            let Ok(wanted) = new.network.to_network() else { return false };
            if provider.set_network(&sandbox.handle(), &wanted).await.is_err() {
                return false;
            }
        }
        let plain = sandbox.env == template.env && sandbox.user == template.user && sandbox.cwd == template.cwd;
        let request = if plain {
            Request::Ping
        } else {
            Request::Configure {
                env: Some(sandbox.env.clone()),
                default_user: Some(sandbox.user.clone()),
                default_cwd: sandbox.cwd.clone(),
            }
        };
        provider.guest(&sandbox.handle()).call(&request).await.is_ok()
    }
}

/// Whether a member has everything that the caller asked for.
fn fits(draft: &Sandbox, new: &NewSandbox, template: &Template) -> bool {
    let network = [NetworkPolicy::open(), NetworkPolicy::closed()].contains(&new.network);
    draft.limits == template.limits && network && new.provider.is_none() && draft.volumes.is_empty()
}

/// The caller's draft applied to the member.
fn adopt(draft: &Sandbox, member: &Sandbox, new: &NewSandbox) -> Sandbox {
    let mut env = draft.env.clone();
    if let Some(id) = new.id_variable.as_ref().and_then(|name| env.get_mut(name))
        && id == draft.id.as_str()
    {
        *id = member.id.to_string();
    }
    Sandbox {
        env,
        id: member.id.clone(),
        provider: member.provider.clone(),
        handle: member.handle.clone(),
        server: member.server.clone(),
        state: State::Running,
        cause: Cause::new(Code::Pool, "handed out from a warm pool", draft.created_at),
        started_at: Some(draft.created_at),
        access_token: random::token(),
        traffic_token: random::token(),
        pool: None,
        generation: member.generation,
        ..draft.clone()
    }
}
