//! Members of warm pools: rows that nobody sees until they are somebody's.

use super::insert::insert_idempotency_key;
use super::{Along, COLUMNS, due_at, held_name, insert_labels};
use crate::Error;
use crate::sandbox::Sandbox;
use crate::store::sql::Sql;
use crate::store::{Store, is_unique_violation, to_body};

/// What came of taking a member out of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Done,
    Overtaken,
    NameTaken,
    /// The idempotency key was used before.
    KeyUsed,
}

impl Store {
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
                along.insert(&mut transaction, self.dialect).await?;
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
}
