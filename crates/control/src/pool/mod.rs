//! Warm pools: sandboxes made ahead, so that a creation does not wait.
//!
//! A pool belongs to an organisation and a template. Its members are sandboxes like any other that nobody sees yet. A
//! creation takes a member that has everything it asks for: the server pings it (a dead one is never handed out), sets
//! its environment, and gives it to the caller with one write. The background replaces it. Members are ready as soon as
//! they run; then their Python is started for the first cell.

mod members;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use cove_protocol::Request;
use serde::Serialize;
use tokio::sync::Semaphore;

use self::members::{Member, Members, Waiting};
use crate::event::Kind;
use crate::interpreter::Warmth;
use crate::key::Quota;
use crate::ledger::Claim;
use crate::sandbox::cause::{Cause, Code};
use crate::sandbox::state::Event;
use crate::sandbox::{NetworkPolicy, NewSandbox, Sandbox, State, Timers};
use crate::store::sandboxes::{Along, Idempotency, Inserted, Taken};
use crate::template::Template;
use crate::{App, Caller, Error, Scope, random};

/// The most members that are made at one time for one pool.
const AT_ONCE: u32 = 4;
const LARGEST: u32 = 10_000;
/// The pause between taking a member and making the next.
const REST: Duration = Duration::from_millis(20);

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
}

impl Default for Pools {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Pools { all: Mutex::default(), warming: Semaphore::new((processors / 2).max(1)) }
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
    pub fn remove(&self, id: &cove_engine::SandboxId) {
        for members in self.all.lock().expect("no panic while held").values_mut() {
            members.remove(id);
        }
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
        self.wake_timers();
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
        self.wake_timers();
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
            self.refill_soon();
            let mut sandbox = adopt(draft, member, new);
            let outdated = member.root != draft.root;
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

    /// Not at once: making a member takes a processor for some milliseconds, and the caller's first command needs it.
    fn refill_soon(&self) {
        let app = self.clone();
        self.tasks().spawn(async move {
            tokio::time::sleep(REST).await;
            app.wake_timers();
        });
    }

    /// Checks that the member is alive, and sets it up for the caller.
    async fn is_fit_for_use(&self, sandbox: &Sandbox, template: &Template, new: &NewSandbox) -> bool {
        let Ok(provider) = self.provider(&sandbox.provider) else { return false };
        // Members have a network, because a running sandbox cannot get one; removing it works at once.
        if new.network != NetworkPolicy::open() {
            let Ok(wanted) = new.network.to_engine() else { return false };
            if provider.set_network(&sandbox.id, &wanted).await.is_err() {
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
        provider.guest(&sandbox.id).call(&request).await.is_ok()
    }

    /// Makes missing members, removes surplus ones, and starts their interpreters.
    pub(crate) async fn fill_pools(&self) -> Result<(), Error> {
        let (mut missing, mut surplus, mut cold) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut all = self.pools().all.lock().expect("no panic while held");
            for (name, members) in all.iter_mut() {
                surplus.extend(members.surplus());
                missing.extend((0..members.begin(AT_ONCE)).map(|_| name.clone()));
                cold.extend(members.begin_warming());
            }
        }
        for (organisation, template) in missing {
            let app = self.clone();
            self.tasks().spawn(async move { app.make_member(organisation, template).await });
        }
        for member in cold {
            let app = self.clone();
            self.tasks().spawn(async move { app.warm_member(&member, Warmth::Ready).await });
        }
        for member in surplus {
            let cause = Cause::new(Code::Pool, "the pool was made smaller", self.now());
            self.change_state(&member.id, Event::Destroy, cause).await?;
        }
        Ok(())
    }

    async fn make_member(&self, organisation: String, template: String) {
        let made = self.launch_member(&organisation, &template).await;
        if let Err(error) = &made {
            tracing::warn!(template, %error, detail = error.detail(), "fill a pool");
            // Pauses before the next try: the cause may need a moment.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.pools().with(&organisation, &template, |members| {
            members.making = members.making.saturating_sub(1);
            made.into_iter().for_each(|member| members.add(member));
        });
        self.wake_timers();
    }

    async fn launch_member(&self, organisation: &str, template: &str) -> Result<Member, Error> {
        let caller = Caller { organisation: organisation.to_owned(), key: "pool".into(), scopes: vec![Scope::Write] };
        let new =
            NewSandbox { template: Some(template.to_owned()), network: NetworkPolicy::open(), ..NewSandbox::default() };
        let (mut member, made_from) = self.draft(&caller, &new).await?;
        member.pool = Some(template.to_owned());
        member.timers = Timers { idle_seconds: None, ..Timers::default() };
        member.cause = Cause::new(Code::Pool, "made for a warm pool", self.now());
        let quota = self.quota(organisation).await?;
        let place = self.ledger().reserve(organisation, &quota)?;
        let id = member.id.clone();
        let made = self.launch_in_room(member, place, &quota).await;
        if made.is_err() {
            self.capacity().release(&id);
        }
        let member = Member { sandbox: made?, interpreter: Waiting::NotYet };
        if !made_from.interpreter {
            return Ok(member);
        }
        self.warm_member(&member.sandbox, Warmth::Imported).await;
        Ok(Member { interpreter: Waiting::Yes, ..member })
    }

    /// Starts the member's Python ahead of its first cell. A member without it works too; its first cell is slower.
    async fn warm_member(&self, member: &Sandbox, warmth: Warmth) {
        let _turn = self.pools().warming.acquire().await;
        if let Ok(provider) = self.provider(&member.provider)
            && let Err(error) = self.interpreter().warm(&member.id, &provider.guest(&member.id), warmth).await
        {
            tracing::debug!(sandbox = %member.id, %error, "warm the interpreter of a pool's member");
        }
        self.pools().with(&member.organisation, &member.template, |members| members.warmed(&member.id));
        self.wake_timers();
    }

    async fn launch_in_room(&self, member: Sandbox, mut place: Claim<'_>, quota: &Quota) -> Result<Sandbox, Error> {
        let _turn = self.room_for(&member).await?;
        let _lock = self.locks().lock(&member.id).await;
        match self.store().insert_sandbox_asked(&member, None, None, Some(quota)).await? {
            Inserted::New => {
                place.is_written();
                drop(place);
                let id = member.id.clone();
                let made = self.launch_new(member).await;
                if made.as_ref().is_err_and(Error::is_of_the_database) {
                    self.unfinished().untold(&id);
                }
                made
            }
            other => Err(Error::internal(format!("a pool member without a name: {other:?}"))),
        }
    }
}

/// Whether a member has everything that the caller asked for.
fn fits(draft: &Sandbox, new: &NewSandbox, template: &Template) -> bool {
    let network = [NetworkPolicy::open(), NetworkPolicy::closed()].contains(&new.network);
    draft.limits == template.limits && network && new.provider.is_none()
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
