//! One at a time for each sandbox: a launch, a capture, a fork, a rollback, its removal.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::spec::SandboxId;

#[derive(Debug, Default)]
pub struct Turns {
    taken: Mutex<HashSet<SandboxId>>,
    given_back: Condvar,
}

/// Given back when dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    id: SandboxId,
}

impl Turns {
    /// Waits for whoever has it.
    pub fn take(&self, id: &SandboxId) -> Turn<'_> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while !taken.insert(id.clone()) {
            taken = self.given_back.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        Turn { turns: self, id: id.clone() }
    }

    /// `None` where somebody has it.
    pub fn try_take(&self, id: &SandboxId) -> Option<Turn<'_>> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        taken.then(|| Turn { turns: self, id: id.clone() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.turns.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_sandbox_has_one_turn_and_another_its_own() {
        let turns = Turns::default();
        let id = |letter: &str| letter.repeat(20).parse::<SandboxId>().unwrap();
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        let other = turns.take(&id("b"));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _turn = turns.take(&id("a"));
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 1);
        assert!(turns.try_take(&id("b")).is_none());
        drop(other);
        drop(turns.take(&id("b")));
    }
}
