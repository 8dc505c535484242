//! Access to what runs inside.
//!
//! Every call that reaches into a sandbox is activity until it ends: it is noted in memory and written to the store by a
//! background loop, so that a busy sandbox costs no write per request.

use cove_protocol::Request;
use cove_protocol::SandboxId;

use super::cause::{Cause, Code};
use super::state::{Denied, Event};
use super::{Sandbox, State};
use crate::guest::Guest;
use crate::{App, Caller, Error, Scope};

/// Whether a request may wake a sandbox that sleeps and whose policy is to wake for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waking {
    Allowed,
    /// A key that may only read looks at what runs: to start something costs its owner money.
    Refused,
}

impl Waking {
    /// What the caller's key allows.
    pub fn of(caller: &Caller) -> Waking {
        if caller.may(Scope::Write) { Waking::Allowed } else { Waking::Refused }
    }
}

impl App {
    /// A running sandbox and its guest; wakes it if its policy says so and the caller may. Counts as activity.
    pub async fn reach(&self, caller: &Caller, id_or_name: &str) -> Result<(Sandbox, Guest), Error> {
        let sandbox = self.sandbox(caller, id_or_name).await?;
        self.reach_as(sandbox, Waking::of(caller)).await
    }

    /// A sandbox by id alone, for doors that check its tokens themselves before they reach.
    pub async fn sandbox_any(&self, id: &str) -> Result<Sandbox, Error> {
        let id: SandboxId = match id.parse() {
            Ok(id) => id,
            // One that it had elsewhere may look like anything.
            Err(_) => {
                let found = self.store().sandbox_by_alias(None, id).await?;
                found.ok_or_else(|| Error::not_found("sandbox", id))?.id
            }
        };
        self.sandbox_of_anybody(&id).await
    }

    /// As [`App::reach`], for traffic that carries a token of its own: the caller must have checked it against this very
    /// reading of the sandbox. Another reading might have other tokens.
    pub async fn reach_into(&self, sandbox: Sandbox) -> Result<(Sandbox, Guest), Error> {
        self.reach_as(sandbox, Waking::Allowed).await
    }

    /// As [`App::reach_into`]; wakes it only where that is allowed.
    pub async fn reach_as(&self, sandbox: Sandbox, waking: Waking) -> Result<(Sandbox, Guest), Error> {
        self.check_here(&sandbox).await?;
        let sandbox = match sandbox.state {
            State::Running => sandbox,
            _ if sandbox.state.is_in_transition() && sandbox.state != State::Destroying => {
                // Another change is under way: the lock is free when it is done.
                let settled = self.settled(&sandbox.id).await?;
                if settled.state == State::Running { settled } else { self.wake(settled, waking).await? }
            }
            _ => self.wake(sandbox, waking).await?,
        };
        self.touch(&sandbox.id);
        let provider = self.provider(&sandbox.provider)?;
        let guest = provider.guest(&sandbox.handle()).within(self.disk_check(provider));
        let guest = guest.attended(self.activity().attendance(&sandbox.id)).telling(self.starts_at(provider.name()));
        let guest = match sandbox.checkpoints {
            Some(rule) => guest.preceded(self.checkpoints_before(&sandbox.id, rule)),
            None => guest,
        };
        Ok((sandbox, guest))
    }

    async fn wake(&self, sandbox: Sandbox, waking: Waking) -> Result<Sandbox, Error> {
        let asleep = matches!(sandbox.state, State::Paused | State::Stopped | State::Archived);
        if !(asleep && sandbox.timers.auto_resume) {
            return Err(Denied { state: sandbox.state, event: Event::Seen(crate::provider::Seen::Running) }.into());
        }
        if waking == Waking::Refused {
            let Sandbox { id, state, .. } = &sandbox;
            let message =
                format!("sandbox {id} is {state}, and a key with scope read does not wake it; start it first");
            return Err(Error::Conflict(message));
        }
        let cause = Cause::new(Code::Woken, "a request woke it", self.now());
        self.change_state(&sandbox.id, Event::Start, cause).await
    }

    /// Notes that somebody uses the sandbox. Costs no write now.
    pub fn touch(&self, id: &SandboxId) {
        self.activity().note(id, self.now());
    }

    /// Whether something that was started through the API still runs inside.
    pub(crate) async fn has_running_processes(&self, sandbox: &Sandbox) -> bool {
        let Ok(provider) = self.provider(&sandbox.provider) else { return false };
        match provider.guest(&sandbox.handle()).call(&Request::Processes).await {
            Ok(cove_protocol::Reply::Processes { processes }) => processes.iter().any(|process| process.exit.is_none()),
            _ => false,
        }
    }
}
