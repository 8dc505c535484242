//! Start, stop, pause, resume, archive, recover, destroy, and the first launch: one path for all.
//!
//! A change takes the sandbox's lock (so a stop that comes during a start waits for it), asks the pure machine, writes
//! the state in transition, carries out the effect, writes the outcome. Work is detached from the caller: one that
//! hangs up half-way leaves nothing half done.

use std::time::Duration;

use cove_protocol::SandboxId;

use super::attempts::Attempts;
use super::cause::{Cause, Code};
use super::seal::{self, Durable, Manifest};
use super::state::{self, Denied, Effect, Event};
use super::{Sandbox, State};
use crate::audit::Entry;
use crate::event::Kind;
use crate::key::Quota;
use crate::ledger::disk_of;
use crate::provider::Handle;
use crate::provider::health::Act;
use crate::store::sandboxes::Along;
use crate::store::{Lasting, Written};
use crate::{App, Caller, Error, Scope};

/// What processes get between SIGTERM and SIGKILL when their sandbox is stopped.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// How long a change that another server is at is waited for, and how often it is looked at.
const ELSEWHERE: Duration = Duration::from_secs(10);
const LOOK_ELSEWHERE: Duration = Duration::from_millis(50);

impl App {
    pub async fn start(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Start, "a start").await
    }

    pub async fn stop(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Stop, "a stop").await
    }

    /// A stop that ends with a manifest of the files, or does not.
    pub async fn stop_durably(&self, caller: &Caller, id_or_name: &str, durable: Durable) -> Result<Sandbox, Error> {
        self.ask_durably(caller, id_or_name, Event::Stop, "a stop", durable).await
    }

    /// A stop that gives processes no time to end by themselves.
    pub async fn kill(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Kill, "a forced stop").await
    }

    pub async fn pause(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Pause, "a pause").await
    }

    /// A pause that ends with a manifest of the files, or does not.
    pub async fn pause_durably(&self, caller: &Caller, id_or_name: &str, durable: Durable) -> Result<Sandbox, Error> {
        self.ask_durably(caller, id_or_name, Event::Pause, "a pause", durable).await
    }

    pub async fn resume(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Resume, "a resume").await
    }

    pub async fn archive(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Archive, "an archive").await
    }

    pub async fn recover(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Recover, "a recovery").await
    }

    pub async fn destroy(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Destroy, "a destroy").await
    }

    async fn ask(&self, caller: &Caller, id_or_name: &str, event: Event, what: &str) -> Result<Sandbox, Error> {
        self.ask_durably(caller, id_or_name, event, what, Durable::AsConfigured).await
    }

    async fn ask_durably(
        &self,
        caller: &Caller,
        id_or_name: &str,
        event: Event,
        what: &str,
        durable: Durable,
    ) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        let sandbox = self.sandbox(caller, id_or_name).await?;
        let asked = self.audit_entry(caller, action(event), sandbox.id.as_str());
        self.change_state_asked(&sandbox.id, event, Cause::requested(what, self.now()), Some(asked), durable).await
    }

    /// The sandbox once nobody is at work on it. What another server is at is waited for too, but not for long.
    pub(crate) async fn settled(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        let begun = tokio::time::Instant::now();
        loop {
            let lock = self.locks().lock(id).await;
            let found = self.store().sandbox_by_id(id).await?;
            let sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
            if sandbox.state.is_in_transition() && sandbox.server == self.server() {
                // Its lock was free: nobody is at it any more.
                return self.finish_locked(id).await;
            }
            let settled = self.is_here(&sandbox) || !sandbox.state.is_in_transition();
            if settled || begun.elapsed() >= ELSEWHERE {
                return Ok(sandbox);
            }
            drop(lock);
            tokio::time::sleep(LOOK_ELSEWHERE).await;
        }
    }

    /// Brings an event to a sandbox and sees it through.
    pub(crate) async fn change_state(&self, id: &SandboxId, event: Event, cause: Cause) -> Result<Sandbox, Error> {
        self.change_state_asked(id, event, cause, None, Durable::AsConfigured).await
    }

    /// As [`App::change_state`]; the first write says who asked.
    async fn change_state_asked(
        &self,
        id: &SandboxId,
        event: Event,
        cause: Cause,
        asked: Option<Entry>,
        durable: Durable,
    ) -> Result<Sandbox, Error> {
        let app = self.clone();
        let id = id.clone();
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            app.change_durably(&id, event, cause, asked.as_ref(), durable).await
        })
        .await
    }

    /// As [`App::change_state`], for those who hold the lock. A change that was left in the middle is finished first, and an
    /// end that waits to be noted is noted.
    pub(crate) async fn change_locked(
        &self,
        id: &SandboxId,
        event: Event,
        cause: Cause,
        asked: Option<&Entry>,
    ) -> Result<Sandbox, Error> {
        self.change_durably(id, event, cause, asked, Durable::AsConfigured).await
    }

    async fn change_durably(
        &self,
        id: &SandboxId,
        event: Event,
        cause: Cause,
        asked: Option<&Entry>,
        durable: Durable,
    ) -> Result<Sandbox, Error> {
        // A destroy is never refused, and takes the place of every other end.
        if event != Event::Destroy {
            self.note_departure(id).await?;
        }
        match self.see_through(id, event, cause.clone(), asked, durable).await {
            Err(Error::Denied(denied)) if denied.state.is_in_transition() => {
                self.finish_locked(id).await?;
                self.see_through(id, event, cause, asked, durable).await
            }
            done => done,
        }
    }

    /// From the first write to the last.
    pub(super) async fn see_through(
        &self,
        id: &SandboxId,
        event: Event,
        cause: Cause,
        asked: Option<&Entry>,
        durable: Durable,
    ) -> Result<Sandbox, Error> {
        let turn = self.room_to_start(id, event).await?;
        let set_out = self.set_out(id, event, &cause, asked, durable).await;
        if set_out.is_err() && turn.is_some() {
            self.capacity().release(id);
        }
        match set_out? {
            (sandbox, Some(effect)) => self.pursue(sandbox, effect).await,
            (sandbox, None) if self.lacks_manifest(&sandbox, event, durable)? => self.seal_at_rest(sandbox).await,
            (sandbox, None) => Ok(sandbox),
        }
    }

    /// Whether a sandbox that is where it shall be already is to get a manifest that it has not.
    fn lacks_manifest(&self, sandbox: &Sandbox, event: Event, durable: Durable) -> Result<bool, Error> {
        let at_rest = matches!(sandbox.state, State::Paused | State::Stopped) && sandbox.manifest.is_none();
        Ok(at_rest && self.wants_manifest(sandbox, event, durable)?)
    }

    /// Carries out an effect whose state is written, and every effect that follows from it. The first failure is the
    /// answer; what it leads to is carried out all the same.
    pub(super) async fn pursue(&self, sandbox: Sandbox, effect: Effect) -> Result<Sandbox, Error> {
        let outcome = self.carry_out(&sandbox, effect).await;
        self.pursue_from(sandbox, effect, outcome).await
    }

    /// As [`App::pursue`], of an effect that was carried out.
    pub(super) async fn pursue_from(
        &self,
        mut sandbox: Sandbox,
        mut effect: Effect,
        mut outcome: Result<Known, Error>,
    ) -> Result<Sandbox, Error> {
        let mut failure = None;
        loop {
            let concluded = match self.conclude(sandbox, effect, outcome).await {
                Ok(concluded) => concluded,
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            sandbox = concluded.sandbox;
            failure = failure.or(concluded.failure);
            let Some(next) = concluded.next else { return failure.map_or(Ok(sandbox), Err) };
            effect = next;
            outcome = self.carry_out(&sandbox, effect).await;
        }
    }

    /// Writes the first new state. Returns the effect that must follow.
    async fn set_out(
        &self,
        id: &SandboxId,
        event: Event,
        cause: &Cause,
        asked: Option<&Entry>,
        durable: Durable,
    ) -> Result<(Sandbox, Option<Effect>), Error> {
        let mut attempts = Attempts::on(id);
        loop {
            attempts.again()?;
            let found = self.store().sandbox_by_id(id).await?;
            let mut sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
            self.check_here(&sandbox).await?;
            // For the ephemeral a stop, asked or not, is the end.
            let event = match event {
                Event::Stop | Event::Kill | Event::Departed if sandbox.timers.ephemeral || sandbox.pool.is_some() => {
                    Event::Destroy
                }
                event => event,
            };
            self.check_capable(&sandbox, event)?;
            let step = state::apply(sandbox.state, event)?;
            let step = self.with_manifest(&mut sandbox, event, durable, step)?;
            if step.state == sandbox.state && step.effect.is_none() {
                if let Some(entry) = asked {
                    self.store().add_audit(entry).await?;
                }
                return Ok((sandbox, None));
            }
            // Whoever starts it, by name or by waking it.
            let starts = matches!(event, Event::Start | Event::Recover) && !sandbox.state.has_processes();
            let quota = if starts { Some(self.quota(&sandbox.organisation).await?) } else { None };
            // One that comes out of the archive needs a disk again.
            let disk = if sandbox.state == State::Archived { disk_of(&sandbox) } else { 0 };
            let _place = match &quota {
                Some(quota) => Some(self.ledger().claim_start(&sandbox.organisation, quota, disk)?),
                None => None,
            };
            match self.write_state_within(&mut sandbox, step.state, cause.clone(), asked, quota.as_ref()).await? {
                Written::Done => return Ok((sandbox, step.effect)),
                Written::Overtaken => continue,
            }
        }
    }

    /// Asks the provider. Every effect is idempotent. Every launch there is begins here.
    async fn carry_out(&self, sandbox: &Sandbox, effect: Effect) -> Result<Known, Error> {
        let provider = self.provider(&sandbox.provider)?;
        let handle = sandbox.handle();
        match effect {
            Effect::Launch => {
                let order = sandbox.order()?;
                let launched = match &sandbox.clone_of {
                    // The first launch of a copy; what it has from then on is its own.
                    Some(source) if sandbox.handle.is_none() => provider.layers().fork(source, &order).await?,
                    _ => self.measured(provider.name(), Act::Create, provider.launch(&order)).await?,
                };
                if sandbox.state == State::Starting {
                    self.boot_again(sandbox, &launched);
                }
                return Ok(Known::As(launched));
            }
            Effect::Stop => {
                // The processes' own time to end is none of the provider's.
                provider.stop(&handle, STOP_GRACE).await?;
                return Ok(self.sealed(sandbox).await);
            }
            Effect::Kill => {
                self.measured(provider.name(), Act::Change, provider.stop(&handle, Duration::ZERO)).await?;
                return Ok(self.sealed(sandbox).await);
            }
            Effect::Pause => {
                self.measured(provider.name(), Act::Change, provider.pause(&handle)).await?;
                return Ok(self.sealed(sandbox).await);
            }
            Effect::Resume => {
                self.measured(provider.name(), Act::Change, provider.resume(&handle)).await?;
            }
            Effect::Export => {
                self.export(sandbox).await?;
                return Ok(Known::NoMore);
            }
            Effect::Import => return Ok(Known::As(self.import(sandbox).await?)),
            Effect::Destroy => {
                let (synced, ended) = tokio::join!(self.store().sync(), provider.end(&handle));
                synced.map_err(Error::from)?;
                ended?;
                let forget_archive =
                    async { if sandbox.has_archive { self.forget_archive(sandbox).await } else { Ok(()) } };
                // Neither waits for the other: the archive may be at the far end of a network.
                let destroy = self.measured(provider.name(), Act::Change, provider.destroy(&handle));
                let (destroyed, forgotten) = tokio::join!(destroy, forget_archive);
                destroyed?;
                forgotten?;
            }
        }
        Ok(Known::AsBefore)
    }

    /// The manifest that a pause or a stop ends with, where it was asked for.
    async fn sealed(&self, sandbox: &Sandbox) -> Known {
        if !sandbox.sealing {
            return Known::AsBefore;
        }
        self.seal(sandbox).await.map_or_else(Known::Unsealed, Known::Sealed)
    }

    /// Writes what became of an effect, with the next effect, where one follows from another.
    async fn conclude(
        &self,
        mut sandbox: Sandbox,
        effect: Effect,
        outcome: Result<Known, Error>,
    ) -> Result<Concluded, Error> {
        let now = self.now();
        let (event, cause, known, failure) = match outcome {
            // Processes do not come back for want of a manifest: the change stands, and its caller is told.
            Ok(Known::Unsealed(error)) => {
                tracing::warn!(sandbox = %sandbox.id, %error, detail = error.detail(), "write the manifest of its files");
                (success(effect), sandbox.cause.clone(), Known::AsBefore, Some(seal::unsealed(effect, error)))
            }
            Ok(known) => (success(effect), sandbox.cause.clone(), known, None),
            // Destroying stays so: the background tries again until nothing remains.
            Err(error) if effect == Effect::Destroy => {
                self.retry_destroy(&sandbox.id).await?;
                tracing::warn!(sandbox = %sandbox.id, error = %error, detail = error.detail(), "destroy failed, will be tried again");
                return Ok(Concluded { sandbox, next: None, failure: None });
            }
            Err(error) => {
                let detail = error.detail().map(ToOwned::to_owned).unwrap_or_else(|| error.to_string());
                let (event, code) = match effect {
                    Effect::Launch => (Event::LaunchFailed, Code::StartFailed),
                    _ => (Event::Undone, Code::ChangeFailed),
                };
                let cause = Cause::new(code, format!("{} failed: {detail}", noun(effect)), now);
                (event, cause, Known::AsBefore, Some(error))
            }
        };
        let id = sandbox.id.clone();
        let mut attempts = Attempts::on(&id);
        loop {
            attempts.again()?;
            let step = match state::apply(sandbox.state, event) {
                Ok(step) => step,
                // Overtaken by another server's change: its word stands.
                Err(Denied { .. }) => return Ok(Concluded { sandbox, next: None, failure: None }),
            };
            known.note(&mut sandbox);
            match self.write_state(&mut sandbox, step.state, cause.clone(), None).await? {
                Written::Done => return Ok(Concluded { sandbox, next: step.effect, failure }),
                Written::Overtaken => {
                    let found = self.store().sandbox_by_id(&sandbox.id).await?;
                    sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
                }
            }
        }
    }

    /// Writes another state of a sandbox that is there, as [`App::write_state_within`] does.
    pub(crate) async fn write_state(
        &self,
        sandbox: &mut Sandbox,
        to: State,
        cause: Cause,
        asked: Option<&Entry>,
    ) -> Result<Written, Error> {
        self.write_state_within(sandbox, to, cause, asked, None).await
    }

    /// Writes a state with all that goes with it: times, account, event; where it starts a sandbox, only if the organisation's
    /// maxima leave room for one more. Two states are written elsewhere, with the row itself: the first (`create`) and that
    /// of a pool's member which is handed out (`pool`).
    async fn write_state_within(
        &self,
        sandbox: &mut Sandbox,
        to: State,
        cause: Cause,
        asked: Option<&Entry>,
        starts_within: Option<&Quota>,
    ) -> Result<Written, Error> {
        let now = self.now();
        let from = sandbox.state;
        let metered = self.meter(sandbox, to, now);
        let mut next = sandbox.clone();
        next.state = to;
        next.cause = cause;
        next.state_since = now;
        next.has_archive |= matches!(to, State::Archiving | State::Archived);
        next.sealing &= to.is_in_transition();
        // On the disk before a process moves: after a power cut nobody takes it for proof of files that have changed.
        let ends_manifest = next.manifest.is_some() && !seal::holds_in(to);
        if ends_manifest {
            next.manifest = None;
        }
        if to == State::Archived {
            // The provider has nothing of it any more.
            next.handle = None;
        }
        if to == State::Running && from != State::Running {
            next.started_at = Some(now);
            next.last_activity_at = now;
            if next.cause.code == Code::Woken {
                next.timers.deadline = next.timers.lifetime_seconds.map(|s| crate::clock::after(now, s));
            }
        }
        next.metered_from = metered.metered_from;
        let event = kind_of(from, to).map(|kind| self.sandbox_event(&next, kind));
        let along = Along {
            event: event.as_ref(),
            span: metered.span.as_ref(),
            audit: asked,
            lasting: if ends_manifest { Lasting::Synced } else { lasting(to) },
            starts_within,
        };
        let written = self.store().update_sandbox_along(&mut next, along).await?;
        if written == Written::Done {
            *sandbox = next;
            self.ledger().moved(sandbox, from, to);
            self.note_room(&sandbox.id, to);
            self.announce(from, sandbox);
        }
        Ok(written)
    }
}

/// What became of an effect.
struct Concluded {
    sandbox: Sandbox,
    /// What must be done next.
    next: Option<Effect>,
    failure: Option<Error>,
}

/// How the provider knows the sandbox after an effect.
pub(super) enum Known {
    AsBefore,
    As(Handle),
    /// It has nothing of it any more.
    NoMore,
    /// As before, and its files are proven by a manifest.
    Sealed(Manifest),
    /// As before, and the manifest that was asked for is not written.
    Unsealed(Error),
}

impl Known {
    fn note(&self, sandbox: &mut Sandbox) {
        match self {
            Known::AsBefore | Known::Unsealed(_) => {}
            Known::Sealed(manifest) => sandbox.manifest = Some(manifest.clone()),
            Known::As(handle) => sandbox.handle = Some(handle.clone()),
            Known::NoMore => sandbox.handle = None,
        }
    }
}

/// Processes do not outlive a power cut: a state on the way to or from having them is found out again. What changes files
/// is on the disk before they are touched, and what a caller is told of before the answer.
fn lasting(to: State) -> Lasting {
    match to {
        State::Creating | State::Starting | State::Pausing | State::Resuming | State::Stopping => Lasting::Soon,
        // `carry_out` syncs it while the processes end, before it lets files be touched.
        State::Destroying => Lasting::Soon,
        // It was `destroying` on the disk before, or nobody was told of it: either way the next start ends it.
        State::Destroyed => Lasting::Behind,
        State::Running
        | State::Paused
        | State::Stopped
        | State::Archiving
        | State::Archived
        | State::Restoring
        | State::Failed => Lasting::Synced,
    }
}

/// What the audit log calls it.
fn action(event: Event) -> &'static str {
    match event {
        Event::Start => "sandbox.start",
        Event::Stop => "sandbox.stop",
        Event::Kill => "sandbox.kill",
        Event::Halt => "sandbox.rollback",
        Event::Pause => "sandbox.pause",
        Event::Resume => "sandbox.resume",
        Event::Archive => "sandbox.archive",
        Event::Recover => "sandbox.recover",
        Event::Destroy => "sandbox.destroy",
        _ => "sandbox.change",
    }
}

fn success(effect: Effect) -> Event {
    match effect {
        Effect::Launch => Event::Launched,
        Effect::Stop | Effect::Kill => Event::Stopped,
        Effect::Pause => Event::Paused,
        Effect::Resume => Event::Resumed,
        Effect::Export => Event::Exported,
        Effect::Import => Event::Imported,
        Effect::Destroy => Event::Destroyed,
    }
}

fn noun(effect: Effect) -> &'static str {
    match effect {
        Effect::Launch => "the start",
        Effect::Stop | Effect::Kill => "the stop",
        Effect::Pause => "the pause",
        Effect::Resume => "the resume",
        Effect::Export => "the archive",
        Effect::Import => "the restore",
        Effect::Destroy => "the destroy",
    }
}

/// The event that a change of state is told by; transitions are not told.
fn kind_of(from: State, to: State) -> Option<Kind> {
    if from == to {
        return None;
    }
    match to {
        State::Running if from == State::Creating => Some(Kind::Created),
        State::Running if matches!(from, State::Paused | State::Resuming) => Some(Kind::Resumed),
        State::Running => Some(Kind::Started),
        State::Paused => Some(Kind::Paused),
        State::Stopped => Some(Kind::Stopped),
        State::Archived => Some(Kind::Archived),
        State::Destroyed => Some(Kind::Destroyed),
        State::Failed => Some(Kind::Failed),
        State::Creating
        | State::Starting
        | State::Pausing
        | State::Resuming
        | State::Stopping
        | State::Archiving
        | State::Restoring
        | State::Destroying => None,
    }
}
