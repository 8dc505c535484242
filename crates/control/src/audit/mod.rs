//! Who changed what. Entries are gathered and written together a moment later, so that a change costs no write for it.

use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::{App, Caller, Error, Scope};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Entry {
    /// Rises.
    pub seq: i64,
    #[serde(skip)]
    pub organisation: String,
    /// The id of the key that did it.
    pub key: String,
    /// Such as `sandbox.destroy`.
    pub action: String,
    /// The thing it was done to.
    pub subject: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

#[derive(Default)]
pub struct Audit {
    unwritten: Mutex<Vec<Entry>>,
}

impl App {
    pub(crate) fn audit(&self, caller: &Caller, action: &str, subject: &str) {
        let entry = Entry {
            seq: 0,
            organisation: caller.organisation.clone(),
            key: caller.key.clone(),
            action: action.to_owned(),
            subject: subject.to_owned(),
            at: self.now(),
        };
        self.audit_log().unwritten.lock().expect("no panic while held").push(entry);
    }

    pub(crate) async fn flush_audit(&self) -> Result<(), Error> {
        let entries = std::mem::take(&mut *self.audit_log().unwritten.lock().expect("no panic while held"));
        if entries.is_empty() { Ok(()) } else { self.store().add_audit(&entries).await }
    }

    /// Newest first.
    pub async fn list_audit(&self, caller: &Caller, before: Option<i64>, limit: u32) -> Result<Vec<Entry>, Error> {
        caller.require(Scope::Admin)?;
        self.flush_audit().await?;
        self.store().audit(&caller.organisation, before, limit).await
    }
}
