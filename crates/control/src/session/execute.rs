//! Code in a session's interpreter. It runs to its end whether or not anybody listens, unless somebody interrupts it.

use std::time::Duration;

use super::journal::{Message, Stream};
use super::{Artifact, Session};
use crate::interpreter::cell::{CellError, CellEvent, CellResult};
use crate::interpreter::{Cell, ContextId, InterpreterError, Language, Outcome};
use crate::{App, Caller, Error, Scope, random};

#[derive(Debug, Clone)]
pub struct Execution {
    pub code: String,
    pub language: Option<String>,
    pub timeout: Option<Duration>,
}

#[derive(Debug, Clone)]
pub struct Executed {
    pub execution: String,
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<CellResult>,
    pub error: Option<CellError>,
    pub artifacts: Vec<Artifact>,
}

impl Executed {
    pub fn exit_code(&self) -> i32 {
        i32::from(self.error.is_some())
    }
}

impl From<InterpreterError> for Error {
    fn from(error: InterpreterError) -> Self {
        match error {
            InterpreterError::NoSuchContext(id) => Error::not_found("context", id),
            InterpreterError::UnknownLanguage(_) => Error::invalid("language", error.to_string()),
            InterpreterError::NoProgram(reason) => Error::Unsupported(reason),
            InterpreterError::NoDirectory(_) | InterpreterError::ClosedDirectory(_) => {
                Error::invalid("cwd", error.to_string())
            }
            InterpreterError::Guest(error) => Error::Guest(error),
        }
    }
}

impl App {
    pub async fn execute(&self, caller: &Caller, session: &str, execution: Execution) -> Result<Executed, Error> {
        caller.require(Scope::Write)?;
        let session = self.open_session(caller, session).await?;
        let language: Language = execution.language.as_deref().unwrap_or("python").parse()?;
        let app = self.clone();
        let caller = caller.clone();
        self.detached(async move { app.run_cell(&caller, session, language, execution).await }).await
    }

    /// Interrupts the cells that a session runs; their callers get what was printed and the error. Returns in how many
    /// languages something ran.
    pub async fn interrupt_session(&self, caller: &Caller, session: &str) -> Result<usize, Error> {
        caller.require(Scope::Write)?;
        let session = self.open_session(caller, session).await?;
        let running = self.live_sessions().cells.languages(&session.id);
        if running.is_empty() {
            return Ok(0);
        }
        let (_, guest) = self.reach(caller, &session.sandbox).await?;
        let mut interrupted = 0;
        for language in running {
            match self.interpreter().interrupt(&guest, &ContextId::default_of(&language)).await {
                Ok(()) => interrupted += 1,
                // Its cell ended, or its context has not started yet.
                Err(InterpreterError::NoSuchContext(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(interrupted)
    }

    async fn run_cell(
        &self,
        caller: &Caller,
        session: Session,
        language: Language,
        execution: Execution,
    ) -> Result<Executed, Error> {
        let room = self.room_in_sessions(&session.organisation).await?;
        let _running = self.live_sessions().cells.begin(&session.id, &language);
        let (sandbox, guest) = self.reach(caller, &session.sandbox).await?;
        let id = random::id("execution");
        let cell = Cell { timeout: execution.timeout, ..Cell::new(language, execution.code) };
        let joined = async { Ok::<_, Error>(self.interpreter().join(&sandbox, &guest, &cell).await?) };
        let (before, joined) = tokio::try_join!(self.known_artifacts(&guest), joined)?;
        let mut events = joined.run(cell);
        self.say(&session.id, vec![Message::ExecutionStarted { execution: id.clone() }]).await?;
        let mut outcome = Outcome::default();
        let mut noted = Noted::within(room);
        loop {
            let batch = events.recv_many(64).await;
            if batch.is_empty() {
                break;
            }
            let messages: Vec<Message> =
                batch.iter().filter_map(message).filter_map(|said| noted.admit(said)).collect();
            if !messages.is_empty() {
                self.say(&session.id, messages).await?;
            }
            if noted.is_to_be_asked_again() {
                let room = self.room_in_sessions(&session.organisation).await;
                noted.set_room(match room {
                    Err(Error::Quota { .. }) => 0,
                    room => room?,
                });
            }
            self.touch(&sandbox.id);
            for event in batch {
                outcome.take(event);
            }
        }
        let kept = self.keep_artifacts(&session, &guest, &outcome, &before).await?;
        if !kept.left_out.is_empty() {
            let names = kept.left_out.join(", ");
            let content = format!("\n[no room to keep {names}: the maximum of journals and artifacts is reached]\n");
            outcome.stderr.push_str(&content);
            self.say(&session.id, vec![Message::Log { stream: Stream::Stderr, content }]).await?;
        }
        let executed = Executed {
            execution: id.clone(),
            artifacts: kept.artifacts,
            stdout: outcome.stdout.clone(),
            stderr: outcome.stderr.clone(),
            results: outcome.results.clone(),
            error: outcome.error.clone(),
        };
        let complete = Message::ExecutionComplete {
            execution: id,
            exit_code: executed.exit_code(),
            result: outcome.text().map(ToOwned::to_owned),
            artifacts: executed.artifacts.iter().map(|artifact| artifact.name.clone()).collect(),
        };
        self.say(&session.id, vec![complete]).await?;
        Ok(executed)
    }
}

/// How much of one execution is in the journal. The journal is in the server's database, and code that never stops
/// printing must not fill it.
struct Noted {
    bytes: usize,
    /// How many may be noted.
    most: usize,
    /// How many were noted when the organisation's room was last looked at: others use it up too.
    looked_at: usize,
    cut: bool,
}

/// So many bytes are noted between two looks at the organisation's room.
const LOOK_EVERY: usize = 1 << 20;

/// Bytes of one execution that the journal keeps; as many as its answer has at most.
const NOTED: usize = 48 << 20;

impl Noted {
    fn within(room: u64) -> Noted {
        let most = NOTED.min(usize::try_from(room).unwrap_or(NOTED));
        Noted { bytes: 0, most, looked_at: 0, cut: false }
    }

    fn is_to_be_asked_again(&self) -> bool {
        !self.cut && self.bytes - self.looked_at >= LOOK_EVERY
    }

    fn set_room(&mut self, room: u64) {
        self.looked_at = self.bytes;
        self.most = NOTED.min(self.bytes.saturating_add(usize::try_from(room).unwrap_or(NOTED)));
    }

    /// Returns what to write: the first output that does not fit is written as a cut, the rest is dropped.
    fn admit(&mut self, message: Message) -> Option<Message> {
        // An error is small, and the reason for the end.
        if matches!(message, Message::Error(_)) {
            return Some(message);
        }
        self.bytes = self.bytes.saturating_add(weight(&message));
        if self.bytes <= self.most {
            return Some(message);
        }
        let content = match self.most {
            NOTED => format!("\n[journal cut: over {} MiB; write it to a file]\n", NOTED >> 20),
            _ => "\n[journal cut: the organisation's maximum of journals and artifacts is reached]\n".into(),
        };
        let first = !std::mem::replace(&mut self.cut, true);
        first.then_some(Message::Log { stream: Stream::Stderr, content })
    }
}

fn weight(message: &Message) -> usize {
    match message {
        Message::Log { content, .. } => content.len(),
        Message::Result(result) => result.data.values().map(|value| value.to_string().len()).sum(),
        _ => 0,
    }
}

fn message(event: &CellEvent) -> Option<Message> {
    match event {
        CellEvent::Started { .. } | CellEvent::Done => None,
        CellEvent::Stdout { text } => Some(Message::Log { stream: Stream::Stdout, content: text.clone() }),
        CellEvent::Stderr { text } => Some(Message::Log { stream: Stream::Stderr, content: text.clone() }),
        CellEvent::Result(result) => Some(Message::Result(result.clone())),
        CellEvent::Error(error) => Some(Message::Error(error.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_cut_once_and_still_tells_the_error() {
        let mut noted = Noted::within(u64::MAX);
        let log = |bytes: usize| Message::Log { stream: Stream::Stdout, content: "x".repeat(bytes) };
        let said: Vec<Message> = (0..100).filter_map(|_| noted.admit(log(1 << 20))).collect();
        let bytes: usize = said.iter().map(weight).sum();
        assert!(bytes <= NOTED + 200, "{bytes}");
        let cuts = said.iter().filter(|said| matches!(said, Message::Log { content, .. } if content.contains("cut")));
        assert_eq!(cuts.count(), 1);
        assert!(noted.admit(Message::Error(CellError::new("A", "why"))).is_some());
    }
}
