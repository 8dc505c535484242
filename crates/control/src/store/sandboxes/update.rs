//! Changes of a sandbox's row, each only where its generation is still the one that was read.

use cove_engine::SandboxId;
use sqlx::Any;

use super::{Along, due_at, held_name, insert_labels};
use crate::Error;
use crate::event::NewEvent;
use crate::sandbox::Sandbox;
use crate::store::{Store, Written, is_unique_violation, to_body};

impl Store {
    /// Writes the sandbox where its generation is still the one that was read, and raises it.
    pub async fn update_sandbox(&self, sandbox: &mut Sandbox, event: Option<&NewEvent>) -> Result<Written, Error> {
        self.update_sandbox_along(sandbox, Along { event, ..Along::default() }).await
    }

    /// As [`Store::update_sandbox`], with all that belongs to the change.
    pub async fn update_sandbox_along(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Written, Error> {
        let before = sandbox.generation;
        sandbox.generation = before + 1;
        let written = self.write_row(sandbox, before, along).await;
        // Whoever tries again tries from what is in the store.
        if !matches!(written, Ok(Written::Done)) {
            sandbox.generation = before;
        }
        written
    }

    async fn write_row(&self, sandbox: &Sandbox, before: i64, along: Along<'_>) -> Result<Written, Error> {
        if along.is_nothing() {
            return update_row(&self.writes, sandbox, before).await;
        }
        let mut transaction = self.writes.begin().await?;
        if update_row(&mut *transaction, sandbox, before).await? == Written::Overtaken {
            transaction.rollback().await?;
            return Ok(Written::Overtaken);
        }
        along.insert(&mut transaction, self.dialect).await?;
        transaction.commit().await?;
        Ok(Written::Done)
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
        along.insert(&mut transaction, self.dialect).await?;
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
                along.insert(&mut transaction, self.dialect).await?;
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
