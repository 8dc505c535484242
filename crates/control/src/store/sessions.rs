//! Sessions, their journals and their artifacts in the store.

use sqlx::Row;

use super::change::{Change, Statement};
use super::{Store, Written, from_body, to_body};
use crate::Error;
use crate::clock::from_millisecond;
use crate::sandbox::Listed;
use crate::session::{Artifact, JournalEntry, Session};

impl Store {
    pub async fn insert_session(&self, session: &Session) -> Result<(), Error> {
        self.execute(Statement::other(
            "INSERT INTO sessions (id, organisation, sandbox, created_at, body) VALUES ($1, $2, $3, $4, $5)",
            [
                (&session.id).into(),
                (&session.organisation).into(),
                (&session.sandbox).into(),
                session.created_at.as_millisecond().into(),
                to_body(session)?.into(),
            ],
        ))
        .await?;
        Ok(())
    }

    pub async fn session(&self, organisation: &str, id: &str) -> Result<Option<Session>, Error> {
        const SQL: &str = "SELECT closed_at, body FROM sessions WHERE organisation = $1 AND id = $2";
        let row = sqlx::query(SQL).bind(organisation).bind(id).fetch_optional(&self.reads).await?;
        let Some(row) = row else { return Ok(None) };
        let mut session: Session = from_body(&row.try_get::<String, _>("body")?)?;
        session.closed_at = row.try_get::<Option<i64>, _>("closed_at")?.map(from_millisecond);
        Ok(Some(session))
    }

    pub async fn sessions(
        &self,
        organisation: &str,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Session>, Error> {
        const SQL: &str = "SELECT closed_at, body, created_at FROM sessions WHERE organisation = $1 AND created_at < $2 \
             ORDER BY created_at DESC, id LIMIT $3";
        let before = match cursor {
            Some(cursor) => cursor.parse().map_err(|_| Error::invalid("cursor", "not one that this server gave"))?,
            None => i64::MAX,
        };
        let limit = limit.clamp(1, 1000);
        let rows =
            sqlx::query(SQL).bind(organisation).bind(before).bind(i64::from(limit)).fetch_all(&self.reads).await?;
        let mut items = Vec::new();
        for row in &rows {
            let mut session: Session = from_body(&row.try_get::<String, _>("body")?)?;
            session.closed_at = row.try_get::<Option<i64>, _>("closed_at")?.map(from_millisecond);
            items.push(session);
        }
        let next = (items.len() == limit as usize)
            .then(|| items.last().map(|last| last.created_at.as_millisecond().to_string()))
            .flatten();
        Ok(Listed { items, next })
    }

    pub async fn close_session(&self, id: &str, now: i64) -> Result<(), Error> {
        self.execute(Statement::other(
            "UPDATE sessions SET closed_at = $1 WHERE id = $2 AND closed_at IS NULL",
            [now.into(), id.into()],
        ))
        .await?;
        Ok(())
    }

    /// Sessions whose sandbox is gone.
    pub async fn close_sessions_of_destroyed(&self, now: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE sessions SET closed_at = $1 WHERE closed_at IS NULL AND EXISTS \
             (SELECT 1 FROM sandboxes WHERE sandboxes.id = sessions.sandbox AND sandboxes.state = 'destroyed')";
        self.execute(Statement::other(SQL, [now.into()])).await?;
        Ok(())
    }

    pub async fn sessions_closed_before(&self, at: i64, limit: i64) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT id FROM sessions WHERE closed_at < $1 ORDER BY closed_at LIMIT $2";
        Ok(sqlx::query_scalar(SQL).bind(at).bind(limit).fetch_all(&self.reads).await?)
    }

    pub async fn count_sessions_of(&self, sandbox: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM sessions WHERE sandbox = $1";
        Ok(sqlx::query_scalar(SQL).bind(sandbox).fetch_one(&self.reads).await?)
    }

    pub async fn oldest_closed_session_of(&self, sandbox: &str) -> Result<Option<String>, Error> {
        const SQL: &str =
            "SELECT id FROM sessions WHERE sandbox = $1 AND closed_at IS NOT NULL ORDER BY created_at, id LIMIT 1";
        Ok(sqlx::query_scalar(SQL).bind(sandbox).fetch_optional(&self.reads).await?)
    }

    /// Removes a session with its journal, in small pieces so that other writers do not wait long, and the list of its
    /// artifacts.
    pub async fn remove_session(&self, session: &str) -> Result<(), Error> {
        const PIECE: &str = "DELETE FROM journal_entries WHERE session = $1 AND seq < \
             (SELECT MIN(seq) + 256 FROM journal_entries WHERE session = $1)";
        while self.execute(Statement::other(PIECE, [session.into()])).await? > 0 {}
        self.execute(Statement::other("DELETE FROM artifacts WHERE session = $1", [session.into()])).await?;
        self.execute(Statement::other("DELETE FROM sessions WHERE id = $1", [session.into()])).await?;
        Ok(())
    }

    /// Returns how many bytes it wrote. Writes nothing if the session was removed meanwhile.
    pub async fn add_journal(&self, session: &str, entries: &[JournalEntry]) -> Result<i64, Error> {
        const FIRST: &str = "INSERT INTO journal_entries (session, seq, at, body) \
             SELECT id, CAST($2 AS BIGINT), CAST($3 AS BIGINT), CAST($4 AS TEXT) FROM sessions WHERE id = $1";
        let mut bytes = 0;
        let mut rows = Vec::new();
        for entry in entries {
            let body = to_body(&entry.message)?;
            bytes += body.len() as i64;
            rows.push([session.into(), entry.seq.into(), entry.at.as_millisecond().into(), body.into()]);
        }
        let mut rows = rows.into_iter();
        let Some(first) = rows.next() else { return Ok(0) };
        let insert = |values| Statement::insert("journal_entries", "session, seq, at, body", values);
        let change = Change::new(Statement::other(FIRST, first)).with(rows.map(insert)).with([grow(session, bytes)]);
        match self.write(change, None).await? {
            Written::Done => Ok(bytes),
            Written::Overtaken => Err(Error::not_found("session", session)),
        }
    }

    pub async fn journal_bytes(&self, session: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT CAST(SUM(OCTET_LENGTH(body)) AS BIGINT) FROM journal_entries WHERE session = $1";
        let bytes: Option<i64> = sqlx::query_scalar(SQL).bind(session).fetch_one(&self.reads).await?;
        Ok(bytes.unwrap_or(0))
    }

    /// Removes the oldest entries, this many bytes or a little more. Returns how many.
    pub async fn shorten_journal(&self, session: &str, surplus: i64) -> Result<i64, Error> {
        const OLDEST: &str = "SELECT seq, CAST(OCTET_LENGTH(body) AS BIGINT) AS bytes FROM journal_entries \
             WHERE session = $1 ORDER BY seq LIMIT 256";
        let mut removed = 0;
        while removed < surplus {
            let rows = sqlx::query(OLDEST).bind(session).fetch_all(&self.reads).await?;
            let (mut through, mut gone) = (None, 0);
            for row in &rows {
                if removed + gone >= surplus {
                    break;
                }
                through = Some(row.try_get::<i64, _>("seq")?);
                gone += row.try_get::<i64, _>("bytes")?;
            }
            let Some(through) = through else { break };
            let delete = Statement::other(
                "DELETE FROM journal_entries WHERE session = $1 AND seq <= $2",
                [session.into(), through.into()],
            );
            self.carry_out(Change::new(delete).with([grow(session, -gone)]), None).await?;
            removed += gone;
        }
        Ok(removed)
    }

    /// Entries after `after`, in order.
    pub async fn journal(&self, session: &str, after: i64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
        const SQL: &str =
            "SELECT seq, at, body FROM journal_entries WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3";
        let rows = sqlx::query(SQL).bind(session).bind(after).bind(i64::from(limit)).fetch_all(&self.reads).await?;
        rows.iter()
            .map(|row| {
                Ok(JournalEntry {
                    seq: row.try_get("seq")?,
                    at: from_millisecond(row.try_get("at")?),
                    message: from_body(&row.try_get::<String, _>("body")?)?,
                })
            })
            .collect()
    }

    pub async fn last_journal(&self, session: &str) -> Result<i64, Error> {
        let last: Option<i64> = sqlx::query_scalar("SELECT MAX(seq) FROM journal_entries WHERE session = $1")
            .bind(session)
            .fetch_one(&self.reads)
            .await?;
        Ok(last.unwrap_or(0))
    }

    pub async fn put_artifact(&self, session: &str, artifact: &Artifact) -> Result<(), Error> {
        const OLD: &str = "SELECT body FROM artifacts WHERE session = $1 AND name = $2";
        let old: Option<String> =
            sqlx::query_scalar(OLD).bind(session).bind(&artifact.name).fetch_optional(&self.reads).await?;
        let old = old.map(|body| from_body::<Artifact>(&body)).transpose()?.map_or(0, |old| old.size);
        let more = artifact.size.cast_signed().saturating_sub(old.cast_signed());
        let put = Statement::other(
            "INSERT INTO artifacts (session, name, created_at, body) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (session, name) DO UPDATE SET created_at = EXCLUDED.created_at, body = EXCLUDED.body",
            [
                session.into(),
                (&artifact.name).into(),
                artifact.created_at.as_millisecond().into(),
                to_body(artifact)?.into(),
            ],
        );
        self.carry_out(Change::new(put).with([grow(session, more)]), None).await?;
        Ok(())
    }

    /// What the journals and artifacts of an organisation's sessions have together.
    pub async fn session_bytes(&self, organisation: &str) -> Result<u64, Error> {
        const SQL: &str = "SELECT CAST(SUM(bytes) AS BIGINT) FROM sessions WHERE organisation = $1";
        let bytes: Option<i64> = sqlx::query_scalar(SQL).bind(organisation).fetch_one(&self.reads).await?;
        Ok(u64::try_from(bytes.unwrap_or(0)).unwrap_or(0))
    }

    pub async fn oldest_closed_session_in(&self, organisation: &str) -> Result<Option<String>, Error> {
        const SQL: &str = "SELECT id FROM sessions WHERE organisation = $1 AND closed_at IS NOT NULL \
             ORDER BY closed_at, id LIMIT 1";
        Ok(sqlx::query_scalar(SQL).bind(organisation).fetch_optional(&self.reads).await?)
    }

    pub async fn artifacts(&self, session: &str) -> Result<Vec<Artifact>, Error> {
        let bodies: Vec<String> =
            sqlx::query_scalar("SELECT body FROM artifacts WHERE session = $1 ORDER BY created_at, name")
                .bind(session)
                .fetch_all(&self.reads)
                .await?;
        bodies.iter().map(|body| from_body(body)).collect()
    }
}

/// Counts what a session keeps.
fn grow(session: &str, bytes: i64) -> Statement {
    Statement::other("UPDATE sessions SET bytes = bytes + $2 WHERE id = $1", [session.into(), bytes.into()])
}
