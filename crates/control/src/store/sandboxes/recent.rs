//! Sandboxes as they were last written here, so that a call to one costs no read.
//!
//! Only with SQLite, whose one server is the one who writes. An entry is made by a write alone, while its writer still has
//! the one connection that writes, so entries follow the order of the commits; while a write is under way there is
//! none, and readers ask the database.

use std::collections::HashMap;
use std::sync::Mutex;

use cove_engine::SandboxId;

use crate::clock::from_millisecond;
use crate::sandbox::{Sandbox, State};
use crate::store::Dialect;

/// Never more than this many: a kilobyte each.
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

    /// After the commit, by whoever has the connection.
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

    /// Before a write.
    pub(in crate::store) fn forget(&self, id: &SandboxId) {
        self.written.lock().expect("no panic while held").remove(id);
    }

    /// Activity was written; never moves a time back.
    pub(super) fn touch(&self, id: &SandboxId, at: i64) {
        if let Some(sandbox) = self.written.lock().expect("no panic while held").get_mut(id) {
            sandbox.last_activity_at = sandbox.last_activity_at.max(from_millisecond(at));
        }
    }
}
