//! Sandboxes in the store.

use cove_engine::SandboxId;
use sqlx::any::AnyRow;
use sqlx::{Any, Row, Transaction};

use super::{Store, Written, from_body, is_unique_violation, to_body};
use crate::Error;
use crate::audit::Entry;
use crate::clock::from_millisecond;
use crate::event::NewEvent;
use crate::sandbox::timers;
use crate::sandbox::{Filter, Listed, Order, Page, Sandbox, State};
use crate::store::usage::Span;

/// What came of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    New,
    NameTaken,
    /// The idempotency key was used before, for this sandbox.
    Repeated(String),
}

/// What came of taking a member out of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Done,
    Overtaken,
    NameTaken,
    /// The idempotency key was used before.
    KeyUsed,
}

/// What is written with a sandbox, in the same transaction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Along<'a> {
    pub event: Option<&'a NewEvent>,
    /// A finished span of use.
    pub span: Option<&'a Span>,
    /// Who asked for it.
    pub audit: Option<&'a Entry>,
}

impl Along<'_> {
    fn is_nothing(&self) -> bool {
        self.event.is_none() && self.span.is_none() && self.audit.is_none()
    }

    async fn insert(&self, transaction: &mut Transaction<'static, Any>) -> Result<(), Error> {
        if let Some(event) = self.event {
            super::events::insert(transaction, event).await?;
        }
        if let Some(span) = self.span {
            super::usage::insert(transaction, span).await?;
        }
        if let Some(entry) = self.audit {
            super::audit::insert(&mut **transaction, entry).await?;
        }
        Ok(())
    }
}

const COLUMNS: &str = "organisation, generation, last_activity_at, body";

fn read(row: &AnyRow) -> Result<Sandbox, Error> {
    let mut sandbox: Sandbox = from_body(&row.try_get::<String, _>("body")?)?;
    sandbox.organisation = row.try_get("organisation")?;
    sandbox.generation = row.try_get("generation")?;
    sandbox.last_activity_at = from_millisecond(row.try_get("last_activity_at")?);
    Ok(sandbox)
}

/// A name is held only by what is there.
fn held_name(sandbox: &Sandbox) -> Option<&str> {
    match sandbox.state {
        State::Destroying | State::Destroyed => None,
        _ => sandbox.name.as_deref(),
    }
}

fn due_at(sandbox: &Sandbox) -> Option<i64> {
    timers::next(sandbox).map(|(at, _)| at.as_millisecond())
}

impl Store {
    pub async fn sandbox_by_id(&self, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
        const SQL: &str = "SELECT organisation, generation, last_activity_at, body FROM sandboxes WHERE id = $1";
        let row = sqlx::query(SQL).bind(id.as_str()).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    pub async fn sandbox_by_name(&self, organisation: &str, name: &str) -> Result<Option<Sandbox>, Error> {
        const SQL: &str = "SELECT organisation, generation, last_activity_at, body FROM sandboxes \
             WHERE organisation = $1 AND name = $2";
        let row = sqlx::query(SQL).bind(organisation).bind(name).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// By id first, then by name; another organisation's is not there.
    pub async fn sandbox(&self, organisation: &str, id_or_name: &str) -> Result<Option<Sandbox>, Error> {
        if let Ok(id) = id_or_name.parse::<SandboxId>() {
            let found = self.sandbox_by_id(&id).await?;
            if let Some(sandbox) =
                found.filter(|sandbox| sandbox.organisation == organisation && sandbox.pool.is_none())
            {
                return Ok(Some(sandbox));
            }
        }
        self.sandbox_by_name(organisation, id_or_name).await
    }

    /// The row, its labels and its idempotency key, or none of them.
    pub async fn insert_sandbox(&self, sandbox: &Sandbox, idempotency_key: Option<&str>) -> Result<Inserted, Error> {
        self.insert_sandbox_asked(sandbox, idempotency_key, None).await
    }

    /// As [`Store::insert_sandbox`], with the note of who asked for it.
    pub async fn insert_sandbox_asked(
        &self,
        sandbox: &Sandbox,
        idempotency_key: Option<&str>,
        asked: Option<&Entry>,
    ) -> Result<Inserted, Error> {
        if idempotency_key.is_none() && sandbox.labels.is_empty() && asked.is_none() {
            // One statement is a transaction by itself.
            return match insert_row(&self.writes, sandbox).await {
                Ok(()) => Ok(Inserted::New),
                Err(error) => error.into_answer(),
            };
        }
        let mut transaction = self.writes.begin().await?;
        if let Some(key) = idempotency_key
            && insert_idempotency_key(&mut transaction, sandbox, key).await? == 0
        {
            let earlier: String = sqlx::query_scalar(
                "SELECT subject FROM idempotency_keys WHERE organisation = $1 AND idempotency_key = $2",
            )
            .bind(&sandbox.organisation)
            .bind(key)
            .fetch_one(&mut *transaction)
            .await?;
            transaction.rollback().await?;
            return Ok(Inserted::Repeated(earlier));
        }
        let inserted = insert_row(&mut *transaction, sandbox).await;
        if let Err(error) = inserted {
            transaction.rollback().await?;
            return error.into_answer();
        }
        insert_labels(&mut transaction, sandbox).await?;
        if let Some(entry) = asked {
            super::audit::insert(&mut *transaction, entry).await?;
        }
        transaction.commit().await?;
        Ok(Inserted::New)
    }

    /// Takes a key from a sandbox of which nobody was told, so that the same request makes another.
    pub async fn release_idempotency_key(&self, organisation: &str, key: &str, subject: &str) -> Result<(), Error> {
        const SQL: &str =
            "DELETE FROM idempotency_keys WHERE organisation = $1 AND idempotency_key = $2 AND subject = $3";
        sqlx::query(SQL).bind(organisation).bind(key).bind(subject).execute(&self.writes).await?;
        Ok(())
    }

    /// Writes the sandbox where its generation is still the one that was read, and raises it.
    pub async fn update_sandbox(&self, sandbox: &mut Sandbox, event: Option<&NewEvent>) -> Result<Written, Error> {
        self.update_sandbox_along(sandbox, Along { event, ..Along::default() }).await
    }

    /// As [`Store::update_sandbox`], with all that belongs to the change.
    pub async fn update_sandbox_along(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Written, Error> {
        let before = sandbox.generation;
        sandbox.generation = before + 1;
        if along.is_nothing() {
            let written = update_row(&self.writes, sandbox, before).await;
            if !matches!(written, Ok(Written::Done)) {
                sandbox.generation = before;
            }
            return written;
        }
        let mut transaction = self.writes.begin().await?;
        let written = update_row(&mut *transaction, sandbox, before).await;
        match written {
            Ok(Written::Done) => {
                along.insert(&mut transaction).await?;
                transaction.commit().await?;
            }
            _ => {
                sandbox.generation = before;
                transaction.rollback().await?;
            }
        }
        written
    }

    /// A pool's member becomes its new owner's.
    pub async fn take_pooled(
        &self,
        sandbox: &mut Sandbox,
        idempotency_key: Option<&str>,
        along: Along<'_>,
    ) -> Result<Taken, Error> {
        let before = sandbox.generation;
        let mut transaction = self.writes.begin().await?;
        if let Some(key) = idempotency_key
            && insert_idempotency_key(&mut transaction, sandbox, key).await? == 0
        {
            transaction.rollback().await?;
            return Ok(Taken::KeyUsed);
        }
        sandbox.generation = before + 1;
        const SQL: &str = "UPDATE sandboxes SET name = $1, owner = $2, pool = NULL, generation = $3, created_at = $4, \
             last_activity_at = $4, due_at = $5, body = $6 WHERE id = $7 AND generation = $8 AND pool IS NOT NULL";
        let done = sqlx::query(SQL)
            .bind(held_name(sandbox))
            .bind(sandbox.owner.as_deref())
            .bind(sandbox.generation)
            .bind(sandbox.created_at.as_millisecond())
            .bind(due_at(sandbox))
            .bind(to_body(sandbox)?)
            .bind(sandbox.id.as_str())
            .bind(before)
            .execute(&mut *transaction)
            .await;
        match done {
            Ok(done) if done.rows_affected() == 1 => {
                insert_labels(&mut transaction, sandbox).await?;
                along.insert(&mut transaction).await?;
                transaction.commit().await?;
                Ok(Taken::Done)
            }
            Ok(_) => {
                transaction.rollback().await?;
                Ok(Taken::Overtaken)
            }
            Err(error) if is_unique_violation(&error) => {
                transaction.rollback().await?;
                Ok(Taken::NameTaken)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Members of pools on one server.
    pub async fn pooled_sandboxes(&self, server: &str) -> Result<Vec<Sandbox>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE pool IS NOT NULL AND state <> 'destroyed' AND server = "
        ));
        sql.bind(server);
        self.fetch(sql).await
    }

    /// Replaces the labels as well.
    pub async fn update_labels(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Written, Error> {
        let before = sandbox.generation;
        sandbox.generation = before + 1;
        let mut transaction = self.writes.begin().await?;
        if update_row(&mut *transaction, sandbox, before).await? == Written::Overtaken {
            sandbox.generation = before;
            transaction.rollback().await?;
            return Ok(Written::Overtaken);
        }
        sqlx::query("DELETE FROM sandbox_labels WHERE sandbox = $1")
            .bind(sandbox.id.as_str())
            .execute(&mut *transaction)
            .await?;
        insert_labels(&mut transaction, sandbox).await?;
        along.insert(&mut transaction).await?;
        transaction.commit().await?;
        Ok(Written::Done)
    }

    /// Whether a name became free to take: `Ok(false)` where another bears it.
    pub async fn rename_sandbox(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Option<Written>, Error> {
        let before = sandbox.generation;
        sandbox.generation = before + 1;
        let mut transaction = self.writes.begin().await?;
        let result =
            sqlx::query("UPDATE sandboxes SET name = $1, generation = $2, body = $3 WHERE id = $4 AND generation = $5")
                .bind(held_name(sandbox))
                .bind(sandbox.generation)
                .bind(to_body(sandbox)?)
                .bind(sandbox.id.as_str())
                .bind(before)
                .execute(&mut *transaction)
                .await;
        match result {
            Ok(done) if done.rows_affected() == 1 => {
                along.insert(&mut transaction).await?;
                transaction.commit().await?;
                Ok(Some(Written::Done))
            }
            Ok(_) => {
                transaction.rollback().await?;
                sandbox.generation = before;
                Ok(Some(Written::Overtaken))
            }
            Err(error) if is_unique_violation(&error) => {
                transaction.rollback().await?;
                sandbox.generation = before;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    pub async fn list_sandboxes(
        &self,
        organisation: &str,
        filter: &Filter,
        page: &Page,
    ) -> Result<Listed<Sandbox>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes s WHERE organisation = "));
        sql.bind(organisation).push(" AND pool IS NULL");
        if filter.states.is_empty() {
            sql.push(" AND state <> 'destroyed'");
        } else {
            let states: Vec<String> = filter.states.iter().map(|state| format!("'{state}'")).collect();
            sql.push(&format!(" AND state IN ({})", states.join(", ")));
        }
        if let Some(template) = &filter.template {
            sql.push(" AND template = ").bind(template);
        }
        if let Some(owner) = &filter.owner {
            sql.push(" AND owner = ").bind(owner);
        }
        if let Some(prefix) = &filter.name_prefix {
            let pattern = prefix.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            sql.push(" AND LOWER(name) LIKE ").bind(format!("{pattern}%")).push(" ESCAPE '\\'");
        }
        for (label, value) in &filter.labels {
            sql.push(" AND EXISTS (SELECT 1 FROM sandbox_labels l WHERE l.sandbox = s.id AND l.label = ");
            sql.bind(label).push(" AND l.value = ").bind(value).push(")");
        }
        if let Some(after) = filter.created_after {
            sql.push(&format!(" AND created_at >= {}", after.as_millisecond()));
        }
        if let Some(before) = filter.created_before {
            sql.push(&format!(" AND created_at < {}", before.as_millisecond()));
        }
        let (beyond, order) = match page.order {
            Order::NewestFirst => ("<", "DESC"),
            Order::OldestFirst => (">", "ASC"),
        };
        if let Some(cursor) = &page.cursor {
            let (at, id) = parse_cursor(cursor)?;
            sql.push(&format!(" AND (created_at {beyond} {at} OR (created_at = {at} AND id {beyond} "));
            sql.bind(id).push("))");
        }
        let limit = page.limit.clamp(1, 1000) as usize;
        sql.push(&format!(" ORDER BY created_at {order}, id {order} LIMIT {}", limit + 1));
        let mut items = self.fetch(sql).await?;
        let next = (items.len() > limit).then(|| {
            items.truncate(limit);
            let last = &items[limit - 1];
            format!("{}.{}", last.created_at.as_millisecond(), last.id)
        });
        Ok(Listed { items, next })
    }

    async fn fetch(&self, sql: Sql) -> Result<Vec<Sandbox>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        rows.iter().map(read).collect()
    }

    /// Everything that is not gone on one server, for reconcile and the ledger.
    pub async fn sandboxes_of_server(&self, server: &str) -> Result<Vec<Sandbox>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes WHERE state <> 'destroyed' AND server = "));
        sql.bind(server);
        self.fetch(sql).await
    }

    /// Sandboxes with a timer that may have gone off.
    pub async fn due_sandboxes(&self, server: &str, now: i64, limit: u32) -> Result<Vec<Sandbox>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes WHERE due_at <= {now} AND server = "));
        sql.bind(server).push(&format!(" ORDER BY due_at LIMIT {limit}"));
        self.fetch(sql).await
    }

    /// Looks at its timers again at that time; no change of the sandbox itself.
    pub async fn put_off(&self, id: &SandboxId, due_at: Option<i64>) -> Result<(), Error> {
        sqlx::query("UPDATE sandboxes SET due_at = $1 WHERE id = $2")
            .bind(due_at)
            .bind(id.as_str())
            .execute(&self.writes)
            .await?;
        Ok(())
    }

    /// Activity since the last time, many sandboxes at once; never moves a time back.
    pub async fn note_activity(&self, activity: &[(SandboxId, i64)]) -> Result<(), Error> {
        let mut transaction = self.writes.begin().await?;
        for (id, at) in activity {
            sqlx::query("UPDATE sandboxes SET last_activity_at = $1 WHERE id = $2 AND last_activity_at < $1")
                .bind(*at)
                .bind(id.as_str())
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// How many each organisation has in each state.
    pub async fn count_by_organisation(&self) -> Result<Vec<(String, String, i64)>, Error> {
        let rows = sqlx::query(
            "SELECT organisation, state, COUNT(*) AS many FROM sandboxes WHERE state <> 'destroyed' \
             GROUP BY organisation, state",
        )
        .fetch_all(&self.reads)
        .await?;
        rows.iter().map(|row| Ok((row.try_get("organisation")?, row.try_get("state")?, row.try_get("many")?))).collect()
    }

    /// How many there are in each state, for the metrics.
    pub async fn count_states(&self) -> Result<Vec<(String, i64)>, Error> {
        let rows = sqlx::query(
            "SELECT state, COUNT(*) AS many FROM sandboxes WHERE state <> 'destroyed' GROUP BY state ORDER BY state",
        )
        .fetch_all(&self.reads)
        .await?;
        rows.iter().map(|row| Ok((row.try_get("state")?, row.try_get("many")?))).collect()
    }
}

/// Apart, because a taken name is an answer and no error.
enum InsertError {
    Body(Error),
    Database(sqlx::Error),
}

impl InsertError {
    fn into_answer(self) -> Result<Inserted, Error> {
        match self {
            InsertError::Database(error) if is_unique_violation(&error) => Ok(Inserted::NameTaken),
            InsertError::Database(error) => Err(error.into()),
            InsertError::Body(error) => Err(error),
        }
    }
}

async fn insert_row<'e>(
    executor: impl sqlx::Executor<'e, Database = Any>,
    sandbox: &Sandbox,
) -> Result<(), InsertError> {
    const SQL: &str = "INSERT INTO sandboxes (id, organisation, name, template, owner, server, state, pool, \
         generation, created_at, last_activity_at, due_at, body) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    sqlx::query(SQL)
        .bind(sandbox.id.as_str())
        .bind(&sandbox.organisation)
        .bind(held_name(sandbox))
        .bind(&sandbox.template)
        .bind(sandbox.owner.as_deref())
        .bind(&sandbox.server)
        .bind(sandbox.state.as_str())
        .bind(sandbox.pool.as_deref())
        .bind(sandbox.generation)
        .bind(sandbox.created_at.as_millisecond())
        .bind(sandbox.last_activity_at.as_millisecond())
        .bind(due_at(sandbox))
        .bind(to_body(sandbox).map_err(InsertError::Body)?)
        .execute(executor)
        .await
        .map_err(InsertError::Database)?;
    Ok(())
}

async fn update_row<'e>(
    executor: impl sqlx::Executor<'e, Database = Any>,
    sandbox: &Sandbox,
    before: i64,
) -> Result<Written, Error> {
    const SQL: &str = "UPDATE sandboxes SET organisation = $1, name = $2, owner = $3, server = $4, state = $5, pool = $6, \
         generation = $7, last_activity_at = $8, due_at = $9, body = $10 WHERE id = $11 AND generation = $12";
    let done = sqlx::query(SQL)
        .bind(&sandbox.organisation)
        .bind(held_name(sandbox))
        .bind(sandbox.owner.as_deref())
        .bind(&sandbox.server)
        .bind(sandbox.state.as_str())
        .bind(sandbox.pool.as_deref())
        .bind(sandbox.generation)
        .bind(sandbox.last_activity_at.as_millisecond())
        .bind(due_at(sandbox))
        .bind(to_body(sandbox)?)
        .bind(sandbox.id.as_str())
        .bind(before)
        .execute(executor)
        .await?;
    Ok(if done.rows_affected() == 1 { Written::Done } else { Written::Overtaken })
}

async fn insert_idempotency_key(
    transaction: &mut Transaction<'static, Any>,
    sandbox: &Sandbox,
    key: &str,
) -> Result<u64, Error> {
    let inserted = sqlx::query(
        "INSERT INTO idempotency_keys (organisation, idempotency_key, subject, created_at) \
         VALUES ($1, $2, $3, $4) ON CONFLICT (organisation, idempotency_key) DO NOTHING",
    )
    .bind(&sandbox.organisation)
    .bind(key)
    .bind(sandbox.id.as_str())
    .bind(sandbox.created_at.as_millisecond())
    .execute(&mut **transaction)
    .await?;
    Ok(inserted.rows_affected())
}

async fn insert_labels(transaction: &mut Transaction<'static, Any>, sandbox: &Sandbox) -> Result<(), Error> {
    for (label, value) in &sandbox.labels {
        sqlx::query("INSERT INTO sandbox_labels (sandbox, label, value) VALUES ($1, $2, $3)")
            .bind(sandbox.id.as_str())
            .bind(label)
            .bind(value)
            .execute(&mut **transaction)
            .await?;
    }
    Ok(())
}

fn parse_cursor(cursor: &str) -> Result<(i64, String), Error> {
    let parsed = cursor.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    parsed.ok_or_else(|| Error::invalid("cursor", "not one that this server gave"))
}

/// A statement that grows with its conditions. Text is ours alone; what callers sent is bound.
pub(super) struct Sql {
    pub(super) text: String,
    pub(super) binds: Vec<String>,
}

impl Sql {
    pub(super) fn new(text: String) -> Self {
        Sql { text, binds: Vec::new() }
    }

    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    pub(super) fn bind(&mut self, value: impl Into<String>) -> &mut Self {
        self.binds.push(value.into());
        self.text.push_str(&format!("${}", self.binds.len()));
        self
    }
}
