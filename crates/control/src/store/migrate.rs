//! Migrations by number and name, the same for both databases.

use super::{Dialect, Store};
use crate::Error;

const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "sandboxes", include_str!("../../migrations/0001_sandboxes.sql")),
    (2, "audit_webhooks_pools", include_str!("../../migrations/0002_audit_webhooks_pools.sql")),
    (3, "sessions", include_str!("../../migrations/0003_sessions.sql")),
    (5, "samples", include_str!("../../migrations/0005_samples.sql")),
    (6, "job_workers", include_str!("../../migrations/0006_job_workers.sql")),
    (7, "job_turns", include_str!("../../migrations/0007_job_turns.sql")),
    (8, "session_ends", include_str!("../../migrations/0008_session_ends.sql")),
    (9, "repeats_quotas_peers", include_str!("../../migrations/0009_repeats_quotas_peers.sql")),
    (11, "session_bytes", include_str!("../../migrations/0011_session_bytes.sql")),
    (12, "retention", include_str!("../../migrations/0012_retention.sql")),
    (13, "images", include_str!("../../migrations/0013_images.sql")),
    (14, "disks", include_str!("../../migrations/0014_disks.sql")),
    (15, "pushes", include_str!("../../migrations/0015_pushes.sql")),
    (16, "aliases", include_str!("../../migrations/0016_aliases.sql")),
];

impl Store {
    /// Brings the database to the newest form, in one transaction each. A database that is newer is refused.
    pub(super) async fn migrate(&self) -> Result<(), Error> {
        self.make_list().await?;
        let applied: Option<i64> =
            sqlx::query_scalar("SELECT MAX(number) FROM migrations").fetch_one(&self.writes).await?;
        let applied = applied.unwrap_or(0);
        let newest = MIGRATIONS.last().map_or(0, |(number, ..)| *number);
        if applied > newest {
            return Err(Error::internal(format!(
                "the database is at migration {applied}, this program knows {newest}: use a newer program"
            )));
        }
        for (number, name, text) in MIGRATIONS.iter().filter(|(number, ..)| *number > applied) {
            self.migrate_one(*number, name, text).await?;
        }
        Ok(())
    }

    /// The table of what was done. PostgreSQL does not keep two that make the same table at once apart, so they take turns.
    async fn make_list(&self) -> Result<(), Error> {
        const LIST: &str = "CREATE TABLE IF NOT EXISTS migrations \
             (number BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL)";
        let mut transaction = self.writes.begin().await?;
        if self.dialect == Dialect::Postgres {
            sqlx::query("SET LOCAL statement_timeout = 0").execute(&mut *transaction).await?;
            // The number means nothing but this.
            sqlx::query("DO $$ BEGIN PERFORM pg_advisory_xact_lock(6722881); END $$")
                .execute(&mut *transaction)
                .await?;
        }
        sqlx::query(LIST).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn migrate_one(&self, number: i64, name: &str, text: &str) -> Result<(), Error> {
        let mut transaction = self.writes.begin().await?;
        if self.dialect == Dialect::Postgres {
            // However large the tables are.
            sqlx::query("SET LOCAL statement_timeout = 0").execute(&mut *transaction).await?;
            // Two servers that start at once: the second waits and finds it done.
            sqlx::query("LOCK TABLE migrations IN EXCLUSIVE MODE").execute(&mut *transaction).await?;
            let done: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM migrations WHERE number = $1")
                .bind(number)
                .fetch_one(&mut *transaction)
                .await?;
            if done > 0 {
                return Ok(());
            }
        }
        let (serial, disk) = match self.dialect {
            Dialect::Sqlite => (
                "INTEGER PRIMARY KEY AUTOINCREMENT",
                "COALESCE(CAST(json_extract(body, '$.limits.disk') AS INTEGER), 0)",
            ),
            Dialect::Postgres => (
                "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
                "COALESCE(CAST(CAST(body AS JSON) -> 'limits' ->> 'disk' AS BIGINT), 0)",
            ),
        };
        let text = text.replace("{serial}", serial).replace("{disk}", disk);
        for statement in statements(&text) {
            sqlx::query(sqlx::AssertSqlSafe(statement))
                .execute(&mut *transaction)
                .await
                .map_err(|error| Error::internal(format!("migration {number} {name}: {error}")))?;
        }
        sqlx::query("INSERT INTO migrations (number, name, applied_at) VALUES ($1, $2, $3)")
            .bind(number)
            .bind(name)
            .bind(jiff::Timestamp::now().as_millisecond())
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }
}

/// Comments are whole lines of our migrations; no statement holds a semicolon but at its end.
fn statements(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    code.join("\n").split(';').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}
