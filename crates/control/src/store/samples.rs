//! Samples of what sandboxes used.

use sqlx::Row;

use super::change::{Change, Lasting, Statement};
use super::{AT_ONCE, Store, from_body, to_body};
use crate::Error;
use crate::clock::Timestamp;
use crate::sandbox::metrics::Sample;

/// Of one sandbox at most: a week of one a minute is 10,080.
const MOST: i64 = 20_000;

impl Store {
    /// Some at a time. One that is there already stays.
    pub async fn add_samples(&self, samples: &[(String, Sample)]) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO samples (sandbox, at, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        for some in samples.chunks(AT_ONCE) {
            let row = |(sandbox, sample): &(String, Sample)| -> Result<Statement, Error> {
                let values = [sandbox.into(), sample.at.as_millisecond().into(), to_body(sample)?.into()];
                Ok(Statement::other(SQL, values))
            };
            let rows = some.iter().map(row).collect::<Result<Vec<_>, Error>>()?;
            self.carry_out(Change::all(rows).lasting(Lasting::Soon), None).await?;
        }
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
}
