//! Warm pools in the store: how many of which template are to be ready.

use sqlx::Row;

use super::Store;
use super::change::Statement;
use crate::Error;
use crate::pool::PoolSize;

impl Store {
    pub async fn set_pool(&self, pool: &PoolSize, now: i64) -> Result<(), Error> {
        self.execute(Statement::other(
            "INSERT INTO pools (organisation, template, size, created_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (organisation, template) DO UPDATE SET size = EXCLUDED.size",
            [(&pool.organisation).into(), (&pool.template).into(), i64::from(pool.size).into(), now.into()],
        ))
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
        let done = self
            .execute(Statement::other(
                "DELETE FROM pools WHERE organisation = $1 AND template = $2",
                [organisation.into(), template.into()],
            ))
            .await?;
        Ok(done == 1)
    }
}
