//! The servers that share the store.

use super::Store;
use crate::Error;

impl Store {
    /// A sign of life.
    pub async fn note_server(&self, id: &str, now: i64) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO servers (id, seen_at, body) VALUES ($1, $2, '{}') \
             ON CONFLICT (id) DO UPDATE SET seen_at = EXCLUDED.seen_at",
        )
        .bind(id)
        .bind(now)
        .execute(&self.writes)
        .await?;
        Ok(())
    }
}
