//! Rows whose time is over, removed a few at a time: nobody who writes waits long, and no statement runs into its
//! deadline however much has gathered.

use super::change::{Change, Lasting, Statement};
use super::{AT_ONCE, Store};
use crate::Error;

/// What is kept for a while, by its age alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aging {
    Audit,
    Events,
    FinishedJobs,
    IdempotencyKeys,
    Samples,
    Usage,
}

impl Aging {
    /// The oldest of them that are older than `$1`; `$2` at most.
    fn removal(self) -> &'static str {
        match self {
            Aging::Audit => {
                "DELETE FROM audit_entries WHERE seq IN \
                 (SELECT seq FROM audit_entries WHERE at < $1 ORDER BY at LIMIT $2)"
            }
            Aging::Events => {
                "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE at < $1 ORDER BY at LIMIT $2)"
            }
            Aging::FinishedJobs => {
                "DELETE FROM jobs WHERE id IN \
                 (SELECT id FROM jobs WHERE finished_at < $1 ORDER BY finished_at LIMIT $2)"
            }
            Aging::IdempotencyKeys => {
                "DELETE FROM idempotency_keys WHERE (organisation, idempotency_key) IN \
                 (SELECT organisation, idempotency_key FROM idempotency_keys WHERE created_at < $1 \
                 ORDER BY created_at LIMIT $2)"
            }
            Aging::Samples => {
                "DELETE FROM samples WHERE (sandbox, at) IN \
                 (SELECT sandbox, at FROM samples WHERE at < $1 ORDER BY at LIMIT $2)"
            }
            Aging::Usage => {
                "DELETE FROM usage_spans WHERE seq IN \
                 (SELECT seq FROM usage_spans WHERE to_at < $1 ORDER BY to_at LIMIT $2)"
            }
        }
    }
}

impl Store {
    /// Removes some that are older than a time. Returns how many; fewer than [`AT_ONCE`] means that none is left.
    pub async fn remove_aged(&self, what: Aging, before: i64) -> Result<u64, Error> {
        self.execute_soon(Statement::other(what.removal(), [before.into(), (AT_ONCE as i64).into()])).await
    }

    /// Removes some sandboxes that were destroyed before a time, with all that is kept under their names. Returns how many.
    pub async fn remove_destroyed(&self, before: i64) -> Result<u64, Error> {
        const OLD: &str = "SELECT id FROM sandboxes WHERE destroyed_at < $1 AND state = 'destroyed' \
             ORDER BY destroyed_at LIMIT $2";
        const BELONGINGS: [&str; 4] = [
            "DELETE FROM sandbox_aliases WHERE sandbox = $1",
            "DELETE FROM sandbox_labels WHERE sandbox = $1",
            "DELETE FROM samples WHERE sandbox = $1",
            "DELETE FROM idempotency_keys WHERE subject = $1",
        ];
        const ROW: &str = "DELETE FROM sandboxes WHERE id = $1 AND state = 'destroyed'";
        // Five statements each.
        let some = (AT_ONCE / 5) as i64;
        let ids: Vec<String> = sqlx::query_scalar(OLD).bind(before).bind(some).fetch_all(&self.reads).await?;
        let statements = ids.iter().flat_map(|id| {
            BELONGINGS.into_iter().chain([ROW]).map(|text| Statement::other(text, [id.as_str().into()]))
        });
        self.carry_out(Change::all(statements.collect()).lasting(Lasting::Soon), None).await?;
        for id in ids.iter().filter_map(|id| id.parse().ok()) {
            self.recent.forget(&id);
        }
        Ok(ids.len() as u64)
    }
}
