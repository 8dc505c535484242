//! Members of warm pools: rows that no caller sees until they are handed out.

use super::insert::{Idempotency, insert_idempotency_key};
use super::{Along, COLUMNS, due_at, held_name, insert_labels};
use crate::Error;
use crate::sandbox::Sandbox;
use crate::store::change::{Change, Statement};
use crate::store::sql::Sql;
use crate::store::{Store, Written, is_unique_violation, to_body};

/// The result of taking a member from its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Done,
    Overtaken,
    NameTaken,
    /// The idempotency key was used before.
    KeyUsed,
}

impl Store {
    /// Gives a pool's member to its new owner.
    pub async fn take_pooled(
        &self,
        sandbox: &mut Sandbox,
        repeatable: Option<Idempotency<'_>>,
        along: Along<'_>,
    ) -> Result<Taken, Error> {
        const SQL: &str = "UPDATE sandboxes SET name = $1, owner = $2, pool = NULL, generation = $3, created_at = $4, \
             last_activity_at = $4, due_at = $5, body = $6 WHERE id = $7 AND generation = $8 AND pool IS NOT NULL";
        let values = [
            held_name(sandbox).into(),
            sandbox.owner.as_deref().into(),
            (sandbox.generation + 1).into(),
            sandbox.created_at.as_millisecond().into(),
            due_at(sandbox).into(),
            to_body(sandbox)?.into(),
            sandbox.id.as_str().into(),
            sandbox.generation.into(),
        ];
        let change = Change::new(Statement::other(SQL, values))
            .with(repeatable.map(|repeatable| insert_idempotency_key(sandbox, repeatable)))
            .with(insert_labels(sandbox))
            .with(along.insert(self.dialect)?);
        match self.write_raised(change, sandbox).await {
            Ok(Written::Done) => Ok(Taken::Done),
            Ok(Written::Overtaken) => Ok(Taken::Overtaken),
            Err(error) if is_unique_violation(&error) => match repeatable {
                Some(Idempotency { key, .. }) if self.subject_of_key(&sandbox.organisation, key).await?.is_some() => {
                    Ok(Taken::KeyUsed)
                }
                _ => Ok(Taken::NameTaken),
            },
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
