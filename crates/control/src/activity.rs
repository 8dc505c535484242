//! When a sandbox was last used, kept in memory and written now and then: a busy sandbox costs no write per request.
//!
//! A request is activity from its beginning to its end: while one is under way that reaches into a sandbox, the sandbox is
//! in use ([`Presence`]), and its idle time begins when the last has ended. A connection to a port inside is open as long
//! as a browser likes; there the bytes count ([`Attendance::note`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cove_protocol::SandboxId;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

use crate::clock::{Clock, Timestamp};

pub struct Activity {
    clock: Clock,
    unwritten: Mutex<HashMap<SandboxId, i64>>,
    writing: AsyncMutex<()>,
    /// Requests under way that reach into each sandbox; absent where there is none.
    under_way: Mutex<HashMap<SandboxId, usize>>,
}

/// Who reaches into one sandbox, to be asked for a [`Presence`] with each request.
#[derive(Clone)]
pub struct Attendance {
    activity: Arc<Activity>,
    id: SandboxId,
}

/// A request under way. Its end is activity.
pub struct Presence(Attendance);

impl Attendance {
    pub fn begin(&self) -> Presence {
        let mut under_way = self.activity.under_way.lock().expect("no panic while held");
        *under_way.entry(self.id.clone()).or_default() += 1;
        Presence(self.clone())
    }

    /// Something is carried in or out.
    pub fn note(&self) {
        self.activity.note(&self.id, self.activity.clock.now());
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let Attendance { activity, id } = &self.0;
        {
            let mut under_way = activity.under_way.lock().expect("no panic while held");
            match under_way.get_mut(id) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    under_way.remove(id);
                }
            }
        }
        self.0.note();
    }
}

impl Activity {
    pub fn new(clock: Clock) -> Self {
        Activity { clock, unwritten: Mutex::default(), writing: AsyncMutex::default(), under_way: Mutex::default() }
    }

    pub fn attendance(self: &Arc<Self>, id: &SandboxId) -> Attendance {
        Attendance { activity: Arc::clone(self), id: id.clone() }
    }

    /// Whether a request is under way that reaches into the sandbox.
    pub fn is_attended(&self, id: &SandboxId) -> bool {
        self.under_way.lock().expect("no panic while held").contains_key(id)
    }

    pub fn note(&self, id: &SandboxId, now: Timestamp) {
        let mut unwritten = self.unwritten.lock().expect("no panic while held");
        match unwritten.get_mut(id) {
            Some(at) => *at = now.as_millisecond(),
            None => {
                unwritten.insert(id.clone(), now.as_millisecond());
            }
        }
    }

    /// One writer at a time: the next one decides by what is in the store, and finds everything written.
    pub async fn turn_to_write(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().await
    }

    /// Keeps what could not be written, unless there is a newer time.
    pub fn put_back(&self, activity: Vec<(SandboxId, i64)>) {
        let mut unwritten = self.unwritten.lock().expect("no panic while held");
        for (id, at) in activity {
            let newest = unwritten.entry(id).or_insert(at);
            *newest = at.max(*newest);
        }
    }

    /// Times that are not in the store yet.
    pub fn take(&self) -> Vec<(SandboxId, i64)> {
        std::mem::take(&mut *self.unwritten.lock().expect("no panic while held")).into_iter().collect()
    }

    /// The newest time of one sandbox that this server knows.
    pub fn latest(&self, id: &SandboxId) -> Option<i64> {
        self.unwritten.lock().expect("no panic while held").get(id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_not_forgotten_and_not_newer_than_it_was() {
        let (activity, id) = (Activity::new(Clock::system()), crate::random::sandbox_id());
        let at = |second| Timestamp::from_second(second).unwrap();
        activity.note(&id, at(1));
        let taken = activity.take();
        activity.put_back(taken.clone());
        assert_eq!(activity.latest(&id), Some(1000));
        activity.note(&id, at(2));
        activity.put_back(taken);
        assert_eq!(activity.latest(&id), Some(2000));
    }

    #[test]
    fn a_sandbox_is_in_use_until_the_last_request_has_ended_and_idle_from_then_on() {
        let clock = Clock::standing_at(Timestamp::from_second(1).unwrap());
        let (activity, id) = (Arc::new(Activity::new(clock.clone())), crate::random::sandbox_id());
        let attendance = activity.attendance(&id);
        let (long, short) = (attendance.begin(), attendance.begin());
        drop(short);
        assert!(activity.is_attended(&id));
        clock.advance(std::time::Duration::from_secs(60));
        drop(long);
        assert!(!activity.is_attended(&id));
        assert_eq!(activity.latest(&id), Some(61_000));
    }
}
