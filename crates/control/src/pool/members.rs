//! The members of one pool: which are ready, which are being made, and which have an interpreter ready.

use std::collections::VecDeque;

use cove_engine::SandboxId;

use crate::sandbox::Sandbox;

/// The most members with an interpreter where the template is not for cells: each costs some megabytes.
const WARM: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Members {
    /// How many should be ready.
    pub size: u32,
    pub making: u32,
    pub hits: u64,
    pub misses: u64,
    ready: VecDeque<Member>,
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

    /// Counts the missing members as being made, up to a maximum at one time.
    pub fn begin(&mut self, at_once: u32) -> u32 {
        let wanted = self.size.saturating_sub(self.ready() + self.making);
        let begun = wanted.min(at_once.saturating_sub(self.making));
        self.making += begun;
        begun
    }

    /// A member whose interpreter should be started now.
    pub fn begin_warming(&mut self) -> Option<Sandbox> {
        // One at a time: a caller that takes a member must not wait behind work for the next one.
        if self.ready.iter().any(|member| member.interpreter == Waiting::Soon) || self.warm() as usize >= WARM {
            return None;
        }
        let member = self.ready.iter_mut().find(|member| member.interpreter == Waiting::NotYet)?;
        member.interpreter = Waiting::Soon;
        Some(member.sandbox.clone())
    }

    pub fn warmed(&mut self, id: &SandboxId) {
        for member in self.ready.iter_mut().filter(|member| member.sandbox.id == *id) {
            member.interpreter = Waiting::Yes;
        }
    }
}
