//! Organisations and their API keys in the store. A key's secret is never there, only its hash.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::Statement;
use super::{Store, from_body, is_unique_violation, to_body};
use crate::Error;
use crate::clock::from_millisecond;
use crate::key::{Key, Organisation};

fn read(row: &AnyRow) -> Result<Key, Error> {
    let mut key: Key = from_body(&row.try_get::<String, _>("body")?)?;
    key.revoked_at = row.try_get::<Option<i64>, _>("revoked_at")?.map(from_millisecond);
    key.last_used_at = row.try_get::<Option<i64>, _>("last_used_at")?.map(from_millisecond);
    Ok(key)
}

impl Store {
    pub async fn key_by_hash(&self, hash: &str) -> Result<Option<Key>, Error> {
        const SQL: &str = "SELECT revoked_at, last_used_at, body FROM api_keys WHERE hash = $1";
        let row = sqlx::query(SQL).bind(hash).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// Nothing happens where the same secret is there already.
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

    /// Whether there was one to revoke.
    pub async fn revoke_key(&self, organisation: &str, id: &str, now: i64) -> Result<bool, Error> {
        const SQL: &str =
            "UPDATE api_keys SET revoked_at = $1 WHERE organisation = $2 AND id = $3 AND revoked_at IS NULL";
        let done = self.execute(Statement::other(SQL, [now.into(), organisation.into(), id.into()])).await?;
        Ok(done == 1)
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

    /// `false` where the id is taken.
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

    pub async fn update_organisation(&self, organisation: &Organisation) -> Result<(), Error> {
        self.execute(Statement::other(
            "UPDATE organisations SET body = $1 WHERE id = $2",
            [to_body(organisation)?.into(), (&organisation.id).into()],
        ))
        .await?;
        Ok(())
    }
}
