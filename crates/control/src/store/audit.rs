//! Who changed what, in the store.

use sqlx::Row;

use super::Store;
use super::change::Statement;
use crate::Error;
use crate::audit::Entry;
use crate::clock::from_millisecond;

pub(super) fn insert(entry: &Entry) -> Statement {
    let Entry { organisation, key, action, subject, at, .. } = entry;
    let values = [
        organisation.as_str().into(),
        key.as_str().into(),
        action.as_str().into(),
        subject.as_str().into(),
        at.as_millisecond().into(),
    ];
    Statement::insert("audit_entries", "organisation, api_key, action, subject, at", values)
}

impl Store {
    /// Writes an entry by itself; a change of a sandbox has its entry in its own transaction.
    pub async fn add_audit(&self, entry: &Entry) -> Result<(), Error> {
        self.execute(insert(entry)).await?;
        Ok(())
    }

    /// Whether there is an entry for this action on this subject.
    pub async fn is_audited(&self, action: &str, subject: &str) -> Result<bool, Error> {
        const SQL: &str = "SELECT seq FROM audit_entries WHERE action = $1 AND subject = $2 LIMIT 1";
        let row = sqlx::query(SQL).bind(action).bind(subject).fetch_optional(&self.reads).await?;
        Ok(row.is_some())
    }

    /// Newest first, older than `before` where given.
    pub async fn audit(&self, organisation: &str, before: Option<i64>, limit: u32) -> Result<Vec<Entry>, Error> {
        const SQL: &str = "SELECT seq, organisation, api_key, action, subject, at FROM audit_entries \
             WHERE organisation = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3";
        let rows = sqlx::query(SQL)
            .bind(organisation)
            .bind(before.unwrap_or(i64::MAX))
            .bind(i64::from(limit.clamp(1, 1000)))
            .fetch_all(&self.reads)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Entry {
                    seq: row.try_get("seq")?,
                    organisation: row.try_get("organisation")?,
                    key: row.try_get("api_key")?,
                    action: row.try_get("action")?,
                    subject: row.try_get("subject")?,
                    at: from_millisecond(row.try_get("at")?),
                })
            })
            .collect()
    }
}
