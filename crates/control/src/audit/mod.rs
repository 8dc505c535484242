//! Who changed what. A sandbox's entry is written in the transaction of the change itself, all others before the caller
//! is answered: so the log has every acknowledged change, however the server ends.

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
    /// The object that was changed.
    pub subject: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

impl App {
    pub(crate) fn audit_entry(&self, caller: &Caller, action: &str, subject: &str) -> Entry {
        Entry {
            seq: 0,
            organisation: caller.organisation.clone(),
            key: caller.key.clone(),
            action: action.to_owned(),
            subject: subject.to_owned(),
            at: self.now(),
        }
    }

    pub(crate) async fn audit(&self, caller: &Caller, action: &str, subject: &str) -> Result<(), Error> {
        self.store().add_audit(&self.audit_entry(caller, action, subject)).await
    }

    /// Newest first.
    pub async fn list_audit(&self, caller: &Caller, before: Option<i64>, limit: u32) -> Result<Vec<Entry>, Error> {
        caller.require(Scope::Admin)?;
        self.store().audit(&caller.organisation, before, limit).await
    }
}
