//! What all connections share.

use std::time::Instant;

pub struct Guest {
    started: Instant,
}

impl Guest {
    pub fn new() -> Self {
        Guest { started: Instant::now() }
    }

    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
