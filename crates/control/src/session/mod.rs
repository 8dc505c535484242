//! An agent's durable handle on a sandbox: an id that any process can use later.
//!
//! A session owns its journal (all output of executions, numbered, readable from any number on) and its artifacts
//! (files that outlive the sandbox). Executions run to their end whether or not anybody listens, unless they are interrupted.
//!
//! * [`execute`]: code in the session's interpreter; [`artifact`]: what is kept of it
//! * [`journal`]: its output, live and again; [`agent`]: one shot without a session
//! * [`running`]: which cells run, for those who interrupt them
//! * [`end`]: removes old sessions; [`room`]: nor without a maximum

pub mod agent;
pub mod artifact;
pub mod end;
pub mod execute;
pub mod journal;
mod room;
mod running;

pub use artifact::Artifact;
pub use execute::{Executed, Execution};
pub use journal::{JournalEntry, Live, Message, Stream};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::sandbox::{Listed, NewSandbox, State};
use crate::{App, Caller, Error, Scope, random};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub id: String,
    pub organisation: String,
    pub sandbox: String,
    pub provider: String,
    pub template: String,
    pub created_at: Timestamp,
    #[serde(default)]
    pub closed_at: Option<Timestamp>,
    /// Whether the sandbox was made for the session and is removed with it.
    pub owns_sandbox: bool,
}

#[derive(Debug, Clone, Default)]
pub struct NewSession {
    pub sandbox: NewSandbox,
    /// A sandbox that already exists.
    pub existing: Option<String>,
}

impl App {
    pub async fn create_session(&self, caller: &Caller, mut new: NewSession) -> Result<Session, Error> {
        caller.require(Scope::Write)?;
        // A sleeping sandbox wakes for its session.
        new.sandbox.timers.auto_resume.get_or_insert(true);
        let owns_sandbox = new.existing.is_none();
        let sandbox = match &new.existing {
            Some(existing) => self.sandbox(caller, existing).await?,
            None => self.create_sandbox(caller, new.sandbox).await?,
        };
        self.make_room_for_session(sandbox.id.as_str()).await?;
        let session = Session {
            id: random::id("session"),
            organisation: caller.organisation.clone(),
            sandbox: sandbox.id.to_string(),
            provider: sandbox.provider,
            template: sandbox.template,
            created_at: self.now(),
            closed_at: None,
            owns_sandbox,
        };
        self.store().insert_session(&session).await?;
        self.audit(caller, "session.create", &session.id).await?;
        Ok(session)
    }

    pub async fn session(&self, caller: &Caller, id: &str) -> Result<Session, Error> {
        let found = self.store().session(&caller.organisation, id).await?;
        found.ok_or_else(|| Error::not_found("session", id))
    }

    pub async fn list_sessions(
        &self,
        caller: &Caller,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Session>, Error> {
        self.store().sessions(&caller.organisation, cursor, limit).await
    }

    /// The state of the session's sandbox; `Destroyed` where it is gone.
    pub async fn session_state(&self, session: &Session) -> Result<State, Error> {
        let id = session.sandbox.parse().map_err(|_| Error::internal("session with a broken sandbox id"))?;
        let sandbox = self.store().sandbox_by_id(&id).await?;
        Ok(sandbox.map_or(State::Destroyed, |sandbox| sandbox.state))
    }

    /// Ends the session, and its sandbox if that was made for it. Journal and artifacts stay for [`end::KEPT_DAYS`].
    pub async fn delete_session(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        let session = self.session(caller, id).await?;
        caller.require(Scope::Write)?;
        if session.owns_sandbox {
            match self.destroy(caller, &session.sandbox).await {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.store().close_session(&session.id, self.now().as_millisecond()).await?;
        self.audit(caller, "session.delete", id).await?;
        Ok(())
    }

    pub(crate) async fn open_session(&self, caller: &Caller, id: &str) -> Result<Session, Error> {
        let session = self.session(caller, id).await?;
        if session.closed_at.is_some() {
            return Err(Error::Conflict(format!(
                "session {id} is closed; its journal and artifacts can still be read"
            )));
        }
        Ok(session)
    }
}
