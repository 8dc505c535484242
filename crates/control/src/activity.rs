//! When a sandbox was last used, kept in memory and written now and then: a busy sandbox costs no write per request.

use std::collections::HashMap;
use std::sync::Mutex;

use cove_engine::SandboxId;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

use crate::clock::Timestamp;

#[derive(Default)]
pub struct Activity {
    unwritten: Mutex<HashMap<SandboxId, i64>>,
    writing: AsyncMutex<()>,
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

    /// One writes at a time: whoever comes next, and decides by what is written, finds all of it written.
    pub async fn turn_to_write(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// What could not be written is still to be written, unless there is newer.
    pub fn put_back(&self, activity: Vec<(SandboxId, i64)>) {
        let mut unwritten = self.unwritten.lock().expect("no panic while held");
        for (id, at) in activity {
            let newest = unwritten.entry(id).or_insert(at);
            *newest = at.max(*newest);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_not_forgotten_and_not_newer_than_it_was() {
        let (activity, id) = (Activity::default(), crate::random::sandbox_id());
        let at = |second| Timestamp::from_second(second).unwrap();
        activity.note(&id, at(1));
        let taken = activity.take();
        activity.put_back(taken.clone());
        assert_eq!(activity.latest(&id), Some(1000));
        activity.note(&id, at(2));
        activity.put_back(taken);
        assert_eq!(activity.latest(&id), Some(2000));
    }
}
