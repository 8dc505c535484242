//! Requests under way, so that work nobody waits for can keep out of their way.
//!
//! On a small machine what is made ahead competes with whoever is served: a pool's next member takes a processor for some
//! milliseconds, its interpreter for tens of them. [`Traffic`] reports when there is a pause.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Traffic {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    under_way: usize,
    /// When the latest began or ended.
    latest: Instant,
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic { state: Mutex::new(State { under_way: 0, latest: Instant::now() }) }
    }
}

/// A request until its answer begins. Streams that follow do not count: some stay open for days.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a Traffic);

impl Traffic {
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        let mut state = self.lock();
        state.under_way += 1;
        state.latest = Instant::now();
        UnderWay(self)
    }

    /// How long nobody has been served; zero while somebody is.
    pub(crate) fn pause(&self) -> Duration {
        let state = self.lock();
        if state.under_way > 0 { Duration::ZERO } else { state.latest.elapsed() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        state.latest = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_begins_when_the_last_request_is_answered() {
        let traffic = Traffic::default();
        let (one, other) = (traffic.begin(), traffic.begin());
        drop(one);
        assert_eq!(traffic.pause(), Duration::ZERO);
        let before = Instant::now();
        drop(other);
        let pause = traffic.pause();
        assert!(pause <= before.elapsed(), "{pause:?}");
        let next = traffic.begin();
        assert_eq!(traffic.pause(), Duration::ZERO);
        drop(next);
    }
}
