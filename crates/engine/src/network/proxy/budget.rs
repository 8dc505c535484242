//! File descriptors are scarce in the proxy: RLIMIT_NOFILE applies to the whole server. What the proxy opens is
//! counted, so that sandboxes with many connections leave room for the API and for other sandboxes.
//!
//! A sandbox that is attached costs two (a listener and a resolver), a connection two, a question in flight one. All
//! together may take four fifths of the limit, connections and questions alone at most half.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

#[derive(Debug, Default)]
pub struct Budget {
    listeners: AtomicUsize,
    passing: AtomicUsize,
}

/// What the descriptors are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The sockets that stay open as long as a sandbox.
    Listening,
    Passing,
}

/// Leave to hold descriptors; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    purpose: Purpose,
    count: usize,
}

impl Budget {
    pub fn take(self: &Arc<Self>, purpose: Purpose, count: usize) -> Option<Permit> {
        self.take_of(limit(), purpose, count)
    }

    fn take_of(self: &Arc<Self>, limit: usize, purpose: Purpose, count: usize) -> Option<Permit> {
        // Counted first and given back if too much: two workers that ask at once cannot both get the last.
        let permit = Permit { budget: self.clone(), purpose, count };
        self.counter(purpose).fetch_add(count, Ordering::Relaxed);
        let (listening, passing) = (self.listeners.load(Ordering::Relaxed), self.passing.load(Ordering::Relaxed));
        let fits = listening + passing <= limit / 5 * 4 && (purpose == Purpose::Listening || passing <= limit / 2);
        fits.then_some(permit)
    }

    fn counter(&self, purpose: Purpose) -> &AtomicUsize {
        match purpose {
            Purpose::Listening => &self.listeners,
            Purpose::Passing => &self.passing,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.counter(self.purpose).fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// How many descriptors this process may have, read again each time: a server raises its limit when it starts.
pub fn limit() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_listeners_and_come_back() {
        let budget = Arc::new(Budget::default());
        let held: Vec<_> = (0..25).map(|_| budget.take_of(100, Purpose::Passing, 2).expect("half of it")).collect();
        assert!(budget.take_of(100, Purpose::Passing, 2).is_none(), "not more than half for connections");
        let listening: Vec<_> =
            (0..15).map(|_| budget.take_of(100, Purpose::Listening, 2).expect("the rest")).collect();
        assert!(budget.take_of(100, Purpose::Listening, 2).is_none(), "a fifth stays for others");
        drop(held);
        assert!(budget.take_of(100, Purpose::Listening, 2).is_some());
        drop(listening);
        assert_eq!(budget.listeners.load(Ordering::Relaxed), 0);
    }
}
