//! Many sandboxes: lists with filters and pages, those of a server, those with a timer that is due, and counts.

use std::collections::BTreeSet;

use cove_protocol::SandboxId;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::COLUMNS;
use crate::Error;
use crate::ledger::Group;
use crate::sandbox::{Filter, Listed, Order, Page, Sandbox, State};
use crate::store::Store;
use crate::store::sql::Sql;

impl Store {
    pub async fn list_sandboxes(
        &self,
        organisation: &str,
        filter: &Filter,
        page: &Page,
    ) -> Result<Listed<Sandbox>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes s WHERE organisation = "));
        sql.bind(organisation).push(" AND pool IS NULL");
        if filter.states.is_empty() {
            sql.push(" AND state <> 'destroyed'");
        } else {
            let states: BTreeSet<String> = filter.states.iter().map(|state| format!("'{state}'")).collect();
            sql.push(&format!(" AND state IN ({})", Vec::from_iter(states).join(", ")));
        }
        if let Some(template) = &filter.template {
            sql.push(" AND template = ").bind(template);
        }
        if let Some(owner) = &filter.owner {
            sql.push(" AND owner = ").bind(owner);
        }
        if let Some(prefix) = &filter.name_prefix {
            let pattern = prefix.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            sql.push(" AND LOWER(name) LIKE ").bind(format!("{pattern}%")).push(" ESCAPE '\\'");
        }
        if !filter.labels.is_empty() {
            // One look at each sandbox's labels: with an EXISTS for each label PostgreSQL plans for minutes, and with
            // a condition for each SQLite finds the tree too deep.
            sql.push(" AND (SELECT COUNT(*) FROM sandbox_labels l WHERE l.sandbox = s.id");
            sql.push(" AND (l.label, l.value) IN (VALUES ");
            for (place, (label, value)) in filter.labels.iter().enumerate() {
                sql.push(if place == 0 { "(" } else { ", (" }).bind(label).push(", ").bind(value).push(")");
            }
            sql.push(&format!(")) = {}", filter.labels.len()));
        }
        if let Some(after) = filter.created_after {
            sql.push(&format!(" AND created_at >= {}", after.as_millisecond()));
        }
        if let Some(before) = filter.created_before {
            sql.push(&format!(" AND created_at < {}", before.as_millisecond()));
        }
        let (beyond, order) = match page.order {
            Order::NewestFirst => ("<", "DESC"),
            Order::OldestFirst => (">", "ASC"),
        };
        if let Some(cursor) = &page.cursor {
            let (at, id) = parse_cursor(cursor)?;
            sql.push(&format!(" AND (created_at {beyond} {at} OR (created_at = {at} AND id {beyond} "));
            sql.bind(id).push("))");
        }
        let limit = page.limit.clamp(1, 1000) as usize;
        sql.push(&format!(" ORDER BY created_at {order}, id {order} LIMIT {}", limit + 1));
        let mut items = self.fetch(sql).await?;
        let next = (items.len() > limit).then(|| {
            items.truncate(limit);
            let last = &items[limit - 1];
            format!("{}.{}", last.created_at.as_millisecond(), last.id)
        });
        Ok(Listed { items, next })
    }

    /// Everything that is not gone on one server, for reconcile and the ledger.
    pub async fn sandboxes_of_server(&self, server: &str) -> Result<Vec<Sandbox>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes WHERE state <> 'destroyed' AND server = "));
        sql.bind(server);
        self.fetch(sql).await
    }

    /// Those of one server that are on the way from one lasting state to another.
    pub async fn sandboxes_in_transition(&self, server: &str) -> Result<Vec<Sandbox>, Error> {
        let states: Vec<String> =
            State::ALL.into_iter().filter(|state| state.is_in_transition()).map(|state| format!("'{state}'")).collect();
        let states = states.join(", ");
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes WHERE state IN ({states}) AND server = "));
        sql.bind(server);
        self.fetch(sql).await
    }

    /// The ids of all that is not gone and that other servers have.
    pub async fn sandbox_ids_elsewhere(&self, server: &str) -> Result<Vec<SandboxId>, Error> {
        const SQL: &str = "SELECT id FROM sandboxes WHERE state <> 'destroyed' AND server <> $1";
        let ids: Vec<String> = sqlx::query_scalar(SQL).bind(server).fetch_all(&self.reads).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Sandboxes with a timer that may have gone off.
    pub async fn due_sandboxes(&self, server: &str, now: i64, limit: u32) -> Result<Vec<Sandbox>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM sandboxes WHERE due_at <= {now} AND server = "));
        sql.bind(server).push(&format!(" ORDER BY due_at LIMIT {limit}"));
        self.fetch(sql).await
    }

    /// How many each organisation has in each state.
    pub async fn count_by_organisation(&self) -> Result<Vec<Group>, Error> {
        const SQL: &str = "SELECT organisation, state, COUNT(*) AS many, CAST(SUM(disk) AS BIGINT) AS disk \
             FROM sandboxes WHERE state <> 'destroyed' GROUP BY organisation, state";
        let group = |row: &AnyRow| {
            Ok(Group {
                organisation: row.try_get("organisation")?,
                state: row.try_get("state")?,
                many: row.try_get::<i64, _>("many")?.unsigned_abs(),
                disk: row.try_get::<i64, _>("disk")?.unsigned_abs(),
            })
        };
        sqlx::query(SQL).fetch_all(&self.reads).await?.iter().map(group).collect()
    }

    /// How many there are in each state, for the metrics.
    pub async fn count_states(&self) -> Result<Vec<(String, i64)>, Error> {
        let rows = sqlx::query(
            "SELECT state, COUNT(*) AS many FROM sandboxes WHERE state <> 'destroyed' GROUP BY state ORDER BY state",
        )
        .fetch_all(&self.reads)
        .await?;
        rows.iter().map(|row| Ok((row.try_get("state")?, row.try_get("many")?))).collect()
    }
}

fn parse_cursor(cursor: &str) -> Result<(i64, String), Error> {
    let parsed = cursor.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    parsed.ok_or_else(|| Error::invalid("cursor", "not one that this server gave"))
}
