//! The time, passed in as a value: tests of timers do not have to wait.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub use jiff::Timestamp;

/// Returns the time. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Set(Arc<AtomicI64>),
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

impl Clock {
    /// The machine's own.
    pub fn system() -> Self {
        Clock(Source::System)
    }

    /// A clock that moves only by [`Clock::advance`], for tests.
    pub fn standing_at(now: Timestamp) -> Self {
        Clock(Source::Set(Arc::new(AtomicI64::new(now.as_millisecond()))))
    }

    /// Now, to the millisecond, which is what the store keeps.
    pub fn now(&self) -> Timestamp {
        let millisecond = match &self.0 {
            Source::System => Timestamp::now().as_millisecond(),
            Source::Set(at) => at.load(Ordering::SeqCst),
        };
        from_millisecond(millisecond)
    }

    /// Moves a standing clock forward; the system's own cannot be moved.
    pub fn advance(&self, by: std::time::Duration) {
        if let Source::Set(at) = &self.0 {
            at.fetch_add(by.as_millis() as i64, Ordering::SeqCst);
        }
    }
}

/// A time from the store; a number outside of the calendar becomes its nearest end.
pub fn from_millisecond(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(millisecond).unwrap_or(if millisecond < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// `time` plus whole seconds, at most the calendar's end.
pub fn after(time: Timestamp, seconds: u64) -> Timestamp {
    from_millisecond(time.as_millisecond().saturating_add((seconds.saturating_mul(1000)).min(i64::MAX as u64) as i64))
}
