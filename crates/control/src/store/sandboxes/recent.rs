//! A cache of sandboxes as they were last written, so that a call to one needs no read.
//!
//! Only with SQLite, which has one server. Only a write makes an entry, while it still has the writing connection, so
//! entries follow the order of commits. While a write is under way there is no entry, and readers ask the database.

use std::collections::HashMap;
use std::sync::Mutex;

use cove_protocol::SandboxId;

use crate::clock::from_millisecond;
use crate::sandbox::{Sandbox, State};
use crate::store::Dialect;

/// The most entries: a kilobyte each.
const MOST: usize = 4096;

#[derive(Debug)]
pub(in crate::store) struct Recent {
    dialect: Dialect,
    written: Mutex<HashMap<SandboxId, Sandbox>>,
}

impl Recent {
    pub(in crate::store) fn new(dialect: Dialect) -> Self {
        Recent { dialect, written: Mutex::default() }
    }

    pub(super) fn get(&self, id: &SandboxId) -> Option<Sandbox> {
        self.written.lock().expect("no panic while held").get(id).cloned()
    }

    /// Called after the commit, by the holder of the connection.
    pub(in crate::store) fn put(&self, sandbox: &Sandbox) {
        if self.dialect != Dialect::Sqlite || sandbox.state == State::Destroyed {
            return;
        }
        let mut written = self.written.lock().expect("no panic while held");
        if written.len() >= MOST {
            written.clear();
        }
        written.insert(sandbox.id.clone(), sandbox.clone());
    }

    /// Called before a write.
    pub(in crate::store) fn forget(&self, id: &SandboxId) {
        self.written.lock().expect("no panic while held").remove(id);
    }

    /// Called after activity was written; never moves a time back.
    pub(super) fn touch(&self, id: &SandboxId, at: i64) {
        if let Some(sandbox) = self.written.lock().expect("no panic while held").get_mut(id) {
            sandbox.last_activity_at = sandbox.last_activity_at.max(from_millisecond(at));
        }
    }
}
