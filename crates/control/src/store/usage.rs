//! What was used, in spans of a constant rate.

use serde::{Deserialize, Serialize};
use sqlx::Row;

use super::change::Statement;
use super::sql::Sql;
use super::{Store, from_body, to_body};
use crate::Error;
use crate::clock::{Timestamp, from_millisecond};

/// A span: how much was used, from when until when.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub organisation: String,
    pub sandbox: String,
    pub owner: Option<String>,
    pub from: Timestamp,
    pub to: Timestamp,
    pub rate: Rate,
}

/// What a sandbox uses in its current state.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Rate {
    pub cpus: f64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub disk: u64,
}

pub(super) fn insert(span: &Span) -> Result<Statement, Error> {
    let values = [
        span.organisation.as_str().into(),
        span.sandbox.as_str().into(),
        span.owner.as_deref().into(),
        span.from.as_millisecond().into(),
        span.to.as_millisecond().into(),
        to_body(&span.rate)?.into(),
    ];
    Ok(Statement::insert("usage_spans", "organisation, sandbox, owner, from_at, to_at, body", values))
}

impl Store {
    /// Spans that touch the time between; of one sandbox, or of all of the organisation.
    pub async fn usage_spans(
        &self,
        organisation: &str,
        sandbox: Option<&str>,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Span>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT organisation, sandbox, owner, from_at, to_at, body FROM usage_spans \
             WHERE to_at > {} AND from_at < {} AND organisation = ",
            from.as_millisecond(),
            to.as_millisecond()
        ));
        sql.bind(organisation);
        if let Some(sandbox) = sandbox {
            sql.push(" AND sandbox = ").bind(sandbox);
        }
        sql.push(" ORDER BY seq");
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        rows.iter()
            .map(|row| {
                Ok(Span {
                    organisation: row.try_get("organisation")?,
                    sandbox: row.try_get("sandbox")?,
                    owner: row.try_get("owner")?,
                    from: from_millisecond(row.try_get("from_at")?),
                    to: from_millisecond(row.try_get("to_at")?),
                    rate: from_body(&row.try_get::<String, _>("body")?)?,
                })
            })
            .collect()
    }
}
