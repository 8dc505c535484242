//! Organisations and their API keys in the store. A key's secret is never there, only its hash.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Statement};
use super::{Dialect, Store, Written, from_body, is_unique_violation, to_body};
use crate::Error;
use crate::clock::from_millisecond;
use crate::key::{Key, Organisation};

/// When it changes, servers check every right that is held.
const RIGHTS_CHANGED: &str = "INSERT INTO cursors (name, seq) VALUES ('rights', 1) \
     ON CONFLICT (name) DO UPDATE SET seq = cursors.seq + 1";

fn read(row: &AnyRow) -> Result<Key, Error> {
    let mut key: Key = from_body(&row.try_get::<String, _>("body")?)?;
    key.revoked_at = row.try_get::<Option<i64>, _>("revoked_at")?.map(from_millisecond);
    key.last_used_at = row.try_get::<Option<i64>, _>("last_used_at")?.map(from_millisecond);
    Ok(key)
}

impl Store {
    /// `None` also if its organisation is gone.
    pub async fn key_by_hash(&self, hash: &str) -> Result<Option<Key>, Error> {
        const SQL: &str = "SELECT revoked_at, last_used_at, body FROM api_keys WHERE hash = $1 \
             AND EXISTS (SELECT 1 FROM organisations WHERE organisations.id = api_keys.organisation)";
        let row = sqlx::query(SQL).bind(hash).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// Does nothing if the same secret exists.
    pub async fn insert_key(&self, key: &Key, hash: &str) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO api_keys (id, organisation, hash, created_at, body) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (hash) DO NOTHING";
        self.execute(Statement::other(
            SQL,
            [
                (&key.id).into(),
                (&key.organisation).into(),
                hash.into(),
                key.created_at.as_millisecond().into(),
                to_body(key)?.into(),
            ],
        ))
        .await?;
        Ok(())
    }

    pub async fn keys(&self, organisation: &str) -> Result<Vec<Key>, Error> {
        const SQL: &str =
            "SELECT revoked_at, last_used_at, body FROM api_keys WHERE organisation = $1 ORDER BY created_at, id";
        let rows = sqlx::query(SQL).bind(organisation).fetch_all(&self.reads).await?;
        rows.iter().map(read).collect()
    }

    /// Returns whether there was a key to revoke.
    pub async fn revoke_key(&self, organisation: &str, id: &str, now: i64) -> Result<bool, Error> {
        const SQL: &str =
            "UPDATE api_keys SET revoked_at = $1 WHERE organisation = $2 AND id = $3 AND revoked_at IS NULL";
        let revoke = Statement::other(SQL, [now.into(), organisation.into(), id.into()]);
        self.write_with_rights(revoke).await
    }

    /// Writes whether a key is valid, and which servers are configured with it.
    pub async fn update_configured_key(&self, key: &Key) -> Result<bool, Error> {
        const SQL: &str = "UPDATE api_keys SET revoked_at = $1, body = $2 WHERE id = $3";
        let revoked = key.revoked_at.map(|at| at.as_millisecond());
        self.write_with_rights(Statement::other(SQL, [revoked.into(), to_body(key)?.into(), key.id.as_str().into()]))
            .await
    }

    /// A change that may end rights: other servers notice it. Returns whether it changed anything.
    pub(super) async fn write_with_rights(&self, first: Statement) -> Result<bool, Error> {
        let told = (self.dialect == Dialect::Postgres).then(|| Statement::other(RIGHTS_CHANGED, []));
        Ok(self.write(Change::new(first).with(told), None).await? == Written::Done)
    }

    /// Lets other servers notice that rights have ended, if there may be others.
    pub async fn note_rights_changed(&self) -> Result<(), Error> {
        if self.dialect == Dialect::Postgres {
            self.execute(Statement::other(RIGHTS_CHANGED, [])).await?;
        }
        Ok(())
    }

    /// A number that changes whenever rights have ended.
    pub async fn changes_of_rights(&self) -> Result<i64, Error> {
        const SQL: &str = "SELECT seq FROM cursors WHERE name = 'rights'";
        let seq: Option<i64> = sqlx::query_scalar(SQL).fetch_optional(&self.reads).await?;
        Ok(seq.unwrap_or(0))
    }

    /// Whether a key and its organisation exist and it is not revoked.
    pub async fn key_is_good(&self, id: &str) -> Result<bool, Error> {
        const SQL: &str = "SELECT id FROM api_keys WHERE id = $1 AND revoked_at IS NULL \
             AND EXISTS (SELECT 1 FROM organisations WHERE organisations.id = api_keys.organisation)";
        Ok(sqlx::query(SQL).bind(id).fetch_optional(&self.reads).await?.is_some())
    }

    pub async fn note_key_use(&self, id: &str, now: i64) -> Result<(), Error> {
        self.execute_soon(Statement::other(
            "UPDATE api_keys SET last_used_at = $1 WHERE id = $2",
            [now.into(), id.into()],
        ))
        .await?;
        Ok(())
    }

    pub async fn organisation(&self, id: &str) -> Result<Option<Organisation>, Error> {
        let body: Option<String> = sqlx::query_scalar("SELECT body FROM organisations WHERE id = $1")
            .bind(id)
            .fetch_optional(&self.reads)
            .await?;
        body.as_deref().map(from_body).transpose()
    }

    pub async fn organisations(&self) -> Result<Vec<Organisation>, Error> {
        let bodies: Vec<String> =
            sqlx::query_scalar("SELECT body FROM organisations ORDER BY created_at, id").fetch_all(&self.reads).await?;
        bodies.iter().map(|body| from_body(body)).collect()
    }

    /// `false` if the id is taken.
    pub async fn insert_organisation(&self, organisation: &Organisation) -> Result<bool, Error> {
        let values =
            [(&organisation.id).into(), organisation.created_at.as_millisecond().into(), to_body(organisation)?.into()];
        let row = Statement::insert("organisations", "id, created_at, body", values);
        let done = self.carry_out(row.into(), None).await;
        match done {
            Ok(_) => Ok(true),
            Err(error) if is_unique_violation(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// `false` if it has sandboxes, templates, snapshots or volumes, or does not exist. Its keys are invalid from then on.
    pub async fn delete_organisation(&self, id: &str) -> Result<bool, Error> {
        // Checkpoints go by themselves: their sandboxes are gone.
        const SQL: &str = "DELETE FROM organisations WHERE id = $1 AND NOT EXISTS \
             (SELECT 1 FROM sandboxes WHERE sandboxes.organisation = $2 AND sandboxes.state <> 'destroyed') \
             AND NOT EXISTS (SELECT 1 FROM templates WHERE templates.organisation = $2 \
             AND templates.deleted_at IS NULL AND templates.kind <> 'checkpoints') \
             AND NOT EXISTS (SELECT 1 FROM volumes WHERE volumes.organisation = $2 AND volumes.state <> 'deleted')";
        self.write_with_rights(Statement::other(SQL, [id.into(), id.into()])).await
    }

    /// What people call the sandboxes that an organisation still has, those that a build or a pool has made too; some of them.
    pub async fn sandbox_titles(&self, organisation: &str) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT COALESCE(name, id) FROM sandboxes WHERE organisation = $1 AND state <> 'destroyed' \
             ORDER BY created_at, id LIMIT 1000";
        Ok(sqlx::query_scalar(SQL).bind(organisation).fetch_all(&self.reads).await?)
    }

    pub async fn update_organisation(&self, organisation: &Organisation) -> Result<(), Error> {
        self.execute(Statement::other(
            "UPDATE organisations SET body = $1 WHERE id = $2",
            [to_body(organisation)?.into(), (&organisation.id).into()],
        ))
        .await?;
        Ok(())
    }
}
