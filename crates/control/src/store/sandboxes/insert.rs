//! Inserts a sandbox's row, with the idempotency key of its request.

use cove_protocol::SandboxId;
use sqlx::Row as _;

use super::{disk, due_at, held_name, insert_labels};
use crate::Error;
use crate::audit::Entry;
use crate::image::User;
use crate::key::Quota;
use crate::ledger;
use crate::sandbox::Sandbox;
use crate::store::change::{Change, Lasting, Statement};
use crate::store::room::{Room, Wanted};
use crate::store::{Store, Written, audit, is_unique_violation, layers, to_body, volumes};

/// The result of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    New,
    NameTaken,
    /// The idempotency key was used before, for this sandbox.
    Repeated(String),
    /// The idempotency key was used before, for something else.
    KeyOfAnother,
}

/// A key that makes a request repeatable, and the request's fingerprint.
#[derive(Debug, Clone, Copy)]
pub struct Idempotency<'a> {
    pub key: &'a str,
    /// The same for the same request; empty where it is not compared.
    pub fingerprint: &'a str,
}

impl Store {
    /// The row, its labels and its idempotency key, or none of them.
    pub async fn insert_sandbox(&self, sandbox: &Sandbox, idempotency_key: Option<&str>) -> Result<Inserted, Error> {
        let repeatable = idempotency_key.map(|key| Idempotency { key, fingerprint: "" });
        self.insert_sandbox_asked(sandbox, repeatable, None, None).await
    }

    /// As [`Store::insert_sandbox`], with the note of who asked for it, and where it fits into the organisation's maxima.
    pub async fn insert_sandbox_asked(
        &self,
        sandbox: &Sandbox,
        repeatable: Option<Idempotency<'_>>,
        asked: Option<&Entry>,
        quota: Option<&Quota>,
    ) -> Result<Inserted, Error> {
        let row = insert_row(sandbox)?;
        let change = match repeatable {
            Some(repeatable) => Change::new(claim_idempotency_key(sandbox, repeatable)).with([row]),
            None => Change::new(row),
        };
        // The row is not acknowledged before its next state, which is synced.
        let change = change.with(self.beside_row(sandbox)).with(asked.map(audit::insert)).lasting(Lasting::Soon);
        let wanted = Wanted::NewSandboxes { many: 1, disk: ledger::disk_of(sandbox) };
        let room = quota.map(|quota| Room { organisation: &sandbox.organisation, quota, wanted });
        match (self.write_within(change, Some(sandbox), room).await?, repeatable) {
            (Ok(Written::Done), _) => Ok(Inserted::New),
            (Ok(Written::Overtaken), Some(repeatable)) => {
                // The answer is what another request wrote.
                self.sync().await?;
                self.earlier(sandbox, repeatable).await
            }
            (Ok(Written::Overtaken), None) => Err(Error::internal("store: an insert that changed nothing")),
            (Err(error), _) if is_unique_violation(&error) => Ok(Inserted::NameTaken),
            (Err(error), _) if layers::is_gone(&error) => Err(layers::gone()),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Several sandboxes of one organisation, each with the note of who asked for it: all of them or none, also where they do not
    /// all fit into the organisation's maxima.
    pub async fn insert_sandboxes(
        &self,
        sandboxes: &[Sandbox],
        asked: &[Entry],
        quota: &Quota,
    ) -> Result<Inserted, Error> {
        let Some(first) = sandboxes.first() else { return Ok(Inserted::New) };
        let mut statements = Vec::new();
        for sandbox in sandboxes {
            statements.push(insert_row(sandbox)?);
            statements.extend(self.beside_row(sandbox));
        }
        statements.extend(asked.iter().map(audit::insert));
        let disk = sandboxes.iter().map(ledger::disk_of).fold(0, u64::saturating_add);
        let wanted = Wanted::NewSandboxes { many: sandboxes.len() as u64, disk };
        let room = Room { organisation: &first.organisation, quota, wanted };
        match self.write_within(Change::all(statements).lasting(Lasting::Soon), None, Some(room)).await? {
            Ok(_) => Ok(Inserted::New),
            Err(error) if is_unique_violation(&error) => Ok(Inserted::NameTaken),
            Err(error) if layers::is_gone(&error) => Err(layers::gone()),
            Err(error) => Err(error.into()),
        }
    }

    /// What is written with the row of every sandbox.
    fn beside_row(&self, sandbox: &Sandbox) -> Vec<Statement> {
        let mut statements: Vec<Statement> = insert_labels(sandbox).collect();
        let user = User::Sandbox(sandbox.id.as_str());
        statements.extend(layers::uses(self.dialect, user, &sandbox.image.root.over));
        statements.extend(volumes::mounts(self.dialect, sandbox));
        statements
    }

    /// Reads what an idempotency key was used for.
    async fn earlier(&self, sandbox: &Sandbox, repeatable: Idempotency<'_>) -> Result<Inserted, Error> {
        let Idempotency { key, fingerprint } = repeatable;
        match self.subject_of_key(&sandbox.organisation, key).await? {
            Some((_, Some(first))) if !first.is_empty() && first != fingerprint => Ok(Inserted::KeyOfAnother),
            Some((subject, _)) => Ok(Inserted::Repeated(subject)),
            None => Err(Error::Conflict(format!("the request with Idempotency-Key {key:?} just ended; try again"))),
        }
    }

    /// The sandbox that an idempotency key was used for, and the fingerprint of the request.
    pub(super) async fn subject_of_key(
        &self,
        organisation: &str,
        key: &str,
    ) -> Result<Option<(String, Option<String>)>, Error> {
        const SQL: &str =
            "SELECT subject, fingerprint FROM idempotency_keys WHERE organisation = $1 AND idempotency_key = $2";
        let row = sqlx::query(SQL).bind(organisation).bind(key).fetch_optional(&self.reads).await?;
        row.map(|row| Ok((row.try_get("subject")?, row.try_get("fingerprint")?))).transpose()
    }

    /// Removes a key from a sandbox that was never acknowledged, so that the same request makes another.
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
        sandbox.build.as_deref().into(),
        sandbox.parent.as_ref().map(SandboxId::as_str).into(),
        sandbox.generation.into(),
        sandbox.created_at.as_millisecond().into(),
        sandbox.last_activity_at.as_millisecond().into(),
        due_at(sandbox).into(),
        disk(sandbox).into(),
        to_body(sandbox)?.into(),
    ];
    const COLUMNS: &str = "id, organisation, name, template, owner, server, state, pool, build, parent, generation, created_at, \
         last_activity_at, due_at, disk, body";
    Ok(Statement::insert("sandboxes", COLUMNS, values))
}

/// Changes nothing where the key was used before.
fn claim_idempotency_key(sandbox: &Sandbox, repeatable: Idempotency<'_>) -> Statement {
    const SQL: &str = "INSERT INTO idempotency_keys (organisation, idempotency_key, subject, created_at, fingerprint) \
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT (organisation, idempotency_key) DO NOTHING";
    Statement::other(SQL, key_values(sandbox, repeatable))
}

/// Fails where the key was used before.
pub(super) fn insert_idempotency_key(sandbox: &Sandbox, repeatable: Idempotency<'_>) -> Statement {
    const COLUMNS: &str = "organisation, idempotency_key, subject, created_at, fingerprint";
    Statement::insert("idempotency_keys", COLUMNS, key_values(sandbox, repeatable))
}

fn key_values(sandbox: &Sandbox, repeatable: Idempotency<'_>) -> [crate::store::change::Value; 5] {
    let created = sandbox.created_at.as_millisecond();
    let Idempotency { key, fingerprint } = repeatable;
    [sandbox.organisation.as_str().into(), key.into(), sandbox.id.as_str().into(), created.into(), fingerprint.into()]
}
