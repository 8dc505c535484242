//! Traffic counters: written by the thread that forwards, read by any.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a sandbox's network has done since it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Bytes that came into the sandbox.
    pub received: u64,
    /// Bytes that left it.
    pub sent: u64,
    /// Connections that the policy let through.
    pub allowed: u64,
    /// Connections refused by the policy, or because there was no room.
    pub refused: u64,
    /// Connections that the policy let through and the other end did not take.
    pub failed: u64,
    /// Names asked for.
    pub questions: u64,
}

#[derive(Debug, Default)]
pub struct Account {
    pub received: Count,
    pub sent: Count,
    pub allowed: Count,
    pub refused: Count,
    pub failed: Count,
    pub questions: Count,
}

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, amount: usize) {
        self.0.fetch_add(amount as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Account {
    pub fn counters(&self) -> Counters {
        Counters {
            received: self.received.get(),
            sent: self.sent.get(),
            allowed: self.allowed.get(),
            refused: self.refused.get(),
            failed: self.failed.get(),
            questions: self.questions.get(),
        }
    }
}
