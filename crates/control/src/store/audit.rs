//! Who changed what, in the store.

use sqlx::Row;

use super::Store;
use crate::Error;
use crate::audit::Entry;
use crate::clock::from_millisecond;

pub(super) async fn insert<'e>(
    executor: impl sqlx::Executor<'e, Database = sqlx::Any>,
    entry: &Entry,
) -> Result<(), Error> {
    const SQL: &str =
        "INSERT INTO audit_entries (organisation, api_key, action, subject, at) VALUES ($1, $2, $3, $4, $5)";
    sqlx::query(SQL)
        .bind(&entry.organisation)
        .bind(&entry.key)
        .bind(&entry.action)
        .bind(&entry.subject)
        .bind(entry.at.as_millisecond())
        .execute(executor)
        .await?;
    Ok(())
}

impl Store {
    /// By itself; a change of a sandbox takes its entry along in its own transaction.
    pub async fn add_audit(&self, entry: &Entry) -> Result<(), Error> {
        insert(&self.writes, entry).await
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
