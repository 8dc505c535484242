//! Caches keys and quotas, so that a request does not read the store for each. A revocation on this server applies at
//! once; another server drops its cached copy at its next check (`right`), within [`FOR`] at the latest.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Key, Quota};
use crate::clock::Timestamp;

/// How long an entry is valid, in milliseconds.
const FOR: i64 = 3_000;
/// The most entries.
const MOST: usize = 10_000;

#[derive(Default)]
pub struct KeyCache {
    keys: Mutex<HashMap<String, (Timestamp, Key)>>,
    quotas: Mutex<HashMap<String, (Timestamp, Quota)>>,
    /// Rises whenever the cache is cleared.
    generation: AtomicU64,
}

fn fresh(at: Timestamp, now: Timestamp) -> bool {
    (now.as_millisecond() - at.as_millisecond()).abs() < FOR
}

impl KeyCache {
    pub fn get(&self, hash: &str, now: Timestamp) -> Option<Key> {
        let keys = self.keys.lock().expect("no panic while held");
        keys.get(hash).filter(|(at, _)| fresh(*at, now)).map(|(_, key)| key.clone())
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Stores what was read from the store after `generation` was read. If something changed in between, the entry may
    /// be wrong and is not kept.
    pub fn put(&self, hash: String, key: Key, generation: u64, now: Timestamp) {
        let mut keys = self.keys.lock().expect("no panic while held");
        if generation != self.generation() {
            return;
        }
        if keys.len() >= MOST {
            keys.clear();
        }
        keys.insert(hash, (now, key));
    }

    pub fn quota(&self, organisation: &str, now: Timestamp) -> Option<Quota> {
        let quotas = self.quotas.lock().expect("no panic while held");
        quotas.get(organisation).filter(|(at, _)| fresh(*at, now)).map(|(_, quota)| *quota)
    }

    pub fn put_quota(&self, organisation: &str, quota: Quota, now: Timestamp) {
        let mut quotas = self.quotas.lock().expect("no panic while held");
        if quotas.len() >= MOST {
            quotas.clear();
        }
        quotas.insert(organisation.to_owned(), (now, quota));
    }

    /// Clears the cache, because something changed.
    pub fn forget(&self) {
        let mut keys = self.keys.lock().expect("no panic while held");
        self.generation.fetch_add(1, Ordering::SeqCst);
        keys.clear();
        drop(keys);
        self.quotas.lock().expect("no panic while held").clear();
    }
}
