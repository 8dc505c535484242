//! A sandbox's row for the first time, and the idempotency key that it was asked for with.

use super::{due_at, held_name, insert_labels};
use crate::Error;
use crate::audit::Entry;
use crate::sandbox::Sandbox;
use crate::store::change::{Change, Lasting, Statement};
use crate::store::{Store, Written, audit, is_unique_violation, to_body};

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
        let row = insert_row(sandbox)?;
        let change = match idempotency_key {
            Some(key) => Change::new(claim_idempotency_key(sandbox, key)).with([row]),
            None => Change::new(row),
        };
        // Nobody is told of it before its next state is written, and that is synced.
        let change = change.with(insert_labels(sandbox)).with(asked.map(audit::insert)).lasting(Lasting::Soon);
        match (self.write(change, Some(sandbox)).await, idempotency_key) {
            (Ok(Written::Done), _) => Ok(Inserted::New),
            (Ok(Written::Overtaken), Some(key)) => {
                // The caller is told of what another has written.
                self.sync().await?;
                let earlier = self.subject_of_key(&sandbox.organisation, key).await?;
                let gone =
                    || Error::Conflict(format!("the request with Idempotency-Key {key:?} just ended; try again"));
                earlier.map(Inserted::Repeated).ok_or_else(gone)
            }
            (Ok(Written::Overtaken), None) => Err(Error::internal("store: an insert that changed nothing")),
            (Err(error), _) if is_unique_violation(&error) => Ok(Inserted::NameTaken),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// The sandbox that an idempotency key was used for.
    pub(super) async fn subject_of_key(&self, organisation: &str, key: &str) -> Result<Option<String>, Error> {
        const SQL: &str = "SELECT subject FROM idempotency_keys WHERE organisation = $1 AND idempotency_key = $2";
        Ok(sqlx::query_scalar(SQL).bind(organisation).bind(key).fetch_optional(&self.reads).await?)
    }

    /// Takes a key from a sandbox of which nobody was told, so that the same request makes another.
    pub async fn release_idempotency_key(&self, organisation: &str, key: &str, subject: &str) -> Result<(), Error> {
        const SQL: &str =
            "DELETE FROM idempotency_keys WHERE organisation = $1 AND idempotency_key = $2 AND subject = $3";
        self.execute(Statement::other(SQL, [organisation.into(), key.into(), subject.into()])).await?;
        Ok(())
    }
}

fn insert_row(sandbox: &Sandbox) -> Result<Statement, Error> {
    let values = [
        sandbox.id.as_str().into(),
        sandbox.organisation.as_str().into(),
        held_name(sandbox).into(),
        sandbox.template.as_str().into(),
        sandbox.owner.as_deref().into(),
        sandbox.server.as_str().into(),
        sandbox.state.as_str().into(),
        sandbox.pool.as_deref().into(),
        sandbox.generation.into(),
        sandbox.created_at.as_millisecond().into(),
        sandbox.last_activity_at.as_millisecond().into(),
        due_at(sandbox).into(),
        to_body(sandbox)?.into(),
    ];
    const COLUMNS: &str = "id, organisation, name, template, owner, server, state, pool, generation, created_at, \
         last_activity_at, due_at, body";
    Ok(Statement::insert("sandboxes", COLUMNS, values))
}

/// Changes nothing where the key was used before.
fn claim_idempotency_key(sandbox: &Sandbox, key: &str) -> Statement {
    const SQL: &str = "INSERT INTO idempotency_keys (organisation, idempotency_key, subject, created_at) \
         VALUES ($1, $2, $3, $4) ON CONFLICT (organisation, idempotency_key) DO NOTHING";
    Statement::other(SQL, key_values(sandbox, key))
}

/// Fails where the key was used before.
pub(super) fn insert_idempotency_key(sandbox: &Sandbox, key: &str) -> Statement {
    const COLUMNS: &str = "organisation, idempotency_key, subject, created_at";
    Statement::insert("idempotency_keys", COLUMNS, key_values(sandbox, key))
}

fn key_values(sandbox: &Sandbox, key: &str) -> [crate::store::change::Value; 4] {
    let created = sandbox.created_at.as_millisecond();
    [sandbox.organisation.as_str().into(), key.into(), sandbox.id.as_str().into(), created.into()]
}
