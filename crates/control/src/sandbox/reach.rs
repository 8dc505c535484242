//! Access to what runs inside.
//!
//! Every call that reaches into a sandbox is activity until it ends: it is noted in memory and written to the store by a
//! background loop, so that a busy sandbox costs no write per request.

use cove_engine::SandboxId;
use cove_protocol::Request;

use super::cause::{Cause, Code};
use super::state::{Denied, Event};
use super::{Sandbox, State};
use crate::guest::Guest;
use crate::{App, Caller, Error};

impl App {
    /// A running sandbox and its guest; wakes it if its policy says so. Counts as activity.
    pub async fn reach(&self, caller: &Caller, id_or_name: &str) -> Result<(Sandbox, Guest), Error> {
        let sandbox = self.sandbox(caller, id_or_name).await?;
        self.reach_into(sandbox).await
    }

    /// As [`App::reach`], for traffic that carries a token of its own: the caller must have checked it.
    pub async fn reach_any(&self, id: &str) -> Result<(Sandbox, Guest), Error> {
        let id: SandboxId = id.parse().map_err(|_| Error::not_found("sandbox", id))?;
        let sandbox = self.sandbox_of_anybody(&id).await?;
        self.reach_into(sandbox).await
    }

    /// A sandbox by id alone, for doors that check its tokens themselves before they reach.
    pub async fn sandbox_any(&self, id: &str) -> Result<Sandbox, Error> {
        let id: SandboxId = id.parse().map_err(|_| Error::not_found("sandbox", id))?;
        self.sandbox_of_anybody(&id).await
    }

    /// As [`App::reach_any`], of one that was just read.
    pub async fn reach_into(&self, sandbox: Sandbox) -> Result<(Sandbox, Guest), Error> {
        self.check_here(&sandbox).await?;
        let sandbox = match sandbox.state {
            State::Running => sandbox,
            _ if sandbox.state.is_in_transition() && sandbox.state != State::Destroying => {
                // Another change is under way: the lock is free when it is done.
                let settled = self.settled(&sandbox.id).await?;
                if settled.state == State::Running { settled } else { self.wake(settled).await? }
            }
            _ => self.wake(sandbox).await?,
        };
        self.touch(&sandbox.id);
        let provider = self.provider(&sandbox.provider)?;
        let guest = provider.guest(&sandbox.id).within(self.disk_check(provider));
        let guest = guest.attended(self.activity().attendance(&sandbox.id));
        Ok((sandbox, guest))
    }

    async fn wake(&self, sandbox: Sandbox) -> Result<Sandbox, Error> {
        let asleep = matches!(sandbox.state, State::Paused | State::Stopped | State::Archived);
        if !(asleep && sandbox.timers.auto_resume) {
            return Err(Denied { state: sandbox.state, event: Event::Seen(crate::provider::Seen::Running) }.into());
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
        match provider.guest(&sandbox.id).call(&Request::Processes).await {
            Ok(cove_protocol::Reply::Processes { processes }) => processes.iter().any(|process| process.exit.is_none()),
            _ => false,
        }
    }
}
