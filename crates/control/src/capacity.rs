//! How much this server takes on: room for sandboxes, and turns to start them.
//!
//! ```text
//!   create, start ──▶ admit (sandboxes, memory)  ──▶ turn (at most N at one time, a bounded queue)  ──▶ launch
//!                       │ full: 503                     │ queue full, or waited too long: 503
//! ```
//! Room is taken before the store is written, so that a refusal leaves nothing behind, and given back when the
//! sandbox's processes end. Every wait has a limit.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cove_protocol::SandboxId;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::Capacity as Limits;
use crate::sandbox::state::Event;
use crate::sandbox::{Sandbox, State};
use crate::{App, Error};

/// Copies of one request that a provider launches at one time, at most.
const SIDE_BY_SIDE: u32 = 8;

/// A guess of when something ends and there is room again.
const AGAIN: Duration = Duration::from_secs(5);

pub struct Capacity {
    limits: Limits,
    held: Mutex<Held>,
    turns: Semaphore,
    waiting: AtomicU32,
}

#[derive(Default)]
struct Held {
    memory: u64,
    sandboxes: HashMap<SandboxId, u64>,
}

/// The current numbers, for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    pub sandboxes: u64,
    pub memory: u64,
    pub launching: u64,
    pub waiting: u64,
}

fn full(message: String) -> Error {
    Error::Exhausted { message, retry_after: AGAIN }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

impl Capacity {
    pub fn new(limits: Limits) -> Capacity {
        let turns = Semaphore::new(limits.launches as usize);
        Capacity { limits, held: Mutex::default(), turns, waiting: AtomicU32::new(0) }
    }

    /// Takes the room that a sandbox needs, or reports what is full. A sandbox that has its room keeps it.
    fn admit(&self, id: &SandboxId, memory: u64, free: Option<u64>) -> Result<(), Error> {
        let mut held = self.held.lock().expect("no panic while held");
        let before = held.sandboxes.get(id).copied();
        let Limits { sandboxes, memory: most, free_memory, .. } = self.limits;
        if sandboxes > 0 && before.is_none() && held.sandboxes.len() as u64 >= sandboxes {
            return Err(full(format!("this server runs its maximum of {sandboxes} sandboxes; try again later")));
        }
        let taken = held.memory - before.unwrap_or(0);
        if most > 0 && taken + memory > most {
            let (taken, most) = (mib(taken), mib(most));
            return Err(full(format!(
                "this server's sandboxes have {taken} of {most} of memory, {} more do not fit; try again later",
                mib(memory)
            )));
        }
        if let Some(free) = free.filter(|free| *free < free_memory) {
            let (free, kept) = (mib(free), mib(free_memory));
            return Err(full(format!(
                "this server's machine has {free} of memory free and keeps {kept}; try again later"
            )));
        }
        held.memory = taken + memory;
        held.sandboxes.insert(id.clone(), memory);
        Ok(())
    }

    /// Gives the room back when the sandbox's processes are gone. Does nothing if it has none.
    pub fn release(&self, id: &SandboxId) {
        let mut held = self.held.lock().expect("no panic while held");
        if let Some(memory) = held.sandboxes.remove(id) {
            held.memory -= memory;
        }
    }

    /// Sets how much room the sandbox has now. Does nothing if it has none.
    pub fn note(&self, id: &SandboxId, memory: u64) {
        let mut held = self.held.lock().expect("no panic while held");
        if let Some(before) = held.sandboxes.get_mut(id).map(|held| std::mem::replace(held, memory)) {
            held.memory = held.memory - before + memory;
        }
    }

    /// Waits for a turn to launch.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.turns_for(1).await
    }

    /// Waits for turns of so many launches that happen at one time, or of all that there are.
    async fn turns_for(&self, launches: u32) -> Result<SemaphorePermit<'_>, Error> {
        let launches = launches.min(self.limits.launches).max(1);
        if let Ok(turn) = self.turns.try_acquire_many(launches) {
            return Ok(turn);
        }
        let place = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _leaves = Leaves(&self.waiting);
        if place >= self.limits.waiting {
            return Err(full(format!("{place} launches wait already; try again later")));
        }
        let patience = Duration::from_secs(self.limits.patience_seconds);
        match tokio::time::timeout(patience, self.turns.acquire_many(launches)).await {
            Ok(turn) => turn.map_err(|_| full("the server is about to end".into())),
            Err(_) => Err(full(format!("no turn to launch within {} s; try again later", patience.as_secs()))),
        }
    }

    pub fn figures(&self) -> Figures {
        let held = self.held.lock().expect("no panic while held");
        Figures {
            sandboxes: held.sandboxes.len() as u64,
            memory: held.memory,
            launching: u64::from(self.limits.launches).saturating_sub(self.turns.available_permits() as u64),
            waiting: self.waiting.load(Ordering::Relaxed).into(),
        }
    }
}

struct Leaves<'a>(&'a AtomicU32);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl App {
    /// Room and a turn for a sandbox that is about to be launched.
    pub(crate) async fn room_for(&self, sandbox: &Sandbox) -> Result<SemaphorePermit<'_>, Error> {
        self.check_disk(&sandbox.provider)?;
        self.admit_resized(sandbox, sandbox.limits.memory)?;
        self.capacity().turn().await.inspect_err(|_| self.capacity().release(&sandbox.id))
    }

    /// Turns for sandboxes that have their room and are launched together, of which the provider launches some at a time.
    pub(crate) async fn turns_for(&self, sandboxes: usize) -> Result<SemaphorePermit<'_>, Error> {
        self.capacity().turns_for(u32::try_from(sandboxes).unwrap_or(u32::MAX).min(SIDE_BY_SIDE)).await
    }

    /// Takes room for a sandbox with this much memory.
    pub(crate) fn admit_resized(&self, sandbox: &Sandbox, memory: u64) -> Result<(), Error> {
        let free = self.provider(&sandbox.provider)?.free_memory();
        self.capacity().admit(&sandbox.id, memory, free)
    }

    /// As [`App::room_for`], if the event starts a sandbox that has no processes.
    pub(crate) async fn room_to_start(
        &self,
        id: &SandboxId,
        event: Event,
    ) -> Result<Option<SemaphorePermit<'_>>, Error> {
        if !matches!(event, Event::Start | Event::Recover) {
            return Ok(None);
        }
        match self.store().sandbox_by_id(id).await? {
            Some(sandbox) if !sandbox.state.takes_room() => self.room_for(&sandbox).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Gives room to sandboxes that already run when the server starts.
    pub(crate) async fn reckon_room(&self) -> Result<(), Error> {
        let running = self.store().sandboxes_of_server(self.server()).await?;
        let mut held = self.capacity().held.lock().expect("no panic while held");
        for sandbox in running.into_iter().filter(|sandbox| sandbox.state.takes_room()) {
            held.memory += sandbox.limits.memory;
            held.sandboxes.insert(sandbox.id, sandbox.limits.memory);
        }
        Ok(())
    }

    pub(crate) fn note_room(&self, id: &SandboxId, state: State) {
        if !state.takes_room() {
            self.capacity().release(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(letter: char) -> SandboxId {
        letter.to_string().repeat(20).parse().unwrap()
    }

    fn capacity(limits: Limits) -> Capacity {
        Capacity::new(limits)
    }

    #[test]
    fn sandboxes_and_memory_are_counted_and_given_back() {
        let room = capacity(Limits { sandboxes: 2, memory: 300 << 20, ..Limits::default() });
        room.admit(&id('a'), 200 << 20, None).unwrap();
        let refused = room.admit(&id('b'), 200 << 20, None).unwrap_err().to_string();
        assert_eq!(
            refused,
            "this server's sandboxes have 200 MiB of 300 MiB of memory, 200 MiB more do not fit; try again later"
        );
        room.admit(&id('b'), 100 << 20, None).unwrap();
        let refused = room.admit(&id('c'), 1, None).unwrap_err().to_string();
        assert_eq!(refused, "this server runs its maximum of 2 sandboxes; try again later");
        // A sandbox that has its room may shrink.
        room.admit(&id('a'), 100 << 20, None).unwrap();
        room.release(&id('a'));
        room.release(&id('a'));
        room.admit(&id('c'), 200 << 20, None).unwrap();
        assert_eq!(room.figures().memory, 300 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_few_the_queue_is_short_and_nobody_waits_for_ever() {
        let room = capacity(Limits { launches: 1, waiting: 1, patience_seconds: 3, ..Limits::default() });
        let first = room.turn().await.unwrap();
        let (second, third) = tokio::join!(room.turn(), room.turn());
        assert_eq!(second.unwrap_err().to_string(), "no turn to launch within 3 s; try again later");
        assert_eq!(third.unwrap_err().to_string(), "1 launches wait already; try again later");
        drop(first);
        assert!(room.turn().await.is_ok());
        // Who needs more turns than there are takes all of them.
        let all = room.turns_for(8).await.unwrap();
        assert_eq!(room.figures().launching, 1);
        assert!(room.turn().await.is_err());
        drop(all);
        assert_eq!(room.figures().launching, 0);
    }
}
