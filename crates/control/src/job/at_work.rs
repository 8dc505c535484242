//! The jobs that this server does at this moment, from the claim of each until its outcome is written.
//!
//! Their leases are renewed, and no others: a row that says `running` while nobody is at it, because a claim was not
//! answered or a task came to a sudden end, is taken up again when its lease has run out.

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub struct AtWork {
    jobs: Arc<Mutex<HashSet<String>>>,
    /// When all leases were last renewed, in milliseconds.
    renewed: AtomicI64,
}

/// A job that is done here. Over when it is dropped.
pub struct Doing {
    jobs: Arc<Mutex<HashSet<String>>>,
    id: String,
}

impl AtWork {
    /// `None` where it is done here already.
    pub fn begin(&self, id: &str) -> Option<Doing> {
        let is_new = self.jobs.lock().expect("no panic while held").insert(id.to_owned());
        is_new.then(|| Doing { jobs: Arc::clone(&self.jobs), id: id.to_owned() })
    }

    pub fn ids(&self) -> Vec<String> {
        self.jobs.lock().expect("no panic while held").iter().cloned().collect()
    }

    pub fn is_renewed(&self, now: i64) {
        self.renewed.store(now, Ordering::SeqCst);
    }

    /// Whether leases may run out although their jobs go on, as after a database that was away for long.
    pub fn is_overdue(&self, now: i64, after: i64) -> bool {
        let is_old = now.saturating_sub(self.renewed.load(Ordering::SeqCst)) > after;
        is_old && !self.jobs.lock().expect("no panic while held").is_empty()
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        self.jobs.lock().expect("no panic while held").remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_done_once_at_a_time_and_its_lease_is_due_only_while_it_is() {
        let at_work = AtWork::default();
        assert!(!at_work.is_overdue(1_000_000, 30_000), "nothing is done");
        let doing = at_work.begin("a").unwrap();
        assert!(at_work.begin("a").is_none());
        assert_eq!(at_work.ids(), ["a"]);
        assert!(at_work.is_overdue(1_000_000, 30_000));
        at_work.is_renewed(1_000_000);
        assert!(!at_work.is_overdue(1_030_000, 30_000));
        drop(doing);
        assert!(at_work.ids().is_empty() && !at_work.is_overdue(2_000_000, 30_000));
        assert!(at_work.begin("a").is_some());
    }
}
