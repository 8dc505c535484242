//! When a sandbox was last used, kept in memory and written now and then: a busy sandbox costs no write per request.

use std::collections::HashMap;
use std::sync::Mutex;

use cove_engine::SandboxId;

use crate::clock::Timestamp;

#[derive(Default)]
pub struct Activity {
    unwritten: Mutex<HashMap<SandboxId, i64>>,
}

impl Activity {
    pub fn note(&self, id: &SandboxId, now: Timestamp) {
        let mut unwritten = self.unwritten.lock().expect("no panic while held");
        match unwritten.get_mut(id) {
            Some(at) => *at = now.as_millisecond(),
            None => {
                unwritten.insert(id.clone(), now.as_millisecond());
            }
        }
    }

    /// What the store does not know yet.
    pub fn take(&self) -> Vec<(SandboxId, i64)> {
        std::mem::take(&mut *self.unwritten.lock().expect("no panic while held")).into_iter().collect()
    }

    /// The newest that is known here of one sandbox.
    pub fn latest(&self, id: &SandboxId) -> Option<i64> {
        self.unwritten.lock().expect("no panic while held").get(id).copied()
    }
}
