//! So many requests a second and no more: a bucket of tokens for each key.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::{App, Caller, Error};

/// A burst may be this many seconds' worth.
const BURST_SECONDS: f64 = 10.0;
/// Never more than this many keys are remembered.
const MOST: usize = 100_000;

/// What a key has left, for the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    pub limit: u32,
    pub remaining: u32,
    /// Until it is all there again.
    pub reset: Duration,
}

#[derive(Default)]
pub struct Rates {
    buckets: Mutex<HashMap<String, Bucket>>,
}

struct Bucket {
    tokens: f64,
    at: i64,
}

/// How many requests may come at once.
fn burst(per_second: u32) -> u32 {
    (f64::from(per_second.max(1)) * BURST_SECONDS) as u32
}

impl Rates {
    pub fn take(&self, key: &str, per_second: u32, now: Timestamp) -> Result<Allowance, Duration> {
        let rate = f64::from(per_second.max(1));
        let full = rate * BURST_SECONDS;
        let now = now.as_millisecond();
        let mut buckets = self.buckets.lock().expect("no panic while held");
        if buckets.len() >= MOST {
            buckets.clear();
        }
        let bucket = buckets.entry(key.to_owned()).or_insert(Bucket { tokens: full, at: now });
        let elapsed = (now - bucket.at).max(0) as f64 / 1000.0;
        bucket.tokens = (bucket.tokens + elapsed * rate).min(full);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / rate));
        }
        bucket.tokens -= 1.0;
        Ok(Allowance {
            limit: full as u32,
            remaining: bucket.tokens as u32,
            reset: Duration::from_secs_f64((full - bucket.tokens) / rate),
        })
    }
}

impl App {
    /// Counts one request of the caller's key.
    pub async fn admit(&self, caller: &Caller) -> Result<Allowance, Error> {
        let quota = self.quota(&caller.organisation).await?;
        self.rates()
            .take(&caller.key, quota.requests_per_second, self.now())
            .map_err(|retry_after| Error::RateLimited { retry_after, limit: burst(quota.requests_per_second) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_then_the_rate_counts() {
        let rates = Rates::default();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        for _ in 0..20 {
            rates.take("k", 2, at(0)).unwrap();
        }
        assert_eq!(rates.take("k", 2, at(0)), Err(Duration::from_millis(500)));
        assert!(rates.take("other", 2, at(0)).is_ok());
        assert!(rates.take("k", 2, at(1)).is_ok());
    }
}
