//! Several statements that are one change: all of them or none.
//!
//! PostgreSQL gets them one by one, in a transaction. To SQLite each would be a message to the connection's thread and
//! back, and the beginning and the end one more, which takes longer than the writing: there they go as one text,
//! numbered through. Where the first statement decides, every other asks whether the one before it changed anything.
//! `write` carries changes out.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Executor};

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

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        text.as_str().into()
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

    /// Executes it on a connection. Returns how many rows it changed.
    pub(super) async fn execute<'e>(self, executor: impl Executor<'e, Database = Any>) -> Result<u64, sqlx::Error> {
        let mut text = String::new();
        self.write(&mut text, 0, Asks::Nothing);
        let query = bind(sqlx::query(AssertSqlSafe(text)), self.values);
        Ok(query.execute(executor).await?.rows_affected())
    }

    fn is_insert(&self) -> bool {
        matches!(self.text, Text::Insert { .. })
    }

    fn holds_nul(&self) -> bool {
        self.values.iter().any(|value| matches!(value, Value::Text(Some(text)) if text.contains('\0')))
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
            Text::Other(text) => write!(to, "{}", renumber(text, before)),
        };
    }
}

/// The same text, with its values numbered from after `before`. No text of ours has a `$` for anything else.
fn renumber(text: &str, before: usize) -> String {
    let mut parts = text.split('$');
    let mut renumbered = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        let number: usize = part[..digits].parse().expect("values are numbered");
        renumbered.push_str(&format!("${}{}", before + number, &part[digits..]));
    }
    renumbered
}

/// Whether a statement is carried out in any case.
#[derive(Clone, Copy)]
enum Asks {
    Nothing,
    TheOneBefore,
}

pub(super) fn bind(query: Query<'_, Any, AnyArguments>, values: Vec<Value>) -> Query<'_, Any, AnyArguments> {
    values.into_iter().fold(query, |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

/// Which statements of a change are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Where the first changes no row, nothing else of the change happens.
    FirstDecides,
    All,
}

/// When a write that is committed must be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lasting {
    /// Before its writer goes on: a caller is told of it.
    #[default]
    Synced,
    /// At once, but nobody waits for it: what is on the disk already leads to the same after a power cut.
    Behind,
    /// With the next write that is synced. Nobody is told of it yet, or it is found out again after a power cut.
    Soon,
}

#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) statements: Vec<Statement>,
    pub(super) rule: Rule,
    pub(super) lasting: Lasting,
}

impl From<Statement> for Change {
    fn from(statement: Statement) -> Self {
        Change::new(statement)
    }
}

impl Change {
    /// Begins with the statement that decides.
    pub(super) fn new(first: Statement) -> Self {
        Change { statements: vec![first], rule: Rule::FirstDecides, lasting: Lasting::Synced }
    }

    /// Statements that do not depend on one another.
    pub(super) fn all(statements: Vec<Statement>) -> Self {
        Change { statements, rule: Rule::All, lasting: Lasting::Synced }
    }

    /// What goes with it.
    pub(super) fn with(mut self, statements: impl IntoIterator<Item = Statement>) -> Self {
        self.statements.extend(statements);
        self
    }

    pub(super) fn lasting(mut self, lasting: Lasting) -> Self {
        self.lasting = lasting;
        self
    }

    /// PostgreSQL has no text with a NUL, so SQLite has none either.
    pub(super) fn check(&self) -> Result<(), sqlx::Error> {
        if self.statements.iter().any(Statement::holds_nul) {
            return Err(sqlx::Error::Encode("a text holds a NUL byte".into()));
        }
        Ok(())
    }

    pub(super) fn is_alone(&self) -> bool {
        self.statements.len() == 1
    }

    /// What SQLite gets, text by text; each follows if the one before it did something. Mostly one, and two where the
    /// first statement decides about others that cannot ask.
    pub(super) fn texts(self) -> Vec<(String, Vec<Value>)> {
        let asked = self.rule == Rule::FirstDecides && self.statements.iter().skip(1).all(Statement::is_insert);
        let asks = if asked { Asks::TheOneBefore } else { Asks::Nothing };
        let mut texts = vec![(String::from("BEGIN IMMEDIATE"), Vec::new())];
        for (place, statement) in self.statements.into_iter().enumerate() {
            if place == 1 && self.rule == Rule::FirstDecides && !asked {
                texts.push(Default::default());
            }
            let (text, values) = texts.last_mut().expect("begun above");
            if !text.is_empty() {
                text.push_str("; ");
            }
            statement.write(text, values.len(), if place == 0 { Asks::Nothing } else { asks });
            values.extend(statement.values);
        }
        texts.last_mut().expect("begun above").0.push_str("; COMMIT");
        texts
    }
}
