//! Events in the store: a rising number is their order and the place to go on from.
//!
//! Whoever has read up to a number must never find a lower one later. SQLite has one writer, so numbers appear in their
//! order. PostgreSQL gives a number before its transaction commits, and transactions commit in any order: there a lock
//! is held from the number to the commit. It is the last thing that a transaction takes, so nobody waits for another
//! with the lock in hand, and it lasts as long as one insert and one commit.

use sqlx::Row;

use super::change::{Change, Statement};
use super::sql::Sql;
use super::{Dialect, Store, from_body, to_body};
use crate::Error;
use crate::clock::from_millisecond;
use crate::event::{Event, EventFilter, NewEvent};

/// Any number that no other advisory lock of this database uses: "cove" in ASCII, and a counter.
const IN_ORDER: i64 = 0x636f_7665_0001;

/// An event; it must be the last of its change.
pub(super) fn insert(dialect: Dialect, event: &NewEvent) -> Result<Vec<Statement>, Error> {
    let lock = Statement::other("SELECT 1 FROM pg_advisory_xact_lock($1)", [IN_ORDER.into()]);
    let values = [
        event.organisation.as_str().into(),
        event.sandbox.as_deref().into(),
        event.kind.as_str().into(),
        event.at.as_millisecond().into(),
        to_body(&event.data)?.into(),
    ];
    let event = Statement::insert("events", "organisation, sandbox, kind, at, body", values);
    Ok(match dialect {
        Dialect::Sqlite => vec![event],
        Dialect::Postgres => vec![lock, event],
    })
}

impl Store {
    pub async fn add_event(&self, event: &NewEvent) -> Result<(), Error> {
        self.carry_out(Change::all(insert(self.dialect, event)?), None).await?;
        Ok(())
    }

    /// Several in one write, in their order.
    pub async fn add_events(&self, events: &[NewEvent]) -> Result<(), Error> {
        let mut statements = Vec::new();
        for event in events {
            statements.extend(insert(self.dialect, event)?);
        }
        self.carry_out(Change::all(statements), None).await?;
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
        if let Some(since) = filter.since {
            sql.push(&format!(" AND at >= {}", since.as_millisecond()));
        }
        if let Some(before) = filter.before {
            sql.push(&format!(" AND at < {}", before.as_millisecond()));
        }
        if let Some(before) = filter.before_seq {
            sql.push(&format!(" AND seq < {before}"));
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
}
