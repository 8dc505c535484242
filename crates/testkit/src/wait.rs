//! Conditions that must come true in time. No test sleeps and hopes.

use std::time::{Duration, Instant};

/// How long anything in a test may take that should take no time; generous, because test machines are small and busy.
pub const LIMIT: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(5);

/// Calls `look` until it returns something.
///
/// # Panics
/// If there is none within `limit`; `what` says what was waited for.
pub fn until_some<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(PAUSE);
    }
}

/// [`until_some`] for a plain condition.
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    until_some(what, limit, || condition().then_some(()));
}
