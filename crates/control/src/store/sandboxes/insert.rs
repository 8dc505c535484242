//! A sandbox's row for the first time, and the idempotency key that it was asked for with.

use sqlx::{Any, Transaction};

use super::{due_at, held_name, insert_labels};
use crate::Error;
use crate::audit::Entry;
use crate::sandbox::Sandbox;
use crate::store::{Store, is_unique_violation, to_body};

/// What came of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    New,
    NameTaken,
    /// The idempotency key was used before, for this sandbox.
    Repeated(String),
}

impl Store {
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
            crate::store::audit::insert(&mut *transaction, entry).await?;
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

pub(super) async fn insert_idempotency_key(
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
