//! The servers that share the store.

use serde::{Deserialize, Serialize};
use sqlx::Row;

use super::Store;
use super::change::Statement;
use crate::Error;
use crate::clock::from_millisecond;
use crate::peer::Peer;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Body {
    url: Option<String>,
}

impl Store {
    /// The secret of all servers of this database; the first one makes it.
    pub async fn peer_secret(&self) -> Result<String, Error> {
        const DRAW: &str = "INSERT INTO secrets (name, secret) VALUES ('peers', $1) ON CONFLICT DO NOTHING";
        self.execute(Statement::other(DRAW, [crate::random::token().into()])).await?;
        const READ: &str = "SELECT secret FROM secrets WHERE name = 'peers'";
        Ok(sqlx::query_scalar(READ).fetch_one(&self.reads).await?)
    }

    /// Writes a sign of life.
    pub async fn note_server(&self, id: &str, url: Option<&str>, now: i64) -> Result<(), Error> {
        self.execute_soon(Statement::other(
            "INSERT INTO servers (id, seen_at, body) VALUES ($1, $2, $3) \
             ON CONFLICT (id) DO UPDATE SET seen_at = EXCLUDED.seen_at, body = EXCLUDED.body",
            [id.into(), now.into(), (super::to_body(&Body { url: url.map(ToOwned::to_owned) })?).into()],
        ))
        .await?;
        Ok(())
    }

    pub async fn peer(&self, id: &str) -> Result<Option<Peer>, Error> {
        const SQL: &str = "SELECT seen_at, body FROM servers WHERE id = $1";
        let Some(row) = sqlx::query(SQL).bind(id).fetch_optional(&self.reads).await? else { return Ok(None) };
        let body: Body = super::from_body(&row.try_get::<String, _>("body")?)?;
        Ok(Some(Peer { id: id.to_owned(), url: body.url, seen_at: from_millisecond(row.try_get("seen_at")?) }))
    }
}
