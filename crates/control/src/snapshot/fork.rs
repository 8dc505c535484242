//! Forks: copies of a sandbox that run at once, each with an id, a name, tokens and a network of its own.
//!
//! ```text
//!   places of the organisation ─▶ room of the server ─▶ rows ─▶ one instant of the source ─▶ launches, some at a time
//!      for all at once: what         each for itself      in one     one freeze, one commit     one that fails leaves
//!      is too many is refused                             write                                 nothing
//! ```
//! A fork is a creation whose files are another's: it goes the way of every creation, through the organisation's maxima
//! and the server's room, and each of several succeeds or fails for itself. Only files are copied.

use std::collections::HashMap;

use cove_protocol::SandboxId;
use tokio::sync::OwnedMutexGuard;

use crate::audit::Entry;
use crate::event::{Kind as EventKind, NewEvent};
use crate::key::Quota;
use crate::ledger::{Claim, disk_of};
use crate::provider::{Ability, Handle};
use crate::sandbox::cause::Cause;
use crate::sandbox::create::{check_labels, check_name};
use crate::sandbox::{Sandbox, State, TimersChange};
use crate::store::sandboxes::Inserted;
use crate::{App, Caller, Error, Scope, random};

/// Copies of one request.
pub const MOST: u32 = 100;

#[derive(Debug, Clone)]
pub struct NewFork {
    pub count: u32,
    /// What the first of them are called, in order; the others have no name.
    pub names: Vec<String>,
    /// Those of the source where absent.
    pub labels: Option<std::collections::BTreeMap<String, String>>,
    pub timers: TimersChange,
    /// What doors remember of the copies. Nothing comes by itself: what doors remember of the source may open it, and
    /// must not open its copies.
    pub door: serde_json::Value,
}

impl Default for NewFork {
    fn default() -> Self {
        let timers = TimersChange::default();
        NewFork { count: 1, names: Vec::new(), labels: None, timers, door: serde_json::Value::Null }
    }
}

impl NewFork {
    fn check(&self) -> Result<(), Error> {
        if !(1..=MOST).contains(&self.count) {
            return Err(Error::invalid("count", format!("1 to {MOST}")));
        }
        if self.names.len() > self.count as usize {
            return Err(Error::invalid("names", "there are more names than copies"));
        }
        for name in &self.names {
            check_name(name)?;
        }
        if let Some(labels) = &self.labels {
            check_labels(labels)?;
        }
        self.timers.check()
    }
}

/// A copy that has its place and its room.
struct Admitted<'a> {
    copy: Sandbox,
    place: Claim<'a>,
    lock: OwnedMutexGuard<()>,
}

/// What became of copies that come no further.
type Outcomes = HashMap<SandboxId, Result<Sandbox, Error>>;

impl App {
    /// Copies of a sandbox, all of one instant, each with its own outcome.
    pub async fn fork_sandbox(
        &self,
        caller: &Caller,
        id_or_name: &str,
        new: NewFork,
    ) -> Result<Vec<Result<Sandbox, Error>>, Error> {
        caller.require(Scope::Write)?;
        new.check()?;
        for name in &new.names {
            self.check_is_no_id(caller, name).await?;
        }
        let source = self.sandbox(caller, id_or_name).await?;
        self.require(&source.provider, Ability::Fork)?;
        let (app, caller) = (self.clone(), caller.clone());
        self.detached(async move {
            // The source stays what it is until all are made.
            let _lock = app.locks().lock(&source.id).await;
            let source = app.to_be_forked(&source).await?;
            app.check_disk(&source.provider)?;
            let quota = app.quota(&source.organisation).await?;
            let copies = (0..new.count as usize).map(|number| app.copy_of(&source, &new, number)).collect();
            Ok(app.make_copies(&caller, &source, copies, &quota).await)
        })
        .await
    }

    async fn to_be_forked(&self, source: &Sandbox) -> Result<Sandbox, Error> {
        let found = self.store().sandbox_by_id(&source.id).await?;
        let mut source = found.ok_or_else(|| Error::not_found("sandbox", source.id.to_string()))?;
        self.check_here(&source).await?;
        if source.state.is_in_transition() {
            source = self.finish_locked(&source.id).await?;
        }
        match source.state {
            State::Running | State::Paused | State::Stopped => Ok(source),
            State::Archived => Err(Error::Conflict("the sandbox's files are in the archive; start it first".into())),
            State::Destroyed | State::Destroying => Err(Error::not_found("sandbox", source.id.to_string())),
            state => Err(Error::Conflict(format!("the sandbox is {state} and cannot be copied"))),
        }
    }

    /// Each step for all copies at once. Returns what became of each, in their order.
    async fn make_copies(
        &self,
        caller: &Caller,
        source: &Sandbox,
        copies: Vec<Sandbox>,
        quota: &Quota,
    ) -> Vec<Result<Sandbox, Error>> {
        let ids: Vec<SandboxId> = copies.iter().map(|copy| copy.id.clone()).collect();
        let mut outcomes = Outcomes::new();
        let admitted = self.admit_copies(copies, quota, &mut outcomes).await;
        if !admitted.is_empty() {
            match self.turns_for(admitted.len()).await {
                Ok(_turns) => {
                    let written = self.write_copies(caller, admitted, quota, &mut outcomes).await;
                    self.launch_written(source, written, &mut outcomes).await;
                }
                Err(error) => refuse(&admitted, &error, &mut outcomes),
            }
        }
        let outcome = |id: &SandboxId| {
            let made = outcomes.remove(id).unwrap_or_else(|| Err(Error::internal("a copy that came to nothing")));
            if made.is_err() {
                self.capacity().release(id);
            }
            made
        };
        ids.iter().map(outcome).collect()
    }

    /// Those for which the organisation has places and this server has room.
    async fn admit_copies(&self, copies: Vec<Sandbox>, quota: &Quota, outcomes: &mut Outcomes) -> Vec<Admitted<'_>> {
        let first = copies.first().map(|copy| (copy.organisation.clone(), disk_of(copy)));
        let Some((organisation, disk)) = first else { return Vec::new() };
        let (places, full) = self.ledger().reserve_many(&organisation, quota, disk, copies.len());
        let (mut places, mut admitted) = (places.into_iter(), Vec::new());
        for copy in copies {
            let Some(place) = places.next() else {
                let full = full.as_ref().map_or_else(|| Error::internal("no place for a copy"), again);
                outcomes.insert(copy.id, Err(full));
                continue;
            };
            match self.admit_resized(&copy, copy.limits.memory) {
                Ok(()) => {
                    let lock = self.locks().lock(&copy.id).await;
                    admitted.push(Admitted { copy, place, lock });
                }
                Err(error) => {
                    outcomes.insert(copy.id, Err(error));
                }
            }
        }
        admitted
    }

    /// Writes the rows: all in one write, or, where one of them cannot be, each by itself.
    async fn write_copies<'a>(
        &self,
        caller: &Caller,
        mut admitted: Vec<Admitted<'a>>,
        quota: &Quota,
        outcomes: &mut Outcomes,
    ) -> Vec<Admitted<'a>> {
        let rows: Vec<Sandbox> = admitted.iter().map(|one| one.copy.clone()).collect();
        let asked: Vec<Entry> =
            rows.iter().map(|row| self.audit_entry(caller, "sandbox.fork", row.id.as_str())).collect();
        match self.store().insert_sandboxes(&rows, &asked, quota).await {
            Ok(Inserted::New) => {
                admitted.iter_mut().for_each(|one| one.place.is_written());
                return admitted;
            }
            // A name is taken, or another server has given away some of the places.
            Ok(_) | Err(Error::Quota { .. }) => {}
            Err(error) => {
                refuse(&admitted, &error, outcomes);
                return Vec::new();
            }
        }
        let mut written = Vec::new();
        for (mut one, asked) in admitted.into_iter().zip(&asked) {
            let refused = match self.store().insert_sandbox_asked(&one.copy, None, Some(asked), Some(quota)).await {
                Ok(Inserted::New) => {
                    one.place.is_written();
                    written.push(one);
                    continue;
                }
                Ok(Inserted::NameTaken) => {
                    let name = one.copy.name.as_deref().unwrap_or_default();
                    Error::Conflict(format!("a sandbox named {name:?} is there already"))
                }
                Ok(other) => Error::internal(format!("store: a fork came to {other:?}")),
                Err(error) => error,
            };
            outcomes.insert(one.copy.id, Err(refused));
        }
        written
    }

    async fn launch_written(&self, source: &Sandbox, written: Vec<Admitted<'_>>, outcomes: &mut Outcomes) {
        if written.is_empty() {
            return;
        }
        // The locks are held until each has its next state.
        let (copies, _locks): (Vec<Sandbox>, Vec<_>) = written.into_iter().map(|one| (one.copy, one.lock)).unzip();
        let ids: Vec<SandboxId> = copies.iter().map(|copy| copy.id.clone()).collect();
        let made = self.launch_copies(&source.provider, &source.handle(), copies).await;
        let told = self.tell_of_copies(source, &made).await;
        for (id, made) in ids.into_iter().zip(made) {
            let made = match (made, &told) {
                (Ok(_), Err(untold)) => Err(again(untold)),
                (made, _) => made,
            };
            if made.as_ref().is_err_and(Error::is_of_the_database) {
                self.nobody_was_told(&id, &source.provider).await;
            }
            outcomes.insert(id, made);
        }
    }

    async fn tell_of_copies(&self, source: &Sandbox, made: &[Result<Sandbox, Error>]) -> Result<(), Error> {
        let event = |copy: &Sandbox| {
            let mut event = self.sandbox_event(copy, EventKind::Forked);
            event.data["parent"] = serde_json::json!(source.id);
            event
        };
        let events: Vec<NewEvent> = made.iter().flatten().map(event).collect();
        self.store().add_events(&events).await
    }

    /// A copy whose maker gets an error. It ends when the database answers again; until then it does not run.
    async fn nobody_was_told(&self, id: &SandboxId, provider: &str) {
        self.nobody_knows(id);
        if let Ok(provider) = self.provider(provider)
            && let Err(error) = provider.destroy(&Handle::from(id)).await
        {
            tracing::warn!(sandbox = %id, %error, "remove what nobody was told of, will be tried again");
        }
    }

    fn copy_of(&self, source: &Sandbox, new: &NewFork, number: usize) -> Sandbox {
        let now = self.now();
        let id = random::sandbox_id();
        let mut timers = source.timers.clone();
        // A lifetime is counted from the copy's own beginning.
        timers.deadline = timers.lifetime_seconds.map(|seconds| crate::clock::after(now, seconds));
        new.timers.apply(&mut timers, now);
        let rename = |value: &String| if value == source.id.as_str() { id.to_string() } else { value.clone() };
        Sandbox {
            name: new.names.get(number).cloned(),
            handle: None,
            server: self.server().to_owned(),
            labels: new.labels.clone().unwrap_or_else(|| source.labels.clone()),
            env: source.env.iter().map(|(name, value)| (name.clone(), rename(value))).collect(),
            timers,
            parent: Some(source.id.clone()),
            clone_of: Some(source.handle()),
            state: State::Creating,
            cause: Cause::requested("a fork", now),
            state_since: now,
            created_at: now,
            started_at: None,
            last_activity_at: now,
            updated_at: None,
            metered_from: now,
            access_token: random::token(),
            traffic_token: random::token(),
            door: new.door.clone(),
            pool: None,
            has_archive: false,
            generation: 0,
            id,
            ..source.clone()
        }
    }
}

/// The same for all of them.
fn refuse(admitted: &[Admitted<'_>], error: &Error, outcomes: &mut Outcomes) {
    outcomes.extend(admitted.iter().map(|one| (one.copy.id.clone(), Err(again(error)))));
}

/// The same for another copy that it happened to as well.
fn again(error: &Error) -> Error {
    match error {
        Error::Quota { message } => Error::Quota { message: message.clone() },
        Error::Exhausted { message, retry_after } => {
            Error::Exhausted { message: message.clone(), retry_after: *retry_after }
        }
        Error::Conflict(message) => Error::Conflict(message.clone()),
        Error::Full(message) => Error::Full(message.clone()),
        Error::Unavailable { detail } => Error::Unavailable { detail: detail.clone() },
        error => Error::internal(error.detail().map_or_else(|| error.to_string(), ToOwned::to_owned)),
    }
}
