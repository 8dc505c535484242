//! Sandboxes that were left in the middle of a change while the server runs, brought to its end.
//!
//! ```text
//!   stop ─▶ write `stopping` ─▶ provider ─▶ write `stopped`  ✗ the database is away, or its disk is full
//!                                              │
//!           once a second ─ rows in transition whose lock is free ─▶ ask the provider what is true ─▶ finish it
//! ```
//! Whoever changes a sandbox holds its lock from the first write to the last. So a row in transition whose lock is free
//! has nobody at work on it. The loop finds it in the store; who asks for a change of it, or wants to reach into it, finishes it
//! first instead of being refused. A sandbox that cannot be finished is tried again after growing pauses; a database that does not answer
//! costs no pause, so that the first look after it is back does the work.
//!
//! Two things are in no row while they cannot be written: that a sandbox ended by itself, and that one is to be removed
//! because nobody was told of it. They are kept here from the moment that they are known until they are written, and each
//! look tries them again. Whoever changes a sandbox whose end waits to be noted notes it first.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cove_protocol::SandboxId;

use super::Sandbox;
use super::cause::{Cause, Code};
use super::seal::Durable;
use super::state::{self, Event};
use crate::provider::{Ended, Seen};
use crate::{App, Error};

/// How often the loop looks.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// The longest pause between two attempts at one sandbox.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a look waits for what it has begun. What takes longer goes on, and keeps no other sandbox waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// What could not be brought to its end yet.
#[derive(Default)]
pub struct Unfinished {
    attempts: Mutex<HashMap<SandboxId, Attempt>>,
    /// Sandboxes that ended by themselves, until that is written.
    departures: Mutex<HashMap<SandboxId, Departed>>,
    /// Sandboxes that nobody can ever use, and why, until they are removed.
    unwanted: Mutex<HashMap<SandboxId, Cause>>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    count: u32,
    again: Instant,
}

/// One end of a sandbox.
#[derive(Debug, Clone, PartialEq)]
struct Departed {
    /// Tells it from the end of a later life.
    at: Instant,
    cause: Cause,
}

impl Unfinished {
    fn is_due(&self, id: &SandboxId) -> bool {
        let attempts = self.attempts.lock().expect("no panic while held");
        attempts.get(id).is_none_or(|attempt| attempt.again <= Instant::now())
    }

    fn failed(&self, id: &SandboxId) {
        let mut attempts = self.attempts.lock().expect("no panic while held");
        let count = attempts.get(id).map_or(0, |attempt| attempt.count) + 1;
        let pause = Duration::from_secs(1 << count.min(6)).min(LONGEST);
        attempts.insert(id.clone(), Attempt { count, again: Instant::now() + pause });
    }

    /// Forgets those that are in transition no more.
    fn keep(&self, left: &[Sandbox]) {
        let mut attempts = self.attempts.lock().expect("no panic while held");
        attempts.retain(|id, _| left.iter().any(|sandbox| sandbox.id == *id));
    }

    /// Keeps an end until it is written.
    fn departed(&self, id: &SandboxId, cause: Cause) {
        let departed = Departed { at: Instant::now(), cause };
        self.departures.lock().expect("no panic while held").insert(id.clone(), departed);
    }

    fn departure(&self, id: &SandboxId) -> Option<Departed> {
        self.departures.lock().expect("no panic while held").get(id).cloned()
    }

    /// Forgets an end that is written, and no other.
    fn is_noted(&self, id: &SandboxId, noted: &Departed) {
        let mut departures = self.departures.lock().expect("no panic while held");
        if departures.get(id).is_some_and(|departed| departed == noted) {
            departures.remove(id);
        }
    }

    fn departures(&self) -> Vec<SandboxId> {
        self.departures.lock().expect("no panic while held").keys().cloned().collect()
    }

    /// Keeps a sandbox that is to be removed when the database answers again.
    pub(crate) fn unwanted(&self, id: &SandboxId, cause: Cause) {
        self.unwanted.lock().expect("no panic while held").insert(id.clone(), cause);
    }

    fn is_removed(&self, id: &SandboxId) {
        self.unwanted.lock().expect("no panic while held").remove(id);
    }

    fn all_unwanted(&self) -> Vec<(SandboxId, Cause)> {
        let unwanted = self.unwanted.lock().expect("no panic while held");
        unwanted.iter().map(|(id, cause)| (id.clone(), cause.clone())).collect()
    }
}

impl App {
    /// One look at everything of this server that was left in the middle. Whoever goes away during it loses nothing.
    pub async fn finish_changes(&self) -> Result<(), Error> {
        let mut begun = Vec::new();
        for id in self.unfinished().departures() {
            // Held: whoever is at work on it notes it first, or the next look does.
            let Some(lock) = self.locks().try_lock(&id) else { continue };
            let app = self.clone();
            begun.push(self.tasks().spawn(async move {
                let _lock = lock;
                app.try_to_note_departure(&id).await;
            }));
        }
        for (id, cause) in self.unfinished().all_unwanted() {
            let Some(lock) = self.locks().try_lock(&id) else { continue };
            let app = self.clone();
            begun.push(self.tasks().spawn(async move {
                let _lock = lock;
                match app.change_locked(&id, Event::Destroy, cause, None).await {
                    Ok(_) | Err(Error::NotFound { .. }) => app.unfinished().is_removed(&id),
                    Err(error) => {
                        tracing::warn!(sandbox = %id, %error, detail = error.detail(), "remove what nobody can use, will be tried again");
                    }
                }
            }));
        }
        let _done_or_goes_on = tokio::time::timeout(PATIENCE, futures::future::join_all(begun)).await;
        let left = self.store().sandboxes_in_transition(self.server()).await?;
        self.unfinished().keep(&left);
        for sandbox in left.into_iter().filter(|sandbox| self.unfinished().is_due(&sandbox.id)) {
            // Held: somebody is at work on it.
            let Some(lock) = self.locks().try_lock(&sandbox.id) else { continue };
            let app = self.clone();
            // Each for itself: an archive that has to be made again takes its time.
            self.tasks().spawn(async move {
                let _lock = lock;
                match app.finish_locked(&sandbox.id).await {
                    Ok(done) if done.state.is_in_transition() => app.unfinished().failed(&done.id),
                    Ok(done) => tracing::info!(sandbox = %done.id, was = %sandbox.state, is = %done.state, "finished"),
                    // The store is asked again with the next look.
                    Err(Error::Unavailable { .. } | Error::Full(_)) => {}
                    Err(error) => {
                        app.unfinished().failed(&sandbox.id);
                        tracing::warn!(sandbox = %sandbox.id, state = %sandbox.state, %error, detail = error.detail(), "finish a change");
                    }
                }
            });
        }
        Ok(())
    }

    /// Finishes the change that a sandbox was left in, if it was; for those who hold the lock.
    pub(crate) async fn finish_locked(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        let found = self.store().sandbox_by_id(id).await?;
        let mut sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
        if !sandbox.state.is_in_transition() || sandbox.server != self.server() {
            return Ok(sandbox);
        }
        let sighting = self.provider(&sandbox.provider)?.sighting(&sandbox.handle()).await?;
        if let Some(sighting) = &sighting {
            self.note_handle(&mut sandbox, &sighting.handle).await?;
        }
        let event = match &sighting {
            Some(sighting) => Event::Seen(sighting.state),
            None => self.missing(&sandbox).await,
        };
        let ended = sighting.and_then(|sighting| sighting.ended);
        let cause = match state::apply(sandbox.state, event) {
            // As whoever began it said.
            Ok(_) if ended.is_none() => sandbox.cause.clone(),
            _ => self.found_cause(&sandbox, event, ended),
        };
        self.see_through(id, event, cause, None, Durable::AsConfigured).await
    }

    /// Notes that a sandbox ended by itself. Where that cannot be written now it is noted later.
    pub(crate) async fn departed(&self, id: &SandboxId, ended: &Ended) {
        self.pools().remove(id);
        // First: from here on it is known, whatever fails.
        self.unfinished().departed(id, Cause::ended(ended, self.now()));
        let _lock = self.locks().lock(id).await;
        self.try_to_note_departure(id).await;
    }

    /// For those who hold the lock.
    async fn try_to_note_departure(&self, id: &SandboxId) {
        if let Err(error) = self.note_departure(id).await {
            tracing::warn!(sandbox = %id, %error, detail = error.detail(), "note of a departure, will be tried again");
        }
    }

    /// Writes that a sandbox ended by itself, where that waits to be written; for those who hold the lock.
    pub(super) async fn note_departure(&self, id: &SandboxId) -> Result<(), Error> {
        let Some(departed) = self.unfinished().departure(id) else { return Ok(()) };
        // One that is gone, or another server's by now, has no end that is ours to note.
        if let Some(sandbox) = self.store().sandbox_by_id(id).await?.filter(|sandbox| self.is_here(sandbox))
            && !self.lives_again(&sandbox).await?
        {
            let cause = departed.cause.clone();
            self.see_through(id, Event::Departed, cause, None, Durable::AsConfigured).await?;
        }
        self.unfinished().is_noted(id, &departed);
        Ok(())
    }

    /// Whether the word of its end comes late: it was stopped and started since.
    async fn lives_again(&self, sandbox: &Sandbox) -> Result<bool, Error> {
        if !sandbox.state.has_processes() {
            return Ok(false);
        }
        let sighting = self.provider(&sandbox.provider)?.sighting(&sandbox.handle()).await?;
        Ok(sighting.is_some_and(|sighting| sighting.state != Seen::Stopped))
    }

    /// Keeps a sandbox of which nobody was told, to be removed when the database answers again.
    pub(crate) fn nobody_knows(&self, id: &SandboxId) {
        let cause = Cause::new(Code::StartFailed, "nobody could be told that it was made", self.now());
        self.unfinished().unwanted(id, cause);
    }
}
