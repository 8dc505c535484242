//! Keys and quotas that were looked up a moment ago: a request must not cost a read for each. A revocation on this
//! server counts at once; another server forgets what it has here at its next look (`right`), within [`FOR`] at the latest.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Key, Quota};
use crate::clock::Timestamp;

/// How long, in milliseconds.
const FOR: i64 = 3_000;
/// Never more than this many.
const MOST: usize = 10_000;

#[derive(Default)]
pub struct KeyCache {
    keys: Mutex<HashMap<String, (Timestamp, Key)>>,
    quotas: Mutex<HashMap<String, (Timestamp, Quota)>>,
    /// Rises whenever all is forgotten.
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

    /// Remembers what was read from the store after `generation` was asked for. What was read before something changed
    /// may be wrong now, and is not kept.
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

    /// Something changed: look again.
    pub fn forget(&self) {
        let mut keys = self.keys.lock().expect("no panic while held");
        self.generation.fetch_add(1, Ordering::SeqCst);
        keys.clear();
        drop(keys);
        self.quotas.lock().expect("no panic while held").clear();
    }
}
