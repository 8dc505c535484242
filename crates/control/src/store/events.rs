//! Events in the store: a rising number is their order and the place to go on from.

use sqlx::{Any, Row, Transaction};

use super::sandboxes::Sql;
use super::{Store, from_body, to_body};
use crate::Error;
use crate::clock::from_millisecond;
use crate::event::{Event, EventFilter, NewEvent};

pub(super) async fn insert(transaction: &mut Transaction<'static, Any>, event: &NewEvent) -> Result<(), Error> {
    const SQL: &str = "INSERT INTO events (organisation, sandbox, kind, at, body) VALUES ($1, $2, $3, $4, $5)";
    sqlx::query(SQL)
        .bind(&event.organisation)
        .bind(event.sandbox.as_deref())
        .bind(event.kind.as_str())
        .bind(event.at.as_millisecond())
        .bind(to_body(&event.data)?)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Store {
    pub async fn add_event(&self, event: &NewEvent) -> Result<(), Error> {
        let mut transaction = self.writes.begin().await?;
        insert(&mut transaction, event).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The first events after `after`, oldest first.
    pub async fn events(&self, filter: &EventFilter, after: i64, limit: u32) -> Result<Vec<Event>, Error> {
        self.some_events(filter, after, &format!(" ORDER BY seq LIMIT {limit}")).await
    }

    /// The last events after `after`, oldest first.
    pub async fn newest_events(&self, filter: &EventFilter, after: i64, limit: u32) -> Result<Vec<Event>, Error> {
        let mut events = self.some_events(filter, after, &format!(" ORDER BY seq DESC LIMIT {limit}")).await?;
        events.reverse();
        Ok(events)
    }

    async fn some_events(&self, filter: &EventFilter, after: i64, which: &str) -> Result<Vec<Event>, Error> {
        let mut sql =
            Sql::new(format!("SELECT seq, organisation, sandbox, kind, at, body FROM events WHERE seq > {after}"));
        if let Some(organisation) = &filter.organisation {
            sql.push(" AND organisation = ").bind(organisation);
        }
        if let Some(sandbox) = &filter.sandbox {
            sql.push(" AND sandbox = ").bind(sandbox);
        }
        if let Some(kind) = &filter.kind {
            sql.push(" AND kind = ").bind(kind);
        }
        sql.push(which);
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        rows.iter()
            .map(|row| {
                Ok(Event {
                    seq: row.try_get("seq")?,
                    organisation: row.try_get("organisation")?,
                    sandbox: row.try_get("sandbox")?,
                    kind: row.try_get("kind")?,
                    at: from_millisecond(row.try_get("at")?),
                    data: from_body(&row.try_get::<String, _>("body")?)?,
                })
            })
            .collect()
    }

    /// The number of the newest event.
    pub async fn last_event(&self) -> Result<i64, Error> {
        let last: Option<i64> = sqlx::query_scalar("SELECT MAX(seq) FROM events").fetch_one(&self.reads).await?;
        Ok(last.unwrap_or(0))
    }

    pub async fn remove_events_before(&self, at: i64) -> Result<u64, Error> {
        let done = sqlx::query("DELETE FROM events WHERE at < $1").bind(at).execute(&self.writes).await?;
        Ok(done.rows_affected())
    }
}
