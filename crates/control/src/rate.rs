//! Limits requests per second: a bucket of tokens for each key, and one for all keys of an organisation together, so
//! that many keys do not add up to a large allowance.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::key::Quota;
use crate::{App, Caller, Error};

/// A burst may use the allowance of this many seconds.
const BURST_SECONDS: f64 = 10.0;
/// The most buckets of each kind.
const MOST: usize = 100_000;

/// What a caller has left, for the headers: of its key or of its organisation, whichever has less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    pub limit: u32,
    pub remaining: u32,
    /// How long until the allowance is full again.
    pub reset: Duration,
}

/// Which allowance is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Key,
    Organisation,
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Whose::Key => "this key",
            Whose::Organisation => "this organisation's keys",
        })
    }
}

/// A request that came too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub whose: Whose,
    pub retry_after: Duration,
    /// The size of a burst.
    pub limit: u32,
}

#[derive(Default)]
pub struct Rates {
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    keys: HashMap<String, Bucket>,
    organisations: HashMap<String, Bucket>,
}

struct Bucket {
    tokens: f64,
    rate: f64,
    at: i64,
}

impl Bucket {
    /// Refills the bucket for the time that passed, at most to its size.
    fn of<'a>(all: &'a mut HashMap<String, Bucket>, name: &str, per_second: u32, now: i64) -> &'a mut Bucket {
        let rate = f64::from(per_second.max(1));
        if all.len() >= MOST {
            all.clear();
        }
        if !all.contains_key(name) {
            all.insert(name.to_owned(), Bucket { tokens: rate * BURST_SECONDS, rate, at: now });
        }
        let bucket = all.get_mut(name).expect("it was put there");
        let elapsed = (now - bucket.at).max(0) as f64 / 1000.0;
        bucket.tokens = (bucket.tokens + elapsed * rate).min(rate * BURST_SECONDS);
        (bucket.rate, bucket.at) = (rate, now);
        bucket
    }

    fn full(&self) -> f64 {
        self.rate * BURST_SECONDS
    }

    fn check(&self, whose: Whose) -> Result<(), Refused> {
        if self.tokens >= 1.0 {
            return Ok(());
        }
        let retry_after = Duration::from_secs_f64((1.0 - self.tokens) / self.rate);
        Err(Refused { whose, retry_after, limit: self.full() as u32 })
    }

    fn allowance(&self) -> Allowance {
        Allowance {
            limit: self.full() as u32,
            remaining: self.tokens as u32,
            reset: Duration::from_secs_f64((self.full() - self.tokens) / self.rate),
        }
    }
}

impl Rates {
    /// Takes one token of each, or none: a refused request costs the organisation nothing.
    pub fn take(&self, caller: &Caller, quota: &Quota, now: Timestamp) -> Result<Allowance, Refused> {
        let now = now.as_millisecond();
        let mut buckets = self.buckets.lock().expect("no panic while held");
        let Buckets { keys, organisations } = &mut *buckets;
        let key = Bucket::of(keys, &caller.key, quota.requests_per_second, now);
        let organisation = Bucket::of(organisations, &caller.organisation, quota.organisation_rate(), now);
        key.check(Whose::Key)?;
        organisation.check(Whose::Organisation)?;
        key.tokens -= 1.0;
        organisation.tokens -= 1.0;
        let (own, shared) = (key.allowance(), organisation.allowance());
        Ok(if shared.remaining < own.remaining { shared } else { own })
    }
}

impl App {
    /// Counts one request of the caller's key and of its organisation.
    pub async fn admit(&self, caller: &Caller) -> Result<Allowance, Error> {
        let quota = self.quota(&caller.organisation).await?;
        self.rates().take(caller, &quota, self.now()).map_err(Error::RateLimited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn caller(key: &str, organisation: &str) -> Caller {
        Caller { organisation: organisation.into(), key: key.into(), scopes: Vec::new() }
    }

    fn quota(key: u32, organisation: u32) -> Quota {
        Quota { requests_per_second: key, organisation_requests_per_second: Some(organisation), ..Quota::default() }
    }

    #[test]
    fn a_burst_is_taken_then_the_rate_counts() {
        let (rates, quota) = (Rates::default(), quota(2, 100));
        for _ in 0..20 {
            rates.take(&caller("k", "o"), &quota, at(0)).unwrap();
        }
        let refused = rates.take(&caller("k", "o"), &quota, at(0)).unwrap_err();
        assert_eq!(refused, Refused { whose: Whose::Key, retry_after: Duration::from_millis(500), limit: 20 });
        assert!(rates.take(&caller("other", "o"), &quota, at(0)).is_ok());
        assert!(rates.take(&caller("k", "o"), &quota, at(1)).is_ok());
    }

    #[test]
    fn more_keys_do_not_make_a_larger_allowance() {
        let (rates, quota) = (Rates::default(), quota(2, 3));
        let taken = (0..100).filter(|n| rates.take(&caller(&format!("k{n}"), "o"), &quota, at(0)).is_ok()).count();
        assert_eq!(taken, 30, "ten seconds' worth of the organisation's rate");
        let refused = rates.take(&caller("new", "o"), &quota, at(0)).unwrap_err();
        assert_eq!((refused.whose, refused.limit), (Whose::Organisation, 30));
        assert!(rates.take(&caller("k", "neighbour"), &quota, at(0)).is_ok(), "another organisation has its own");
        assert!(rates.take(&caller("new", "o"), &quota, at(1)).is_ok());
    }

    #[test]
    fn what_is_left_is_told_of_the_tighter_of_the_two() {
        let (rates, quota) = (Rates::default(), quota(10, 2));
        let left = rates.take(&caller("k", "o"), &quota, at(0)).unwrap();
        assert_eq!((left.limit, left.remaining), (20, 19));
        let quota = Quota { organisation_requests_per_second: None, ..quota };
        let left = rates.take(&caller("l", "p"), &quota, at(0)).unwrap();
        assert_eq!((left.limit, left.remaining), (100, 99));
    }

    #[test]
    fn a_key_that_is_refused_costs_its_organisation_nothing() {
        let (rates, quota) = (Rates::default(), quota(1, 2));
        let asked = (0..1000).filter(|_| rates.take(&caller("greedy", "o"), &quota, at(0)).is_ok()).count();
        assert_eq!(asked, 10);
        assert_eq!((0..10).filter(|_| rates.take(&caller("modest", "o"), &quota, at(0)).is_ok()).count(), 10);
    }
}
