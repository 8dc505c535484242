//! Code that keeps its variables between calls.
//!
//! A *context* is one process in the sandbox: a small driver of ours around the template's own Python, node or bash. It
//! gets cells as JSON lines and answers with events (`drivers/`). The guest starts it, keeps it and finds it again: a
//! context's identity is the tag of its process, so that contexts outlive the server and need no table.
//!
//! ```text
//!   execute ──▶ find or start the context's process ──▶ attach, send the cell ──▶ events … done
//!                     │ gone? (killed, crashed, out of memory)                      │
//!                     └──────────── start it anew, say so ◀─────────────────────────┘
//! ```
//!
//! One execution is one task: it owns the connection, watches the clock and the client, and interrupts the cell when
//! either gives up. What the driver says is the sandbox's word: lines are bounded, and a driver that breaks the
//! protocol costs its own context only.
//!
//! # Layout
//! * [`cell`]: what is run and what comes of it
//! * [`context`]: contexts as tagged processes
//! * [`driver`]: how each language's driver is started and spoken to
//! * [`execution`]: one cell from start to end
//! * [`bash`]: the driver for bash, which cannot speak JSON
//! * [`typescript`]: types taken off before node sees the code, in a process of its own

mod bash;
pub mod cell;
pub mod context;
pub mod driver;
mod events;
mod execution;
pub mod typescript;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cove_protocol::SandboxId;
use cove_protocol::process::Selector;
use cove_protocol::{FailureKind, Reply, Request};
use tokio::sync::Mutex;

pub use self::cell::{Cell, CellEvent, Outcome};
use self::context::Record;
pub use self::context::{Context, ContextId, Language, NewContext};
use self::driver::Started;
pub use self::events::Events;
use self::typescript::Typescript;
use crate::guest::{Guest, GuestError, Operation};
use crate::provider::Provider;
use crate::sandbox::Sandbox;

#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    #[error("context {0} not found")]
    NoSuchContext(String),
    #[error(
        "language {0:?} is not known: use python, javascript, typescript or bash, or name a Jupyter kernel that the template has"
    )]
    UnknownLanguage(String),
    /// The template has no program for the language.
    #[error("{0}")]
    NoProgram(String),
    #[error("working directory {0} does not exist in the sandbox")]
    NoDirectory(String),
    #[error("working directory {0} is closed to the user who runs the code")]
    ClosedDirectory(String),
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// How far an interpreter is prepared ahead of its first cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warmth {
    /// Its process runs; imports may be under way.
    Started,
    /// It waits, with nothing imported but what every cell needs.
    Ready,
    /// It has imported the libraries that cells begin with, and waits.
    Imported,
}

/// Whether a process of a sandbox is one of the interpreter's, by its tag.
pub fn is_tag(tag: &str) -> bool {
    tag.starts_with(context::TAG) || tag == driver::ZYGOTE_TAG
}

/// All contexts of all sandboxes; cheap to clone.
#[derive(Clone, Default)]
pub struct Interpreter {
    /// Who knows how much memory a sandbox had when it ran out.
    providers: Arc<BTreeMap<String, Arc<dyn Provider>>>,
    typescript: Typescript,
    /// One lock a sandbox, held only while a context is looked up or started: two first cells make one context.
    starting: Arc<std::sync::Mutex<HashMap<SandboxId, Arc<Mutex<()>>>>>,
}

impl Interpreter {
    pub fn new(providers: BTreeMap<String, Arc<dyn Provider>>) -> Self {
        Interpreter { providers: Arc::new(providers), ..Interpreter::default() }
    }

    /// Who takes the types off a cell.
    pub fn typescript(&self) -> &Typescript {
        &self.typescript
    }

    fn lock(&self, sandbox: &SandboxId) -> Arc<Mutex<()>> {
        let mut all = self.starting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|id, lock| id == sandbox || Arc::strong_count(lock) > 1);
        all.entry(sandbox.clone()).or_default().clone()
    }

    /// Starts a context and waits until its process stands.
    pub async fn create(
        &self,
        sandbox: &SandboxId,
        guest: &Guest,
        new: NewContext,
    ) -> Result<Context, InterpreterError> {
        let context = Context::new(new);
        let lock = self.lock(sandbox);
        let _starting = lock.lock().await;
        driver::start(&guest.unpreceded(), &context).await?;
        Ok(context)
    }

    /// All contexts of the sandbox that live, oldest first.
    pub async fn list(&self, guest: &Guest) -> Result<Vec<Context>, InterpreterError> {
        Ok(context::living(guest).await?.into_iter().map(|found| found.context).collect())
    }

    pub async fn find(&self, guest: &Guest, id: &ContextId) -> Result<Context, InterpreterError> {
        Ok(context::find(guest, id).await?.context)
    }

    /// Ends the process and starts it anew under the same name: variables are gone.
    pub async fn restart(&self, sandbox: &SandboxId, guest: &Guest, id: &ContextId) -> Result<(), InterpreterError> {
        let found = context::find(guest, id).await?;
        let lock = self.lock(sandbox);
        let _starting = lock.lock().await;
        context::end(guest, found.pid, Record::Forgotten).await?;
        driver::start(&guest.unpreceded(), &found.context).await?;
        Ok(())
    }

    /// Stops the running cell; its context goes on.
    pub async fn interrupt(&self, guest: &Guest, id: &ContextId) -> Result<(), InterpreterError> {
        let found = context::find(guest, id).await?;
        let process = Selector::Pid(found.pid);
        guest.call(&Request::Signal { process, signal: execution::SIGINT, group: true }).await?;
        Ok(())
    }

    pub async fn delete(&self, guest: &Guest, id: &ContextId) -> Result<(), InterpreterError> {
        let found = context::find(guest, id).await?;
        let record = if id.is_default() { Record::Kept } else { Record::Forgotten };
        context::end(guest, found.pid, record).await?;
        Ok(())
    }

    /// Makes sure that a language's default context is there, for those who expect it with the sandbox; one that was
    /// deleted stays away until a cell asks for it.
    pub async fn stand_by(
        &self,
        sandbox: &SandboxId,
        guest: &Guest,
        language: &Language,
    ) -> Result<(), InterpreterError> {
        let context = Context::default_of(language);
        let lock = self.lock(sandbox);
        let _starting = lock.lock().await;
        if !context::was_there(guest, &context).await? {
            driver::start(&guest.unpreceded(), &context).await?;
        }
        Ok(())
    }

    /// Has a sandbox ready for its first Python cell before anybody asks. A pool has the time to wait for that; where the
    /// first cell may come any moment, [`Warmth::Started`] is in nobody's way.
    pub async fn warm(&self, sandbox: &SandboxId, guest: &Guest, warmth: Warmth) -> Result<(), InterpreterError> {
        let lock = self.lock(sandbox);
        let _starting = lock.lock().await;
        match warmth {
            Warmth::Started => driver::stand_ready(guest).await,
            Warmth::Ready => driver::warm(guest, &[]).await,
            Warmth::Imported => driver::warm(guest, &driver::PRELOADED).await,
        }
    }

    /// The context that a cell is for, found or started, and joined: it waits for the cell.
    pub async fn join(&self, sandbox: &Sandbox, guest: &Guest, cell: &Cell) -> Result<Joined, InterpreterError> {
        // The cell is the command; the processes that it takes are not.
        guest.precede(&cell.code).await?;
        let guest = &guest.unpreceded();
        let lock = self.lock(&sandbox.id);
        let starting = lock.lock().await;
        let (context, started) = match &cell.context {
            Some(id) => {
                let found = context::find(guest, id).await?;
                (found.context, self.attach(guest, Selector::Pid(found.pid)).await?)
            }
            None => {
                let context = Context::default_of(&cell.language);
                let started = match self.attach_to_default(guest, &context).await {
                    Err(InterpreterError::NoSuchContext(_)) => driver::start(guest, &context).await?,
                    attached => attached?,
                };
                (context, started)
            }
        };
        drop(starting);
        let Started { pid, operation } = started;
        let memory =
            execution::Memory { handle: sandbox.handle(), provider: self.providers.get(&sandbox.provider).cloned() };
        let types =
            execution::Types { typescript: self.typescript.clone(), organisation: sandbox.organisation.clone() };
        Ok(Joined { guest: guest.clone(), memory, types, context, pid, starting: lock, operation })
    }

    /// Runs a cell; its events come through the channel, [`CellEvent::Done`] last. Dropping the receiver interrupts it.
    pub async fn execute(&self, sandbox: &Sandbox, guest: &Guest, cell: Cell) -> Result<Events, InterpreterError> {
        Ok(self.join(sandbox, guest, &cell).await?.run(cell))
    }

    /// [`Interpreter::execute`], gathered into one answer.
    pub async fn execute_to_end(
        &self,
        sandbox: &Sandbox,
        guest: &Guest,
        cell: Cell,
    ) -> Result<Outcome, InterpreterError> {
        let mut events = self.execute(sandbox, guest, cell).await?;
        let mut outcome = Outcome::default();
        while let Some(event) = events.recv().await {
            outcome.take(event);
        }
        Ok(outcome)
    }

    async fn attach_to_default(&self, guest: &Guest, context: &Context) -> Result<Started, InterpreterError> {
        match self.attach(guest, Selector::Living(context.tag())).await {
            // The guest of a sandbox that an earlier server made knows pids and tags alone.
            Err(InterpreterError::Guest(GuestError::Failed(failure))) if failure.kind == FailureKind::Unsupported => {
                let found = context::find(guest, &context.id).await?;
                self.attach(guest, Selector::Pid(found.pid)).await
            }
            attached => attached,
        }
    }

    async fn attach(&self, guest: &Guest, process: Selector) -> Result<Started, InterpreterError> {
        match guest.open(&Request::Attach { process, from: None }).await {
            Ok((Reply::Started { pid, .. }, operation)) => Ok(Started { pid, operation }),
            Ok((other, _)) => Err(GuestError::Protocol(format!("attach answered {other:?}")).into()),
            Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => {
                Err(InterpreterError::NoSuchContext(failure.message))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A context that waits for a cell.
pub struct Joined {
    guest: Guest,
    memory: execution::Memory,
    types: execution::Types,
    context: Context,
    /// Its process.
    pid: u32,
    /// Held by whoever starts a context of the sandbox.
    starting: Arc<Mutex<()>>,
    operation: Operation,
}

impl Joined {
    /// Puts the cell to it; see [`Interpreter::execute`].
    pub fn run(self, cell: Cell) -> Events {
        execution::run(self, cell)
    }
}
