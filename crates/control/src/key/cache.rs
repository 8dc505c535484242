//! Keys and quotas that were looked up a moment ago: a request must not cost a read for each. A revocation on this
//! server counts at once, on another within [`FOR`].

use std::collections::HashMap;
use std::sync::Mutex;

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
}

fn fresh(at: Timestamp, now: Timestamp) -> bool {
    (now.as_millisecond() - at.as_millisecond()).abs() < FOR
}

impl KeyCache {
    pub fn get(&self, hash: &str, now: Timestamp) -> Option<Key> {
        let keys = self.keys.lock().expect("no panic while held");
        keys.get(hash).filter(|(at, _)| fresh(*at, now)).map(|(_, key)| key.clone())
    }

    pub fn put(&self, hash: String, key: Key, now: Timestamp) {
        let mut keys = self.keys.lock().expect("no panic while held");
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
        self.keys.lock().expect("no panic while held").clear();
        self.quotas.lock().expect("no panic while held").clear();
    }
}
