//! The members of one pool: which are ready, which are being made, and which have an interpreter ready.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cove_protocol::SandboxId;

use crate::sandbox::Sandbox;

/// The most members with an interpreter where the template is not for cells: each costs some megabytes.
const WARM: usize = 64;
/// Members made at one time for one pool.
const AT_ONCE: u32 = 4;
/// How long what a pool lacks waits for a pause between requests.
const PATIENCE: Duration = Duration::from_millis(500);

/// What members are made beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// Nobody is served: all that is missing is made.
    Pause,
    /// Requests are under way: no more is made than half a pool needs.
    Requests,
}

#[derive(Debug, Default)]
pub(super) struct Members {
    /// How many should be ready.
    pub size: u32,
    pub making: u32,
    pub hits: u64,
    pub misses: u64,
    ready: VecDeque<Member>,
    /// Since when the pool has been short without anything being made.
    short: Option<Instant>,
    /// When an interpreter was last started.
    warmed: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub sandbox: Sandbox,
    pub interpreter: Waiting,
}

/// The state of a member's interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    NotYet,
    /// It is being started.
    Soon,
    Yes,
}

impl Members {
    pub fn ready(&self) -> u32 {
        self.ready.len() as u32
    }

    pub fn warm(&self) -> u32 {
        self.ready.iter().filter(|member| member.interpreter == Waiting::Yes).count() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub fn add(&mut self, member: Member) {
        if self.ready.iter().all(|other| other.sandbox.id != member.sandbox.id) {
            self.ready.push_back(member);
        }
    }

    /// Gives back a member that was taken and not used.
    pub fn give_back(&mut self, member: Member) {
        self.hits = self.hits.saturating_sub(1);
        self.ready.push_front(member);
    }

    pub fn remove(&mut self, id: &SandboxId) {
        self.ready.retain(|member| member.sandbox.id != *id);
    }

    /// A member to hand out: the oldest whose interpreter is ready, or the oldest of all.
    pub fn take(&mut self) -> Option<Member> {
        let warm = self.ready.iter().position(|member| member.interpreter == Waiting::Yes);
        let member = self.ready.remove(warm.unwrap_or(0));
        match (&member, self.size) {
            (Some(_), _) => self.hits += 1,
            (None, 0) => {}
            (None, _) => self.misses += 1,
        }
        member
    }

    pub fn surplus(&mut self) -> Vec<Sandbox> {
        let kept = self.ready.len().min(self.size as usize);
        self.ready.drain(kept..).map(|member| member.sandbox).collect()
    }

    /// Notes that so many more are being made.
    pub fn begin(&mut self, haste: Haste) -> u32 {
        let (size, at_once) = goal(self.size, haste, self.short);
        let wanted = size.saturating_sub(self.ready() + self.making);
        let begun = wanted.min(at_once.saturating_sub(self.making));
        self.making += begun;
        self.short = match self.short {
            _ if begun > 0 || !self.is_short() => None,
            since => since.or_else(|| Some(Instant::now())),
        };
        begun
    }

    /// Whether more shall be made than are.
    pub fn is_short(&self) -> bool {
        self.ready() + self.making < self.size
    }

    /// A member whose interpreter is to be started now.
    pub fn begin_warming(&mut self, haste: Haste) -> Option<Sandbox> {
        // One at a time: a caller that takes a member must not wait behind work for the next one.
        let one_is = self.ready.iter().any(|member| member.interpreter == Waiting::Soon);
        let waits = haste == Haste::Requests && self.warmed.is_some_and(|at| at.elapsed() < PATIENCE);
        if one_is || waits || !self.is_cold() {
            return None;
        }
        let member = self.ready.iter_mut().find(|member| member.interpreter == Waiting::NotYet)?;
        member.interpreter = Waiting::Soon;
        self.warmed = Some(Instant::now());
        Some(member.sandbox.clone())
    }

    /// Whether an interpreter shall still be started.
    pub fn is_cold(&self) -> bool {
        let begun = self.ready.iter().filter(|member| member.interpreter != Waiting::NotYet).count();
        begun < self.ready.len().min(WARM)
    }

    pub fn warmed(&mut self, id: &SandboxId) {
        for member in self.ready.iter_mut().filter(|member| member.sandbox.id == *id) {
            member.interpreter = Waiting::Yes;
        }
    }
}

/// How many members there shall be now, and how many are made at a time.
fn goal(size: u32, haste: Haste, short: Option<Instant>) -> (u32, u32) {
    match haste {
        Haste::Pause => (size, AT_ONCE),
        // Some clients leave no pause at all.
        Haste::Requests if short.is_some_and(|since| since.elapsed() >= PATIENCE) => (size, 1),
        Haste::Requests => (size.div_ceil(2), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_requests_are_under_way_half_a_pool_is_enough() {
        assert_eq!(goal(5, Haste::Requests, None), (3, 1));
        assert_eq!(goal(5, Haste::Requests, Some(Instant::now())), (3, 1));
        assert_eq!(goal(5, Haste::Pause, None), (5, AT_ONCE));
        let long_ago = Instant::now().checked_sub(PATIENCE);
        assert_eq!(goal(5, Haste::Requests, long_ago), (5, 1), "where there is no pause it does not wait for ever");
    }

    #[test]
    fn no_more_are_begun_than_are_missing() {
        let mut members = Members { size: 6, ..Members::default() };
        assert_eq!(members.begin(Haste::Requests), 1, "one at a time");
        assert_eq!(members.begin(Haste::Requests), 0);
        assert!(members.short.is_some(), "the rest waits for a pause");
        assert_eq!(members.begin(Haste::Pause), 3, "four at a time in all");
        members.making = 6;
        assert_eq!((members.begin(Haste::Pause), members.is_short(), members.short), (0, false, None));
    }
}
