//! Start, stop, pause, resume, archive, recover, destroy: one path for all.
//!
//! A change takes the sandbox's lock (so a stop that comes during a start waits for it), asks the pure machine, writes
//! the state in transition, carries out the effect, writes the outcome. Work is detached from the caller: one that
//! hangs up half-way leaves nothing half done.

use std::time::Duration;

use cove_engine::SandboxId;

use super::attempts::Attempts;
use super::cause::{Cause, Code};
use super::state::{self, Denied, Effect, Event};
use super::{Sandbox, State};
use crate::audit::Entry;
use crate::event::Kind;
use crate::key::Quota;
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

    /// A stop that gives processes no time to end by themselves.
    pub async fn kill(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Kill, "a forced stop").await
    }

    pub async fn pause(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        self.ask(caller, id_or_name, Event::Pause, "a pause").await
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
        caller.require(Scope::Write)?;
        let sandbox = self.sandbox(caller, id_or_name).await?;
        let asked = self.audit_entry(caller, action(event), sandbox.id.as_str());
        self.change_state_asked(&sandbox.id, event, Cause::requested(what, self.now()), Some(asked)).await
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
        self.change_state_asked(id, event, cause, None).await
    }

    /// As [`App::change_state`]; the first write says who asked.
    async fn change_state_asked(
        &self,
        id: &SandboxId,
        event: Event,
        cause: Cause,
        asked: Option<Entry>,
    ) -> Result<Sandbox, Error> {
        let app = self.clone();
        let id = id.clone();
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            app.change_locked(&id, event, cause, asked.as_ref()).await
        })
        .await
    }

    /// As [`App::change_state`], for those who hold the lock. A change that was left in the middle is finished first.
    pub(crate) async fn change_locked(
        &self,
        id: &SandboxId,
        event: Event,
        cause: Cause,
        asked: Option<&Entry>,
    ) -> Result<Sandbox, Error> {
        match self.see_through(id, event, cause.clone(), asked).await {
            Err(Error::Denied(denied)) if denied.state.is_in_transition() => {
                self.finish_locked(id).await?;
                self.see_through(id, event, cause, asked).await
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
    ) -> Result<Sandbox, Error> {
        let turn = self.room_to_start(id, event).await?;
        let set_out = self.set_out(id, event, &cause, asked).await;
        if set_out.is_err() && turn.is_some() {
            self.capacity().release(id);
        }
        let (mut sandbox, mut effect) = set_out?;
        while let Some(work) = effect {
            let outcome = self.carry_out(&sandbox, work).await;
            (sandbox, effect) = self.conclude(sandbox, work, outcome).await?;
        }
        Ok(sandbox)
    }

    /// Writes the first new state. Returns the effect that must follow.
    async fn set_out(
        &self,
        id: &SandboxId,
        event: Event,
        cause: &Cause,
        asked: Option<&Entry>,
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
            if step.state == sandbox.state && step.effect.is_none() {
                if let Some(entry) = asked {
                    self.store().add_audit(entry).await?;
                }
                return Ok((sandbox, None));
            }
            // Whoever starts it, by name or by waking it.
            let starts = matches!(event, Event::Start | Event::Recover) && !sandbox.state.has_processes();
            let quota = if starts { Some(self.quota(&sandbox.organisation).await?) } else { None };
            let _place = match &quota {
                Some(quota) => Some(self.ledger().claim_start(&sandbox.organisation, quota)?),
                None => None,
            };
            match self.write_state_within(&mut sandbox, step.state, cause.clone(), asked, quota.as_ref()).await? {
                Written::Done => return Ok((sandbox, step.effect)),
                Written::Overtaken => continue,
            }
        }
    }

    /// Asks the provider. Every effect is idempotent.
    async fn carry_out(&self, sandbox: &Sandbox, effect: Effect) -> Result<(), Error> {
        let provider = self.provider(&sandbox.provider)?;
        match effect {
            Effect::Launch => provider.launch(&sandbox.spec()?).await?,
            Effect::Stop => provider.stop(&sandbox.id, STOP_GRACE).await?,
            Effect::Kill => provider.stop(&sandbox.id, Duration::ZERO).await?,
            Effect::Pause => provider.pause(&sandbox.id).await?,
            Effect::Resume => provider.resume(&sandbox.id).await?,
            Effect::Export => self.export(sandbox).await?,
            Effect::Import => self.import(sandbox).await?,
            Effect::Destroy => {
                let (synced, ended) = tokio::join!(self.store().sync(), provider.end(&sandbox.id));
                synced.map_err(Error::from)?;
                ended?;
                let forget_archive =
                    async { if sandbox.has_archive { self.forget_archive(sandbox).await } else { Ok(()) } };
                // Neither waits for the other: the archive may be at the far end of a network.
                let (destroyed, forgotten) = tokio::join!(provider.destroy(&sandbox.id), forget_archive);
                destroyed?;
                forgotten?;
            }
        }
        Ok(())
    }

    /// Writes what became of an effect; the next effect, where one follows from another.
    async fn conclude(
        &self,
        sandbox: Sandbox,
        effect: Effect,
        outcome: Result<(), Error>,
    ) -> Result<(Sandbox, Option<Effect>), Error> {
        let now = self.now();
        let (event, cause, failure) = match outcome {
            Ok(()) => (success(effect), sandbox.cause.clone(), None),
            // Destroying stays so: the background tries again until nothing remains.
            Err(error) if effect == Effect::Destroy => {
                self.retry_destroy(&sandbox.id).await?;
                tracing::warn!(sandbox = %sandbox.id, error = %error, detail = error.detail(), "destroy failed, will be tried again");
                return Ok((sandbox, None));
            }
            Err(error) => {
                let detail = error.detail().map(ToOwned::to_owned).unwrap_or_else(|| error.to_string());
                let (event, code) = match effect {
                    Effect::Launch => (Event::LaunchFailed, Code::StartFailed),
                    _ => (Event::Undone, Code::ChangeFailed),
                };
                let cause = Cause::new(code, format!("{} failed: {detail}", noun(effect)), now);
                (event, cause, Some(error))
            }
        };
        let mut sandbox = sandbox;
        let id = sandbox.id.clone();
        let mut attempts = Attempts::on(&id);
        loop {
            attempts.again()?;
            let step = match state::apply(sandbox.state, event) {
                Ok(step) => step,
                // Overtaken by another server's change: its word stands.
                Err(Denied { .. }) => return Ok((sandbox, None)),
            };
            match self.write_state(&mut sandbox, step.state, cause.clone(), None).await? {
                Written::Done => {
                    return match failure {
                        Some(error) => Err(error),
                        None => Ok((sandbox, step.effect)),
                    };
                }
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
        next.has_archive |= to == State::Archiving;
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
            lasting: lasting(to),
            starts_within,
        };
        let written = self.store().update_sandbox_along(&mut next, along).await?;
        if written == Written::Done {
            *sandbox = next;
            self.ledger().moved(&sandbox.organisation, from, to);
            self.note_room(&sandbox.id, to);
            self.announce(from, sandbox);
        }
        Ok(written)
    }

    /// A sandbox that never lived: its row becomes a record, the provider keeps nothing.
    pub(crate) async fn abandon(&self, mut sandbox: Sandbox, cause: Cause) {
        let id = sandbox.id.clone();
        let cleaned = match self.provider(&sandbox.provider) {
            Ok(provider) => provider.destroy(&id).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        let to = if cleaned.is_ok() { State::Destroyed } else { State::Destroying };
        let noted = match self.write_state(&mut sandbox, to, cause, None).await {
            Ok(written) => written == Written::Done,
            Err(error) => {
                tracing::error!(sandbox = %id, %error, detail = error.detail(), "note of a failed creation");
                false
            }
        };
        if let Err(error) = &cleaned {
            tracing::warn!(sandbox = %id, %error, detail = error.detail(), "cleanup of a failed creation, will be tried again");
        }
        if !noted || cleaned.is_err() {
            // Where this cannot be written either, the next start of the server finds the row.
            let _ = self.retry_destroy(&id).await;
        }
    }

    fn check_capable(&self, sandbox: &Sandbox, event: Event) -> Result<(), Error> {
        let capabilities = self.provider(&sandbox.provider)?.capabilities();
        match event {
            Event::Pause if !capabilities.pause => Err(Error::Unsupported(format!(
                "provider {} cannot pause: without root a server needs a delegated control group (`cove doctor` tells how)",
                sandbox.provider
            ))),
            Event::Stop | Event::Kill | Event::Archive if !capabilities.persistent => {
                Err(Error::Unsupported(format!("provider {} keeps no files over a stop", sandbox.provider)))
            }
            Event::Archive if sandbox.timers.ephemeral => {
                Err(Error::invalid("archive", "an ephemeral sandbox cannot be archived"))
            }
            _ => Ok(()),
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
