//! How a change is carried out, and how it is known to have been.
//!
//! SQLite ends a transaction by itself when its disk is full or fails, and what counts on the transaction being open
//! goes wrong from then on: a savepoint that is taken for a transaction, a statement that is never committed. So every
//! write says `BEGIN IMMEDIATE`, which fails inside a transaction, and `COMMIT`, which fails outside of one; and a
//! connection on which anything else went wrong than a constraint is closed and never used again. Closing rolls back.

use futures::TryStreamExt as _;
use sqlx::pool::PoolConnection;
use sqlx::{Any, AssertSqlSafe, Connection as _, Executor as _};

use super::change::{Change, Lasting, Rule, Statement, Value, bind};
use super::{Dialect, STATEMENT, Store, Written};
use crate::Error;
use crate::sandbox::Sandbox;

/// Changes of more statements than this have a text that hardly comes again: no plan is kept for it.
const REPEATED: usize = 24;

impl Store {
    /// Carries the change out. `becomes` is the sandbox that it is about, as it is afterwards.
    pub(super) async fn write(&self, change: Change, becomes: Option<&Sandbox>) -> Result<Written, sqlx::Error> {
        let decides = change.rule == Rule::FirstDecides;
        let rows = self.carry_out(change, becomes).await?;
        Ok(if rows > 0 || !decides { Written::Done } else { Written::Overtaken })
    }

    /// One statement that is on the disk when this returns. Returns how many rows it changed.
    pub(super) async fn execute(&self, statement: Statement) -> Result<u64, Error> {
        Ok(self.carry_out(statement.into(), None).await?)
    }

    /// One statement that may be lost in a power cut.
    pub(super) async fn execute_soon(&self, statement: Statement) -> Result<u64, Error> {
        Ok(self.carry_out(Change::new(statement).lasting(Lasting::Soon), None).await?)
    }

    /// Returns how many rows the first statement changed.
    pub(super) async fn carry_out(&self, change: Change, becomes: Option<&Sandbox>) -> Result<u64, sqlx::Error> {
        change.check()?;
        if change.statements.is_empty() {
            return Ok(0);
        }
        match self.dialect {
            Dialect::Sqlite => {
                let lasting = change.lasting;
                let rows = self.write_to_sqlite(change, becomes).await?;
                match lasting {
                    Lasting::Synced => self.sync().await?,
                    Lasting::Behind => self.sync_behind(),
                    Lasting::Soon => {}
                }
                Ok(rows)
            }
            Dialect::Postgres => {
                let written = tokio::time::timeout(STATEMENT, self.write_to_postgres(change));
                written.await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
            }
        }
    }

    /// Returns when all that was committed before is on the disk. PostgreSQL's commits are.
    pub(crate) async fn sync(&self) -> Result<(), sqlx::Error> {
        let Some(syncer) = &self.syncer else { return Ok(()) };
        if syncer.has_failed() {
            // Nobody else writes meanwhile. Dropped with an error, the connection is closed.
            let mut held = Held::new(self.writes.acquire().await?);
            held.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").await?;
            syncer.begins_anew()?;
            held.give_back();
        }
        Ok(syncer.sync().await?)
    }

    /// Begins a sync that nobody waits for.
    fn sync_behind(&self) {
        let Some(syncer) = self.syncer.clone() else { return };
        tokio::spawn(async move {
            if let Err(error) = syncer.sync().await {
                // Whoever waits for the next one is told.
                tracing::warn!(%error, "sync the database behind a change");
            }
        });
    }

    async fn write_to_postgres(&self, change: Change) -> Result<u64, sqlx::Error> {
        let mut held = Held::new(self.writes.acquire().await?);
        let result = in_transaction(held.connection(), change).await;
        if result.as_ref().err().is_none_or(is_constraint) {
            held.give_back();
        }
        result
    }

    async fn write_to_sqlite(&self, change: Change, becomes: Option<&Sandbox>) -> Result<u64, sqlx::Error> {
        let decides = change.rule == Rule::FirstDecides;
        let persistent = change.statements.len() <= REPEATED;
        let texts = change.texts();
        let mut held = Held::new(self.writes.acquire().await?);
        // Nobody else writes now, and whoever waits for this may go away at any moment: nothing is held until it is done.
        if let Some(sandbox) = becomes {
            self.recent.forget(&sandbox.id);
        }
        let result = at_once(held.connection(), texts, decides, persistent).await;
        let in_order = match &result {
            Ok(_) => true,
            // Where there is nothing to roll back, SQLite did it: it was no mere constraint.
            Err(error) => is_constraint(error) && held.connection().execute("ROLLBACK").await.is_ok(),
        };
        if let (Ok(rows), Some(sandbox)) = (&result, becomes)
            && (*rows > 0 || !decides)
        {
            self.recent.put(sandbox);
        }
        if in_order {
            held.give_back();
        }
        result
    }
}

/// Returns how many rows the first statement changed. `Ok` means that a transaction was open and is committed.
async fn at_once(
    connection: &mut sqlx::AnyConnection,
    texts: Vec<(String, Vec<Value>)>,
    decides: bool,
    persistent: bool,
) -> Result<u64, sqlx::Error> {
    let mut first = None;
    let last = texts.len() - 1;
    for (place, (text, values)) in texts.into_iter().enumerate() {
        let query = bind(sqlx::query(AssertSqlSafe(text)), values).persistent(persistent);
        let results = connection.fetch_many(query);
        let counts = results.try_filter_map(async |result| Ok(result.left().map(|done| done.rows_affected())));
        let counts: Vec<u64> = counts.try_collect().await?;
        // BEGIN is the first of the first text.
        let rows = *first.get_or_insert_with(|| counts.get(1).copied().unwrap_or(0));
        if place < last && decides && rows == 0 {
            connection.execute("COMMIT").await?;
            return Ok(0);
        }
    }
    Ok(first.unwrap_or(0))
}

/// As [`at_once`], statement by statement.
async fn in_transaction(connection: &mut sqlx::AnyConnection, change: Change) -> Result<u64, sqlx::Error> {
    if change.is_alone() {
        let alone = change.statements.into_iter().next().expect("one");
        return alone.execute(connection).await;
    }
    in_open_transaction(connection.begin().await?, change).await
}

/// Its statements one by one, and the commit.
pub(super) async fn in_open_transaction(
    mut transaction: sqlx::Transaction<'_, Any>,
    change: Change,
) -> Result<u64, sqlx::Error> {
    let mut first = None;
    for statement in change.statements {
        let rows = statement.execute(&mut *transaction).await?;
        if *first.get_or_insert(rows) == 0 && change.rule == Rule::FirstDecides {
            transaction.rollback().await?;
            return Ok(0);
        }
    }
    transaction.commit().await?;
    Ok(first.unwrap_or(0))
}

/// Whether a statement failed by a rule of the tables: the one error after which a connection is as good as before.
pub(super) fn is_constraint(error: &sqlx::Error) -> bool {
    use sqlx::error::ErrorKind;
    matches!(error, sqlx::Error::Database(database) if !matches!(database.kind(), ErrorKind::Other))
}

/// A connection on which a transaction may be open. Dropped before it is known to be over, because nobody waits any more
/// or because the database is in trouble, it is closed, which rolls back: the next user must not find it.
pub(super) struct Held(Option<PoolConnection<Any>>);

impl Held {
    pub(super) fn new(connection: PoolConnection<Any>) -> Self {
        Held(Some(connection))
    }

    pub(super) fn connection(&mut self) -> &mut sqlx::AnyConnection {
        self.0.as_mut().expect("held until it is given back")
    }

    pub(super) fn give_back(&mut self) {
        self.0 = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    use super::*;

    fn organisation(id: &str) -> Statement {
        Statement::insert("organisations", "id, created_at, body", [id.into(), 1.into(), "{}".into()])
    }

    async fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::sqlite(&directory.path().join("cove.db")).await.unwrap();
        (directory, store)
    }

    async fn count(store: &Store) -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM organisations").fetch_one(&store.writes).await.unwrap()
    }

    #[tokio::test]
    async fn a_change_happens_whole_or_not_at_all() {
        let (_directory, store) = store().await;
        let two = Change::new(organisation("a")).with([organisation("b")]);
        assert_eq!(store.write(two, None).await.unwrap(), Written::Done);
        let taken = Change::new(organisation("c")).with([organisation("a")]);
        assert!(store.write(taken, None).await.is_err());
        let nothing = Statement::other("UPDATE organisations SET body = $1 WHERE id = $2", ["{}".into(), "x".into()]);
        let overtaken = Change::new(nothing).with([organisation("d"), organisation("e")]);
        assert_eq!(store.write(overtaken, None).await.unwrap(), Written::Overtaken);
        assert_eq!(count(&store).await, 2);
    }

    #[tokio::test]
    async fn a_change_that_is_synced_behind_its_writer_does_not_keep_it() {
        let (_directory, store) = store().await;
        let syncer = store.syncer.clone().expect("SQLite has one");
        let disk = syncer.hold().await;
        let behind = Change::new(organisation("a")).lasting(Lasting::Behind);
        assert_eq!(store.write(behind, None).await.unwrap(), Written::Done);
        let mut synced = Box::pin(store.write(Change::new(organisation("b")), None));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(100), &mut synced).await.is_err());
        drop(disk);
        assert_eq!(synced.await.unwrap(), Written::Done);
    }

    #[tokio::test]
    async fn after_a_failed_sync_nothing_counts_until_the_log_has_begun_anew() {
        let (directory, store) = store().await;
        let log = || std::fs::metadata(directory.path().join("cove.db-wal")).map_or(0, |log| log.len());
        let syncer = store.syncer.clone().expect("SQLite has one");
        assert_eq!(store.write(organisation("a").into(), None).await.unwrap(), Written::Done);
        assert!(log() > 0);
        syncer.fail();
        assert!(syncer.sync().await.is_err(), "the kernel would say yes");
        assert_eq!(store.write(organisation("b").into(), None).await.unwrap(), Written::Done);
        assert_eq!((log(), syncer.has_failed()), (0, false), "all of it is in the database");
        assert_eq!(store.write(organisation("c").into(), None).await.unwrap(), Written::Done);
        assert_eq!(count(&store).await, 3);
    }

    #[tokio::test]
    async fn a_change_that_nobody_waits_for_leaves_no_transaction_open() {
        let (_directory, store) = store().await;
        for steps in 0..20 {
            let name = |part: &str| format!("{part}{steps}");
            let change = Change::new(organisation(&name("a"))).with([organisation(&name("b"))]);
            let mut writing = Box::pin(store.write(change, None));
            for _ in 0..steps {
                if writing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(writing);
            // Whatever became of it, the next finds a connection without a transaction, and both rows or none.
            let next = Change::new(organisation(&name("c"))).with([organisation(&name("d"))]);
            assert_eq!(store.write(next, None).await.unwrap(), Written::Done);
            assert_eq!(count(&store).await % 2, 0, "after {steps} steps");
        }
    }
}
