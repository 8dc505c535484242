//! Warm pools in the store: how many of which template are to be ready.

use sqlx::Row;

use super::Store;
use crate::Error;
use crate::pool::PoolSize;

impl Store {
    pub async fn set_pool(&self, pool: &PoolSize, now: i64) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO pools (organisation, template, size, created_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (organisation, template) DO UPDATE SET size = EXCLUDED.size",
        )
        .bind(&pool.organisation)
        .bind(&pool.template)
        .bind(i64::from(pool.size))
        .bind(now)
        .execute(&self.writes)
        .await?;
        Ok(())
    }

    pub async fn pools(&self) -> Result<Vec<PoolSize>, Error> {
        let rows = sqlx::query("SELECT organisation, template, size FROM pools ORDER BY organisation, template")
            .fetch_all(&self.reads)
            .await?;
        rows.iter()
            .map(|row| {
                Ok(PoolSize {
                    organisation: row.try_get("organisation")?,
                    template: row.try_get("template")?,
                    size: row.try_get::<i64, _>("size")?.clamp(0, i64::from(u32::MAX)) as u32,
                })
            })
            .collect()
    }

    pub async fn delete_pool(&self, organisation: &str, template: &str) -> Result<bool, Error> {
        let done = sqlx::query("DELETE FROM pools WHERE organisation = $1 AND template = $2")
            .bind(organisation)
            .bind(template)
            .execute(&self.writes)
            .await?;
        Ok(done.rows_affected() == 1)
    }
}
