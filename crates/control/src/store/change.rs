//! Several statements that are one change: all of them or none.
//!
//! PostgreSQL gets them one by one, in a transaction. To SQLite each would be a message to the connection's thread and
//! back, and the beginning and the end one more, which takes longer than the writing: there they go as one text,
//! numbered through, and every statement asks whether the one before it changed anything.

use futures::TryStreamExt as _;
use sqlx::any::AnyArguments;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Either, Executor};

use super::{Dialect, Store, Written};

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

    fn at_once(self) -> (String, Vec<Value>) {
        let mut text = String::from("BEGIN IMMEDIATE; ");
        self.first.write(&mut text, 0, Asks::Nothing);
        let mut values = self.first.values;
        for statement in self.then {
            text.push_str("; ");
            statement.write(&mut text, values.len(), Asks::TheOneBefore);
            values.extend(statement.values);
        }
        text.push_str("; COMMIT");
        (text, values)
    }
}

impl Store {
    pub(super) async fn write(&self, change: Change) -> Result<Written, sqlx::Error> {
        if change.then.is_empty() {
            // One statement is a transaction by itself.
            return Ok(written(change.first.execute(&self.writes).await?));
        }
        match self.dialect {
            Dialect::Sqlite => self.write_at_once(change).await,
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

    async fn write_at_once(&self, change: Change) -> Result<Written, sqlx::Error> {
        let (text, values) = change.at_once();
        let mut held = Held(Some(self.writes.acquire().await?));
        let result = async {
            let connection = held.connection();
            let query = bind(sqlx::query(AssertSqlSafe(text)), values);
            let mut counts = Vec::new();
            let mut results = connection.fetch_many(query);
            while let Some(result) = results.try_next().await? {
                if let Either::Left(done) = result {
                    counts.push(done.rows_affected());
                }
            }
            // BEGIN is the first of them.
            Ok(written(counts.get(1).copied().unwrap_or(0)))
        }
        .await;
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
