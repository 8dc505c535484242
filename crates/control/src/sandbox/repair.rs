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
//! costs no pause, so that the first look after it is back does the work. An end that could not be noted is noted then too, and a
//! sandbox that was made without anybody being told is removed.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cove_protocol::SandboxId;

use super::Sandbox;
use super::cause::{Cause, Code};
use super::seal::Durable;
use super::state::{self, Event};
use crate::provider::Ended;
use crate::{App, Error};

/// How often the loop looks.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// The longest pause between two attempts at one sandbox.
const LONGEST: Duration = Duration::from_secs(60);

/// What could not be brought to its end yet.
#[derive(Default)]
pub struct Unfinished {
    attempts: Mutex<HashMap<SandboxId, Attempt>>,
    /// Sandboxes that ended by themselves and whose end is not written.
    departures: Mutex<HashMap<SandboxId, Ended>>,
    /// Sandboxes that were made and of which nobody was told: nobody can ever use them.
    untold: Mutex<HashSet<SandboxId>>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    count: u32,
    again: Instant,
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

    /// Notes an end to be written later.
    pub(crate) fn departed(&self, id: &SandboxId, ended: &Ended) {
        self.departures.lock().expect("no panic while held").insert(id.clone(), ended.clone());
    }

    /// Notes a sandbox to be removed when the database answers again.
    pub(crate) fn untold(&self, id: &SandboxId) {
        self.untold.lock().expect("no panic while held").insert(id.clone());
    }

    fn departures(&self) -> Vec<(SandboxId, Ended)> {
        self.departures.lock().expect("no panic while held").drain().collect()
    }
}

impl App {
    /// One look at everything of this server that was left in the middle.
    pub async fn finish_changes(&self) -> Result<(), Error> {
        for (id, ended) in self.unfinished().departures() {
            self.departed(&id, &ended).await;
        }
        let untold: Vec<SandboxId> = self.unfinished().untold.lock().expect("no panic while held").drain().collect();
        for id in untold {
            let cause = Cause::new(Code::StartFailed, "nobody could be told that it was made", self.now());
            match self.change_state(&id, Event::Destroy, cause).await {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(_) => self.unfinished().untold(&id),
            }
        }
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
        let cause = Cause::ended(ended, self.now());
        match self.change_state(id, Event::Departed, cause).await {
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, detail = error.detail(), "note of a departure, will be tried again");
                self.unfinished().departed(id, ended);
            }
        }
    }
}
