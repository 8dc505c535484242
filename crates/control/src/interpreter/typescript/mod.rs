//! TypeScript without a compiler in the template: types are taken off on the host and node runs what is left.
//!
//! The code is hostile, and 294 bytes of it can ask the transformer for more memory than the machine has (`enum` members
//! that double a string) or nest until a stack is gone. So no cell is read in the server: a small process is, for one
//! cell each, with bounds of its own on memory, time, stack and output, no descriptor but its streams and no system call
//! but those for memory. What a cell does to it is the cell's own affair.
//!
//! ```text
//!   cell ──▶ a place of its organisation ──▶ the worker that waits ──▶ JavaScript, or a sentence
//!                                                 └── another one is started for the next cell
//! ```
//!
//! # Layout
//! * here: the server's side, and what it makes of a worker's end
//! * `worker`: the process; `strip`: what it does

mod strip;
mod worker;

use std::collections::HashMap;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

#[cfg(test)]
pub(crate) use strip::strip as strip_here;
pub use worker::{ARGUMENT, main};

/// Bytes of a cell.
const LONGEST: usize = 64 << 10;
/// Bytes of the JavaScript that comes of it.
const LONGEST_OUTPUT: usize = 1 << 20;
/// Cells that are read at one time, in all and of one organisation: nobody takes all places.
const PLACES: usize = 4;
const PLACES_EACH: usize = 2;
/// How long a cell waits for its place.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a worker may take. Its processor time has a bound of its own, which comes first where the machine is free.
const WITHIN: Duration = Duration::from_secs(5);
/// Bytes kept of what a worker says when it dies.
const LAST_WORDS: u64 = 4096;

/// Whoever takes the types off cells; cheap to clone.
#[derive(Debug, Clone)]
pub struct Typescript(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Started with [`ARGUMENT`] it calls [`main`].
    program: PathBuf,
    places: Semaphore,
    of_organisations: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Started already, and waits for a cell.
    ready: Mutex<Option<Child>>,
}

impl Default for Typescript {
    /// This program itself, also where its file was replaced meanwhile.
    fn default() -> Self {
        Typescript::of("/proc/self/exe")
    }
}

impl Typescript {
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Typescript(Arc::new(Inner {
            program: program.into(),
            places: Semaphore::new(PLACES),
            of_organisations: Mutex::default(),
            ready: Mutex::default(),
        }))
    }

    /// The cell as JavaScript, or why there is none, in words for whoever wrote it.
    pub async fn strip(&self, organisation: &str, code: &str) -> Result<String, String> {
        if code.len() > LONGEST {
            return Err(format!(
                "a TypeScript cell may have {LONGEST} bytes, this one has {}: write it to a file and import it",
                code.len()
            ));
        }
        let place = tokio::time::timeout(PATIENCE, self.place(organisation));
        let Ok(_place) = place.await else {
            return Err(format!("other TypeScript cells were read for {} s; try again", PATIENCE.as_secs()));
        };
        let unreadable = |error: io::Error| format!("the TypeScript cell could not be read: {error}");
        let worker = match self.take_ready() {
            Some(worker) => worker,
            None => self.start().await.map_err(unreadable)?,
        };
        self.prepare_another();
        match tokio::time::timeout(WITHIN, converse(worker, code)).await {
            Ok(heard) => understand(heard.map_err(unreadable)?),
            // Dropped, the worker is killed.
            Err(_) => Err(took_too_long()),
        }
    }

    async fn place(&self, organisation: &str) -> (Option<OwnedSemaphorePermit>, Option<SemaphorePermit<'_>>) {
        let own = {
            let mut all = self.0.of_organisations.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|name, places| name == organisation || Arc::strong_count(places) > 1);
            Arc::clone(all.entry(organisation.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(PLACES_EACH))))
        };
        // No semaphore is ever closed.
        (own.acquire_owned().await.ok(), self.0.places.acquire().await.ok())
    }

    /// One that is still alive.
    fn take_ready(&self) -> Option<Child> {
        let mut worker = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        matches!(worker.try_wait(), Ok(None)).then_some(worker)
    }

    /// For the next cell, while this one is read.
    fn prepare_another(&self) {
        let these = self.clone();
        tokio::spawn(async move {
            match these.start().await {
                Ok(worker) => {
                    let mut ready = these.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
                    ready.get_or_insert(worker);
                }
                Err(error) => tracing::warn!(%error, "start a worker for TypeScript cells"),
            }
        });
    }

    async fn start(&self) -> io::Result<Child> {
        let mut command = std::process::Command::new(&self.0.program);
        command
            .arg(ARGUMENT)
            // A Ctrl-C is meant for the server.
            .process_group(0)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        // The thread that starts a program waits until the program has begun.
        tokio::task::spawn_blocking(move || command.spawn()).await.map_err(io::Error::other)?
    }
}

/// What came back of a worker.
struct Heard {
    answer: Vec<u8>,
    last_words: String,
    status: ExitStatus,
}

async fn converse(mut worker: Child, code: &str) -> io::Result<Heard> {
    let (mut to, from, errors) = (worker.stdin.take(), worker.stdout.take(), worker.stderr.take());
    let give = async {
        if let Some(to) = &mut to {
            // One that dies first says why by its end.
            let _given = to.write_all(code.as_bytes()).await;
        }
        drop(to.take());
    };
    let most = LONGEST_OUTPUT as u64 + 1;
    let ((), answer, last_words) = tokio::join!(give, heard(from, most), heard(errors, LAST_WORDS));
    let status = worker.wait().await?;
    Ok(Heard { answer: answer?, last_words: String::from_utf8_lossy(&last_words?).into_owned(), status })
}

async fn heard(from: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// The answer, or which bound the worker came to.
fn understand(heard: Heard) -> Result<String, String> {
    const SIGKILL: i32 = 9;
    const SIGSEGV: i32 = 11;
    const SIGXCPU: i32 = 24;
    let Heard { answer, last_words, status } = heard;
    if status.success() {
        let (kind, text) = answer.split_first().unwrap_or((&0, &[]));
        let text = String::from_utf8_lossy(text).into_owned();
        return match *kind {
            worker::JAVASCRIPT => Ok(text),
            worker::REFUSAL => Err(text),
            _ => Err("the TypeScript cell could not be read".into()),
        };
    }
    Err(match status.signal() {
        _ if answer.len() > LONGEST_OUTPUT || last_words.contains(worker::TOO_LONG) => {
            format!("the TypeScript cell becomes more than {} KiB of JavaScript", LONGEST_OUTPUT >> 10)
        }
        _ if worker::NO_MEMORY.iter().any(|words| last_words.contains(words)) => format!(
            "the TypeScript cell takes more than {} MiB of memory to read: are there members of an enum that grow?",
            worker::MEMORY >> 20
        ),
        Some(SIGKILL | SIGXCPU) => took_too_long(),
        Some(SIGSEGV) => {
            format!(
                "the TypeScript cell is nested too deeply: reading it takes more than {} MiB of stack",
                worker::STACK >> 20
            )
        }
        _ => {
            tracing::warn!(%status, last_words, "a worker for TypeScript cells failed");
            "the TypeScript cell could not be read".into()
        }
    })
}

fn took_too_long() -> String {
    format!("the TypeScript cell takes more than {} s to read", worker::SECONDS)
}
