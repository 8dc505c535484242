//! Samples of what sandboxes used.

use sqlx::Row;

use super::{Store, from_body, to_body};
use crate::Error;
use crate::clock::Timestamp;
use crate::sandbox::metrics::Sample;

/// Of one sandbox at most: a week of one a minute is 10,080.
const MOST: i64 = 20_000;

impl Store {
    /// In one transaction, however many. One that is there already stays.
    pub async fn add_samples(&self, samples: &[(String, Sample)]) -> Result<(), Error> {
        if samples.is_empty() {
            return Ok(());
        }
        let mut transaction = self.writes.begin().await?;
        for (sandbox, sample) in samples {
            sqlx::query("INSERT INTO samples (sandbox, at, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
                .bind(sandbox)
                .bind(sample.at.as_millisecond())
                .bind(to_body(sample)?)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// The newest between the two times, oldest first.
    pub async fn samples(
        &self,
        sandbox: &str,
        from: Option<Timestamp>,
        before: Option<Timestamp>,
    ) -> Result<Vec<Sample>, Error> {
        let rows = sqlx::query(
            "SELECT body FROM samples WHERE sandbox = $1 AND at >= $2 AND at < $3 ORDER BY at DESC LIMIT $4",
        )
        .bind(sandbox)
        .bind(from.map_or(i64::MIN, |from| from.as_millisecond()))
        .bind(before.map_or(i64::MAX, |before| before.as_millisecond()))
        .bind(MOST)
        .fetch_all(&self.reads)
        .await?;
        rows.iter().rev().map(|row| from_body(&row.try_get::<String, _>(0)?)).collect()
    }

    pub async fn remove_samples_before(&self, at: i64) -> Result<(), Error> {
        sqlx::query("DELETE FROM samples WHERE at < $1").bind(at).execute(&self.writes).await?;
        Ok(())
    }
}
