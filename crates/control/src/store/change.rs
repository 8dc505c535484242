//! Several statements that are one change: all of them or none.
//!
//! PostgreSQL gets them one by one, in a transaction. To SQLite each would be a message to the connection's thread and
//! back, and the beginning and the end one more, which takes longer than the writing: there they go as one text,
//! numbered through, and every statement asks whether the one before it changed anything.

use futures::TryStreamExt as _;
use sqlx::any::AnyArguments;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Executor};

use super::{Dialect, Store, Written};
use crate::sandbox::Sandbox;

#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(Option<String>),
    Number(Option<i64>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(Some(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(Some(text))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Value::Text(text.map(ToOwned::to_owned))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Number(Some(number))
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        Value::Number(number)
    }
}

/// One statement and what is bound to it. Texts are ours alone and name their values `$1`, `$2` and so on.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    text: Text,
    values: Vec<Value>,
}

#[derive(Debug, Clone)]
enum Text {
    Insert { table: &'static str, columns: &'static str },
    Other(&'static str),
}

impl Statement {
    /// A row; one value for each of the columns.
    pub(super) fn insert<const N: usize>(table: &'static str, columns: &'static str, values: [Value; N]) -> Self {
        Statement { text: Text::Insert { table, columns }, values: values.into() }
    }

    pub(super) fn other<const N: usize>(text: &'static str, values: [Value; N]) -> Self {
        Statement { text: Text::Other(text), values: values.into() }
    }

    /// By itself, or in a transaction of the caller's. Says how many rows it changed.
    pub(super) async fn execute<'e>(self, executor: impl Executor<'e, Database = Any>) -> Result<u64, sqlx::Error> {
        let mut text = String::new();
        self.write(&mut text, 0, Asks::Nothing);
        let query = bind(sqlx::query(AssertSqlSafe(text)), self.values);
        Ok(query.execute(executor).await?.rows_affected())
    }

    /// Its text, with values numbered from after `before`.
    fn write(&self, to: &mut String, before: usize, asks: Asks) {
        use std::fmt::Write as _;
        // Writing to a string does not fail.
        let _written = match &self.text {
            Text::Insert { table, columns } => {
                let numbers: Vec<String> =
                    (1..=self.values.len()).map(|number| format!("${}", before + number)).collect();
                let numbers = numbers.join(", ");
                match asks {
                    Asks::Nothing => write!(to, "INSERT INTO {table} ({columns}) VALUES ({numbers})"),
                    Asks::TheOneBefore => {
                        write!(to, "INSERT INTO {table} ({columns}) SELECT {numbers} WHERE changes() > 0")
                    }
                }
            }
            Text::Other(text) => {
                debug_assert!(before == 0, "only inserts follow");
                write!(to, "{text}")
            }
        };
    }
}

/// Whether a statement is carried out in any case.
#[derive(Clone, Copy)]
enum Asks {
    Nothing,
    TheOneBefore,
}

fn bind(query: Query<'_, Any, AnyArguments>, values: Vec<Value>) -> Query<'_, Any, AnyArguments> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

/// The first statement decides: where it changes no row, nothing else of the change happens.
#[derive(Debug, Clone)]
pub(super) struct Change {
    first: Statement,
    then: Vec<Statement>,
}

impl Change {
    pub(super) fn new(first: Statement) -> Self {
        Change { first, then: Vec::new() }
    }

    /// Rows that go with it.
    pub(super) fn with(mut self, statements: impl IntoIterator<Item = Statement>) -> Self {
        self.then.extend(statements);
        self
    }

    /// One text; a statement alone is a transaction by itself.
    fn at_once(self) -> (String, Vec<Value>) {
        let alone = self.is_alone();
        let mut text = String::from(if alone { "" } else { "BEGIN IMMEDIATE; " });
        self.first.write(&mut text, 0, Asks::Nothing);
        let mut values = self.first.values;
        for statement in self.then {
            text.push_str("; ");
            statement.write(&mut text, values.len(), Asks::TheOneBefore);
            values.extend(statement.values);
        }
        if !alone {
            text.push_str("; COMMIT");
        }
        (text, values)
    }

    fn is_alone(&self) -> bool {
        self.then.is_empty()
    }
}

impl Store {
    /// Carries the change out. `becomes` is the sandbox that it is about, as it is afterwards.
    pub(super) async fn write(&self, change: Change, becomes: Option<&Sandbox>) -> Result<Written, sqlx::Error> {
        match self.dialect {
            Dialect::Sqlite => self.write_at_once(change, becomes).await,
            Dialect::Postgres if change.is_alone() => Ok(written(change.first.execute(&self.writes).await?)),
            Dialect::Postgres => self.write_one_by_one(change).await,
        }
    }

    async fn write_one_by_one(&self, change: Change) -> Result<Written, sqlx::Error> {
        let mut transaction = self.writes.begin().await?;
        // What fails, or changes nothing, is rolled back when the transaction is dropped.
        if change.first.execute(&mut *transaction).await? == 0 {
            return Ok(Written::Overtaken);
        }
        for statement in change.then {
            statement.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(Written::Done)
    }

    async fn write_at_once(&self, change: Change, becomes: Option<&Sandbox>) -> Result<Written, sqlx::Error> {
        // BEGIN is the first of several.
        let deciding = if change.is_alone() { 0 } else { 1 };
        let (text, values) = change.at_once();
        let mut held = Held(Some(self.writes.acquire().await?));
        // Nobody else writes now, and whoever waits for this may go away at any moment: nothing is held until it is done.
        if let Some(sandbox) = becomes {
            self.recent.forget(&sandbox.id);
        }
        let counts: Result<Vec<u64>, sqlx::Error> = async {
            let query = bind(sqlx::query(AssertSqlSafe(text)), values);
            let results = held.connection().fetch_many(query);
            let counts = results.try_filter_map(async |result| Ok(result.left().map(|done| done.rows_affected())));
            counts.try_collect().await
        }
        .await;
        let result = counts.map(|counts| written(counts.get(deciding).copied().unwrap_or(0)));
        if let (Ok(Written::Done), Some(sandbox)) = (&result, becomes) {
            self.recent.put(sandbox);
        }
        if result.is_ok() || held.connection().execute("ROLLBACK").await.is_ok() {
            held.give_back();
        }
        result
    }
}

fn written(rows: u64) -> Written {
    if rows > 0 { Written::Done } else { Written::Overtaken }
}

/// A connection on which a transaction may be open. Dropped before it is known to be over, because nobody waits any more
/// or because the database is in trouble, it is closed, which rolls back: the next user must not find it.
struct Held(Option<PoolConnection<Any>>);

impl Held {
    fn connection(&mut self) -> &mut sqlx::AnyConnection {
        self.0.as_mut().expect("held until it is given back")
    }

    fn give_back(&mut self) {
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
