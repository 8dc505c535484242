//! Looking at sandboxes and sessions.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::By;
use super::error::{Answer, Refusal};
use super::memory::Memory;
use super::naming::{name_of, sandbox_of, session_of};
use super::view::{self, Origin, TIMEOUT};
use crate::guest::Guest;
use crate::sandbox::{Filter, Order, Page, Sandbox, State as Life, TimersChange};
use crate::{App, Caller, Error, Scope};

const LIMIT: usize = 50;
const MOST: usize = 100;
/// Sandboxes that a list is made of, at most.
const LOOKED_AT: usize = 10_000;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listing {
    limit: Option<String>,
    sort_by: Option<String>,
    sort_order: Option<String>,
    name_prefix: Option<String>,
    name: Option<String>,
    cursor: Option<String>,
    /// `key:value`.
    tags: Option<String>,
}

impl Listing {
    pub fn limit(&self) -> Answer<usize> {
        match self.limit.as_deref().map(str::parse::<usize>) {
            None => Ok(LIMIT),
            Some(Ok(limit)) if (1..=MOST).contains(&limit) => Ok(limit),
            Some(_) => Err(Refusal::bad(format!("limit: 1 to {MOST}"))),
        }
    }

    fn order(&self) -> Answer<Order> {
        match self.sort_order.as_deref() {
            None | Some("desc") => Ok(Order::NewestFirst),
            Some("asc") => Ok(Order::OldestFirst),
            Some(other) => Err(Refusal::bad(format!("sortOrder: {other:?} is neither asc nor desc"))),
        }
    }

    /// Where the page begins: cursors count.
    fn offset(&self) -> Answer<usize> {
        match self.cursor.as_deref().filter(|cursor| !cursor.is_empty()).map(str::parse) {
            None => Ok(0),
            Some(Ok(offset)) => Ok(offset),
            Some(Err(_)) => Err(Refusal::bad("cursor: not one of a page before")),
        }
    }

    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref().filter(|cursor| !cursor.is_empty())
    }

    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    pub fn name_prefix(&self) -> &str {
        self.name_prefix.as_deref().unwrap_or_default()
    }

    /// A piece of a list that is whole, and where the next begins.
    pub fn page<T>(&self, all: Vec<T>) -> Answer<(Vec<T>, Value)> {
        let (offset, limit) = (self.offset()?, self.limit()?);
        let next = offset.saturating_add(limit);
        let more = all.len() > next;
        let items: Vec<T> = all.into_iter().skip(offset).take(limit).collect();
        let pagination = json!({"count": items.len(), "next": more.then(|| next.to_string())});
        Ok((items, pagination))
    }
}

/// Every sandbox that the filter lets through.
async fn all(app: &App, caller: &Caller, filter: &Filter, order: Order) -> Result<Vec<Sandbox>, Error> {
    let mut page = Page { limit: 1000, cursor: None, order };
    let mut found = Vec::new();
    loop {
        let listed = app.list_sandboxes(caller, filter, &page).await?;
        found.extend(listed.items);
        match listed.next {
            Some(next) if found.len() < LOOKED_AT => page.cursor = Some(next),
            _ => return Ok(found),
        }
    }
}

pub async fn list(State(app): State<App>, By(caller): By, Query(listing): Query<Listing>) -> Answer<Json<Value>> {
    let labels = match listing.tags.as_deref().map(|tags| tags.split_once(':')) {
        None => BTreeMap::new(),
        Some(Some((key, value))) => BTreeMap::from([(key.to_owned(), value.to_owned())]),
        Some(None) => return Err(Refusal::bad("tags: one pair, as key:value")),
    };
    let prefix = Some(listing.name_prefix().to_owned()).filter(|prefix| !prefix.is_empty());
    let filter = Filter { labels, name_prefix: prefix, ..Filter::default() };
    let order = listing.order()?;
    let mut found = all(&app, &caller, &filter, order).await?;
    match listing.sort_by.as_deref() {
        None | Some("createdAt") => {}
        Some("name") => {
            found.sort_by_key(name_of);
            if order == Order::NewestFirst && listing.sort_order.is_some() {
                found.reverse();
            }
        }
        Some("statusUpdatedAt") => {
            found.sort_by_key(|sandbox| sandbox.state_since);
            if order == Order::NewestFirst {
                found.reverse();
            }
        }
        Some(other) => {
            return Err(Refusal::bad(format!("sortBy: {other:?} is not createdAt, name or statusUpdatedAt")));
        }
    }
    let (items, pagination) = listing.page(found)?;
    let told: Vec<Value> = items.iter().map(view::sandbox).collect();
    Ok(Json(json!({"sandboxes": told, "pagination": pagination})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Showing {
    resume: Option<String>,
}

/// A sandbox; one that rests is started where that is asked for, and gets its time again.
pub async fn show(
    State(app): State<App>,
    By(caller): By,
    Path(name): Path<String>,
    Query(showing): Query<Showing>,
    origin: Origin,
) -> Answer<Json<Value>> {
    let resume = match showing.resume.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(Refusal::bad(format!("resume: {other:?} is neither true nor false"))),
    };
    let mut sandbox = app.sandbox(&caller, &name).await?;
    let mut resumed = false;
    if resume {
        caller.require(Scope::Write)?;
        if sandbox.state.is_in_transition() {
            sandbox = app.settled(&sandbox.id).await?;
        }
        if sandbox.state != Life::Running {
            sandbox = start(&app, &caller, &sandbox).await?;
            resumed = true;
        }
    }
    let mut whole = view::whole(&sandbox, &origin);
    whole["resumed"] = json!(resumed);
    Ok(Json(whole))
}

async fn start(app: &App, caller: &Caller, sandbox: &Sandbox) -> Result<Sandbox, Error> {
    let id = sandbox.id.as_str();
    let seconds = Memory::of(sandbox).timeout.unwrap_or(TIMEOUT).div_ceil(1000).max(1);
    let lifetime = TimersChange { lifetime_seconds: Some(Some(seconds)), ..TimersChange::default() };
    // Before it runs: a deadline of its last session would end this one at once.
    app.set_timers(caller, id, lifetime).await?;
    match sandbox.state {
        Life::Paused => app.resume(caller, id).await,
        _ => app.start(caller, id).await,
    }
}

/// The sandbox of a session, as it is now.
pub async fn of_session(app: &App, caller: &Caller, session: &str) -> Answer<Sandbox> {
    let missing = || Error::not_found("session", session);
    let id = sandbox_of(session).ok_or_else(missing)?;
    let sandbox = app.sandbox(caller, id).await.map_err(|error| match error {
        Error::NotFound { .. } => missing(),
        error => error,
    })?;
    Ok(sandbox)
}

/// The sandbox of a session that goes on, and what runs in it.
pub async fn inside(app: &App, caller: &Caller, session: &str) -> Answer<(Sandbox, Guest)> {
    let sandbox = of_session(app, caller, session).await?;
    if session_of(&sandbox) != session {
        return Err(Refusal::over(session));
    }
    match view::status(sandbox.state) {
        "stopping" => return Err(Refusal::stopping(session)),
        "stopped" => return Err(Refusal::over(session)),
        _ => {}
    }
    Ok(app.reach(caller, sandbox.id.as_str()).await?)
}

pub async fn session(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    origin: Origin,
) -> Answer<Json<Value>> {
    let sandbox = of_session(&app, &caller, &session).await?;
    let mut told = view::session(&sandbox);
    if session_of(&sandbox) != session {
        told["id"] = json!(session);
        told["status"] = json!("stopped");
    }
    Ok(Json(json!({"session": told, "routes": view::routes(&sandbox, &origin)})))
}

/// The present or last session of each sandbox: earlier ones are not kept.
pub async fn sessions(State(app): State<App>, By(caller): By, Query(listing): Query<Listing>) -> Answer<Json<Value>> {
    let order = listing.order()?;
    let found = match listing.name() {
        Some(name) => match app.sandbox(&caller, name).await {
            Ok(sandbox) => vec![sandbox],
            Err(Error::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        },
        None => all(&app, &caller, &Filter::default(), order).await?,
    };
    let (items, pagination) = listing.page(found)?;
    let told: Vec<Value> = items.iter().map(view::session).collect();
    Ok(Json(json!({"sessions": told, "pagination": pagination})))
}
