//! Sandboxes in the store: one row each, with the body as JSON and searchable values in columns.
//!
//! This file reads and finds rows; `insert` and `update` write them, `list` searches, `pooled` hands out members of
//! warm pools, `recent` caches.

mod insert;
mod list;
mod pooled;
mod recent;
mod update;

use cove_protocol::SandboxId;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Lasting, Statement};
use super::sql::Sql;
use super::{Dialect, Store, audit, events, from_body, usage};
use crate::Error;
use crate::audit::Entry;
use crate::clock::from_millisecond;
use crate::event::NewEvent;
use crate::key::Quota;
use crate::ledger;
use crate::sandbox::timers;
use crate::sandbox::{Sandbox, State};
use crate::store::usage::Span;

pub use insert::{Idempotency, Inserted};
pub use pooled::Taken;
pub(super) use recent::Recent;

/// What is written with a sandbox, in the same transaction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Along<'a> {
    pub event: Option<&'a NewEvent>,
    /// A finished span of use.
    pub span: Option<&'a Span>,
    /// Who asked for it.
    pub audit: Option<&'a Entry>,
    pub lasting: Lasting,
    /// The organisation's maxima, where the change starts a sandbox.
    pub starts_within: Option<&'a Quota>,
}

impl Along<'_> {
    fn insert(&self, dialect: Dialect) -> Result<Vec<Statement>, Error> {
        let mut statements = Vec::new();
        if let Some(span) = self.span {
            statements.push(usage::insert(span)?);
        }
        statements.extend(self.audit.map(audit::insert));
        // Last: from an event's number to the commit, other writers of events wait.
        if let Some(event) = self.event {
            statements.extend(events::insert(dialect, event)?);
        }
        Ok(statements)
    }
}

const COLUMNS: &str = "organisation, generation, last_activity_at, body";

fn read(row: &AnyRow) -> Result<Sandbox, Error> {
    let mut sandbox: Sandbox = from_body(&row.try_get::<String, _>("body")?)?;
    sandbox.organisation = row.try_get("organisation")?;
    sandbox.generation = row.try_get("generation")?;
    sandbox.last_activity_at = from_millisecond(row.try_get("last_activity_at")?);
    Ok(sandbox)
}

/// Only existing sandboxes keep their name.
fn held_name(sandbox: &Sandbox) -> Option<&str> {
    match sandbox.state {
        State::Destroying | State::Destroyed => None,
        _ => sandbox.name.as_deref(),
    }
}

fn due_at(sandbox: &Sandbox) -> Option<i64> {
    timers::next(sandbox).map(|(at, _)| at.as_millisecond())
}

/// What its disk counts for.
fn disk(sandbox: &Sandbox) -> i64 {
    i64::try_from(ledger::disk_of(sandbox)).unwrap_or(i64::MAX)
}

impl Store {
    pub async fn sandbox_by_id(&self, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
        if let Some(sandbox) = self.recent.get(id) {
            return Ok(Some(sandbox));
        }
        const SQL: &str = "SELECT organisation, generation, last_activity_at, body FROM sandboxes WHERE id = $1";
        let row = sqlx::query(SQL).bind(id.as_str()).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    pub async fn sandbox_by_name(&self, organisation: &str, name: &str) -> Result<Option<Sandbox>, Error> {
        const SQL: &str = "SELECT organisation, generation, last_activity_at, body FROM sandboxes \
             WHERE organisation = $1 AND name = $2";
        let row = sqlx::query(SQL).bind(organisation).bind(name).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// By an id that it had elsewhere; of any organisation where none is named.
    pub async fn sandbox_by_alias(&self, organisation: Option<&str>, alias: &str) -> Result<Option<Sandbox>, Error> {
        const SQL: &str = "SELECT sandbox FROM sandbox_aliases WHERE alias = $1";
        let id: Option<String> = sqlx::query_scalar(SQL).bind(alias).fetch_optional(&self.reads).await?;
        let Some(id) = id.and_then(|id| id.parse().ok()) else { return Ok(None) };
        let found = self.sandbox_by_id(&id).await?;
        let is_theirs =
            |sandbox: &Sandbox| organisation.is_none_or(|organisation| sandbox.organisation == organisation);
        Ok(found.filter(|sandbox| is_theirs(sandbox) && sandbox.pool.is_none()))
    }

    /// By id, or by one that it had elsewhere.
    pub async fn sandbox_by_any_id(&self, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
        match self.sandbox_by_id(id).await? {
            Some(sandbox) => Ok(Some(sandbox)),
            None => self.sandbox_by_alias(None, id.as_str()).await,
        }
    }

    /// Whether the alias leads to this sandbox from now on; it does not where it leads to another already.
    pub async fn add_alias(&self, organisation: &str, alias: &str, sandbox: &SandboxId) -> Result<bool, Error> {
        const FREE: &str = "DELETE FROM sandbox_aliases WHERE alias = $1 AND (sandbox NOT IN (SELECT id FROM sandboxes) \
             OR sandbox IN (SELECT id FROM sandboxes WHERE state = 'destroyed'))";
        const ADD: &str = "INSERT INTO sandbox_aliases (alias, organisation, sandbox) VALUES ($1, $2, $3) \
             ON CONFLICT DO NOTHING";
        let free = Statement::other(FREE, [alias.into()]);
        let add = Statement::other(ADD, [alias.into(), organisation.into(), sandbox.as_str().into()]);
        self.carry_out(Change::all(vec![free, add]).lasting(Lasting::Synced), None).await?;
        const LEADS: &str = "SELECT sandbox FROM sandbox_aliases WHERE alias = $1";
        let found: Option<String> = sqlx::query_scalar(LEADS).bind(alias).fetch_optional(&self.reads).await?;
        Ok(found.as_deref() == Some(sandbox.as_str()))
    }

    /// Ids that a sandbox had elsewhere.
    pub async fn aliases(&self, sandbox: &SandboxId) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT alias FROM sandbox_aliases WHERE sandbox = $1 ORDER BY alias";
        Ok(sqlx::query_scalar(SQL).bind(sandbox.as_str()).fetch_all(&self.reads).await?)
    }

    /// By id first, then by name, then by an id that it had elsewhere, within the organisation.
    pub async fn sandbox(&self, organisation: &str, id_or_name: &str) -> Result<Option<Sandbox>, Error> {
        if let Ok(id) = id_or_name.parse::<SandboxId>() {
            let found = self.sandbox_by_id(&id).await?;
            if let Some(sandbox) =
                found.filter(|sandbox| sandbox.organisation == organisation && sandbox.pool.is_none())
            {
                return Ok(Some(sandbox));
            }
        }
        match self.sandbox_by_name(organisation, id_or_name).await? {
            Some(sandbox) => Ok(Some(sandbox)),
            None => self.sandbox_by_alias(Some(organisation), id_or_name).await,
        }
    }

    async fn fetch(&self, sql: Sql) -> Result<Vec<Sandbox>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        rows.iter().map(read).collect()
    }
}

fn insert_labels(sandbox: &Sandbox) -> impl Iterator<Item = Statement> {
    let row = |(label, value): (&String, &String)| {
        let values = [sandbox.id.as_str().into(), label.as_str().into(), value.as_str().into()];
        Statement::insert("sandbox_labels", "sandbox, label, value", values)
    };
    sandbox.labels.iter().map(row)
}
