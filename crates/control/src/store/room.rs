//! An organisation's maxima where several servers create at the same time: counted in the database, in the transaction
//! of the change.
//!
//! One server counts for itself (`ledger`). Where others share the database, each of them has seen only its own
//! creations of the last moments. There the change first counts the organisation's rows, by an index of those that are
//! alive. Far from a maximum that is enough; near it the servers take turns, from the count to the commit, so that the
//! last place is given only once.

use sqlx::{Any, Connection as _, Row as _, Transaction};

use super::change::Change;
use super::write::{Held, in_open_transaction, is_constraint};
use super::{Dialect, STATEMENT, Store, Written};
use crate::Error;
use crate::key::Quota;
use crate::ledger::{self, Counts};
use crate::sandbox::{Sandbox, State};

/// As many as can be under way at once on all servers together: a server launches 64 at a time.
const NEAR: u64 = 1000;

/// The room that a change needs.
#[derive(Debug, Clone, Copy)]
pub struct Room<'a> {
    pub organisation: &'a str,
    pub quota: &'a Quota,
    pub wanted: Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All of them or none, with disks of so many bytes together.
    NewSandboxes { many: u64, disk: u64 },
    /// One that needs so many bytes of disk again: it was in the archive.
    Start { disk: u64 },
}

impl Room<'_> {
    fn check(&self, counts: Counts) -> Result<(), Error> {
        match self.wanted {
            Wanted::NewSandboxes { many, disk } => ledger::check_new_ones(counts, self.quota, many, disk),
            Wanted::Start { disk } => {
                ledger::check_running(counts, self.quota).and_then(|()| ledger::check_disk(counts, self.quota, disk))
            }
        }
    }

    fn is_near(&self, counts: Counts) -> bool {
        // Whoever wants many is near sooner.
        let (many, disk) = match self.wanted {
            Wanted::NewSandboxes { many, disk } => (many.max(1), disk),
            Wanted::Start { disk } => (1, disk),
        };
        let near = |count: u64, wanted: u64, most: u64| count.saturating_add(NEAR.saturating_mul(wanted)) > most;
        near(counts.running, many, self.quota.running_sandboxes)
            || near(counts.all, many, self.quota.sandboxes)
            || self.quota.disk_bytes.is_some_and(|most| near(counts.disk, disk, most))
    }
}

impl Store {
    /// Executes the change if there is room for it, or reports which maximum is reached.
    pub(super) async fn write_within(
        &self,
        change: Change,
        becomes: Option<&Sandbox>,
        room: Option<Room<'_>>,
    ) -> Result<Result<Written, sqlx::Error>, Error> {
        let Some(room) = room.filter(|_| self.dialect == Dialect::Postgres) else {
            return Ok(self.write(change, becomes).await);
        };
        if let Err(error) = change.check() {
            return Ok(Err(error));
        }
        let mut held = Held::new(self.writes.acquire().await?);
        let work = tokio::time::timeout(STATEMENT, carry_out_within(held.connection(), change, &room));
        let result = work.await.unwrap_or(Ok(Err(sqlx::Error::PoolTimedOut)));
        let in_order = match &result {
            Ok(written) => written.as_ref().err().is_none_or(is_constraint),
            Err(error) => matches!(error, Error::Quota { .. }),
        };
        if in_order {
            held.give_back();
        }
        Ok(result?.map(|rows| if rows > 0 { Written::Done } else { Written::Overtaken }))
    }
}

/// Returns how many rows the first statement changed.
async fn carry_out_within(
    connection: &mut sqlx::AnyConnection,
    change: Change,
    room: &Room<'_>,
) -> Result<Result<u64, sqlx::Error>, Error> {
    let mut transaction = connection.begin().await?;
    let mut counts = count(&mut transaction, room.organisation).await?;
    if room.is_near(counts) {
        sqlx::query("SELECT 1 FROM pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(format!("cove quota of {}", room.organisation))
            .execute(&mut *transaction)
            .await?;
        // Counts again, with what others have committed meanwhile.
        counts = count(&mut transaction, room.organisation).await?;
    }
    if let Err(refused) = room.check(counts) {
        transaction.rollback().await?;
        return Err(refused);
    }
    Ok(in_open_transaction(transaction, change).await)
}

async fn count(transaction: &mut Transaction<'_, Any>, organisation: &str) -> Result<Counts, Error> {
    const SQL: &str = "SELECT state, COUNT(*) AS many, CAST(SUM(disk) AS BIGINT) AS disk FROM sandboxes \
         WHERE organisation = $1 AND state <> 'destroyed' GROUP BY state";
    let rows = sqlx::query(SQL).bind(organisation).fetch_all(&mut **transaction).await?;
    let mut counts = Counts::default();
    for row in rows {
        let state: String = row.try_get("state")?;
        let (many, disk): (i64, i64) = (row.try_get("many")?, row.try_get("disk")?);
        if let Some(state) = State::parse(&state) {
            counts = counts.plus(Counts::of(state, many.unsigned_abs(), disk.unsigned_abs()));
        }
    }
    Ok(counts)
}
