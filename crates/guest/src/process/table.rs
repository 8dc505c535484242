//! All processes the host started, running and finished, and when something is due for one of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cove_protocol::process::{Exit, Selector};
use cove_protocol::{Failure, FailureKind};

use super::Process;
use super::memory::Kills;
use super::output::{Account, KEPT, Output};
use crate::failure::Result;

/// Finished processes that stay findable.
const FINISHED: usize = 256;

/// Finished processes in all, with those whose children still hold the pipes.
const FINISHED_AT_MOST: usize = 1024;

/// The most output kept of all processes together.
const KEPT_IN_ALL: usize = 4 * KEPT;

/// What a process without readers keeps when all together have too much.
const KEPT_WHEN_TIGHT: usize = 64 << 10;

/// What has to be done for a process at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Its time is over: kill the group.
    Timeout,
    /// Its grace is over: report the exit.
    Settle,
}

pub struct Table {
    processes: BTreeMap<u64, Arc<Process>>,
    /// The pid of each process that the kernel has not given back.
    alive: BTreeMap<u32, u64>,
    finished: VecDeque<u64>,
    due: BTreeMap<(Instant, u64), Due>,
    next: u64,
    /// The output kept of all processes together.
    account: Account,
}

impl Table {
    pub fn new() -> Self {
        // Small numbers are the supervisor's own tokens.
        let next = 16;
        Table {
            processes: BTreeMap::new(),
            alive: BTreeMap::new(),
            finished: VecDeque::new(),
            due: BTreeMap::new(),
            next,
            account: Account::default(),
        }
    }

    pub fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn account(&self) -> Account {
        self.account.clone()
    }

    pub fn insert(&mut self, process: Arc<Process>) {
        self.alive.insert(process.pid, process.id);
        self.processes.insert(process.id, process);
    }

    pub fn get(&self, id: u64) -> Option<&Arc<Process>> {
        self.processes.get(&id)
    }

    /// The newest that fits.
    pub fn find(&self, selector: &Selector) -> Result<Arc<Process>> {
        let found = self.processes.values().rev().find(|process| match selector {
            Selector::Pid(pid) => process.pid == *pid,
            Selector::Tag(tag) => process.asked.tag.as_ref() == Some(tag),
            Selector::Living(tag) => process.asked.tag.as_ref() == Some(tag) && !process.reaped.load(Ordering::SeqCst),
        });
        found.cloned().ok_or_else(|| {
            let message = match selector {
                Selector::Pid(pid) => format!("no process {pid} was started by the host"),
                Selector::Tag(tag) => format!("no process has the tag {tag:?}"),
                Selector::Living(tag) => format!("no process with the tag {tag:?} lives"),
            };
            Failure::new(FailureKind::NotFound, message)
        })
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.processes.values()
    }

    pub fn is_alive(&self, process: &Process) -> bool {
        self.alive.get(&process.pid) == Some(&process.id)
    }

    pub fn alive(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.alive.values().filter_map(|id| self.processes.get(id))
    }

    /// The kernel has reaped `pid`; an orphan of the sandbox where the host did not start it.
    pub fn reaped(&mut self, pid: u32, exit: Exit, kills: &Kills) {
        let Some(id) = self.alive.remove(&pid) else { return };
        let Some(process) = self.processes.get(&id) else { return };
        process.reaped.store(true, Ordering::SeqCst);
        if let Some(at) = process.reaped(exit, kills) {
            self.due.insert((at, id), Due::Settle);
        }
        self.finished.push_back(id);
        while self.finished.len() > FINISHED {
            let spare = self.finished.iter().position(|id| self.processes.get(id).is_none_or(|it| !it.lingers()));
            let place = match spare {
                Some(place) => place,
                None if self.finished.len() > FINISHED_AT_MOST => 0,
                None => break,
            };
            if let Some(id) = self.finished.remove(place) {
                self.processes.remove(&id);
            }
        }
    }

    pub fn forget(&mut self, process: &Process) {
        self.processes.remove(&process.id);
        self.finished.retain(|id| *id != process.id);
    }

    pub fn schedule(&mut self, at: Instant, id: u64, due: Due) {
        self.due.insert((at, id), due);
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn take_due(&mut self, now: Instant) -> Option<(Arc<Process>, Due)> {
        loop {
            let entry = self.due.first_entry()?;
            if entry.key().0 > now {
                return None;
            }
            let ((_, id), due) = entry.remove_entry();
            if let Some(process) = self.processes.get(&id) {
                return Some((Arc::clone(process), due));
            }
        }
    }

    /// Makes room for more bytes of output within the limit for all processes: drops that of finished processes first,
    /// oldest first. What readers have not read yet stays; they delay their own process.
    pub fn make_room(&self, bytes: usize) {
        let most = KEPT_IN_ALL - Output::cost_of(bytes);
        if self.account.total() <= most {
            return;
        }
        let finished = self.finished.iter().filter_map(|id| self.processes.get(id)).map(|process| (process, 0));
        let running = self.alive().map(|process| (process, KEPT_WHEN_TIGHT));
        for (process, limit) in finished.chain(running) {
            if self.account.total() <= most {
                return;
            }
            process.shrink(limit);
        }
    }
}
