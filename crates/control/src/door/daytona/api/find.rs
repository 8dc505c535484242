//! Finding sandboxes, one or many.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::filter::{self, Sort, Wanted};
use super::pending::{self, Waits};
use crate::clock::Timestamp;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::Answer;
use crate::door::daytona::query::Pairs;
use crate::door::daytona::sdk::{AfterDelete, ListShape};
use crate::door::daytona::view;
use crate::sandbox::{Order, Page, Sandbox, State as Life};
use crate::{Caller, Error};

/// One of a list: a sandbox that is there, or one that waits for its image.
pub struct Item {
    /// As it was asked for, where it waits.
    pub sandbox: Sandbox,
    waits: Option<Waits>,
}

impl Item {
    pub fn state(&self) -> &'static str {
        self.waits.as_ref().map_or_else(|| view::state(self.sandbox.state), |waits| waits.state)
    }

    fn view(&self, origin: &Origin) -> Value {
        match &self.waits {
            Some(waits) => pending::shown(&self.sandbox, origin, waits),
            None => view::sandbox(&self.sandbox, origin),
        }
    }
}

/// How long one that was destroyed is shown to clients that look at it once more.
const SHOWN_AFTER_DELETE_MS: i64 = 60_000;

pub async fn show(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let found = door.app.sandbox(&caller, &id).await;
    if let Err(Error::NotFound { .. }) = &found
        && let Some(waits) = pending::show(&door, &caller, &origin, &id).await?
    {
        return Ok(Json(waits));
    }
    let found = match found {
        Err(Error::NotFound { .. }) if AfterDelete::of(&headers) == AfterDelete::Looks => {
            let gone = door.app.sandbox_even_destroyed(&caller, &id).await?;
            let recently = |since: Timestamp| door.app.now().as_millisecond() - since.as_millisecond();
            if gone.state != Life::Destroyed || recently(gone.state_since) > SHOWN_AFTER_DELETE_MS {
                return Err(Error::not_found("sandbox", id).into());
            }
            gone
        }
        found => found?,
    };
    Ok(Json(view::sandbox(&found, &origin)))
}

const LARGEST_PAGE: u32 = 200;

pub async fn list(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    headers: HeaderMap,
    pairs: Pairs,
) -> Answer<Json<Value>> {
    let wanted = filter::read(&door, &caller, &pairs).await?;
    if ListShape::wanted(&headers) == ListShape::Bare {
        let all = all(&door, &caller, &wanted).await?;
        return Ok(Json(all.iter().map(|item| item.view(&origin)).collect()));
    }
    let limit = pairs.number("limit")?.unwrap_or(100u32).clamp(1, LARGEST_PAGE) as usize;
    let cursor = pairs.one("cursor");
    let (items, next) = match wanted.sort {
        Sort::Created => by_time(&door, &caller, &wanted, limit, cursor).await?,
        _ => sorted(&door, &caller, &wanted, limit, cursor).await?,
    };
    let items: Vec<Value> = items.iter().map(|item| item.view(&origin)).collect();
    Ok(Json(json!({ "items": items, "nextCursor": next })))
}

type Found = (Vec<Item>, Option<String>);

/// What a cursor begins with that counts sandboxes which wait.
const WAITING: &str = "waiting.";

/// Where a page begins.
enum Place<'a> {
    /// At so many of those that wait.
    Waiting(usize),
    /// Where the store says.
    Made(Option<&'a str>),
}

impl Place<'_> {
    fn read(cursor: Option<&str>, order: Order) -> Answer<Place<'_>> {
        match (cursor, cursor.and_then(|text| text.strip_prefix(WAITING))) {
            (_, Some(number)) => Ok(Place::Waiting(number.parse().map_err(|_| not_ours())?)),
            (None, None) if order == Order::NewestFirst => Ok(Place::Waiting(0)),
            (cursor, None) => Ok(Place::Made(cursor)),
        }
    }
}

fn not_ours() -> Error {
    Error::invalid("cursor", "not one that this server gave")
}

/// Those that wait are the newest: they come first, or last where the oldest do.
async fn by_time(door: &Door, caller: &Caller, wanted: &Wanted, limit: usize, cursor: Option<&str>) -> Answer<Found> {
    if wanted.nothing {
        return Ok((Vec::new(), None));
    }
    match (Place::read(cursor, wanted.order)?, wanted.order) {
        (Place::Waiting(begin), Order::NewestFirst) => {
            let (mut items, next) = waiting(door, caller, wanted, begin, limit).await?;
            if next.is_some() {
                return Ok((items, next));
            }
            if items.len() == limit {
                let next = format!("{WAITING}{}", begin.saturating_add(limit));
                return Ok((items, Some(next)));
            }
            let (rest, next) = made(door, caller, wanted, limit - items.len(), None).await?;
            items.extend(rest);
            Ok((items, next))
        }
        (Place::Waiting(begin), Order::OldestFirst) => waiting(door, caller, wanted, begin, limit).await,
        (Place::Made(cursor), Order::NewestFirst) => made(door, caller, wanted, limit, cursor).await,
        (Place::Made(cursor), Order::OldestFirst) => {
            let (mut items, next) = made(door, caller, wanted, limit, cursor).await?;
            if next.is_some() {
                return Ok((items, next));
            }
            let (rest, next) = waiting(door, caller, wanted, 0, limit - items.len()).await?;
            items.extend(rest);
            Ok((items, next))
        }
    }
}

/// A page may hold fewer than were asked for: what the store cannot filter is taken out here.
async fn made(door: &Door, caller: &Caller, wanted: &Wanted, limit: usize, cursor: Option<&str>) -> Answer<Found> {
    if wanted.none_made {
        return Ok((Vec::new(), None));
    }
    let limit = u32::try_from(limit).unwrap_or(LARGEST_PAGE);
    let page = Page { limit, cursor: cursor.map(str::to_owned), order: wanted.order };
    let listed = door.app.list_sandboxes(caller, &wanted.filter, &page).await?;
    let kept = listed.items.into_iter().filter(|sandbox| wanted.keeps(sandbox));
    Ok((kept.map(|sandbox| Item { sandbox, waits: None }).collect(), listed.next))
}

/// Those that wait for their images, from the `begin`th on.
async fn waiting(door: &Door, caller: &Caller, wanted: &Wanted, begin: usize, limit: usize) -> Answer<Found> {
    let all = pending::all(door, caller).await?.into_iter();
    let all = all.map(|(sandbox, waits)| Item { sandbox, waits: Some(waits) });
    let mut kept: Vec<Item> = all.filter(|item| wanted.keeps_waiting(item)).collect();
    if wanted.order == Order::OldestFirst {
        kept.reverse();
    }
    let end = begin.saturating_add(limit);
    let next = (end < kept.len()).then(|| format!("{WAITING}{end}"));
    Ok((kept.into_iter().skip(begin).take(limit).collect(), next))
}

/// By something else than the time: all are read, and the cursor counts them.
async fn sorted(door: &Door, caller: &Caller, wanted: &Wanted, limit: usize, cursor: Option<&str>) -> Answer<Found> {
    let begin = match cursor {
        Some(text) => text.parse().map_err(|_| not_ours())?,
        None => 0usize,
    };
    let all = all(door, caller, wanted).await?;
    let next = begin.saturating_add(limit);
    let more = (next < all.len()).then(|| next.to_string());
    Ok((all.into_iter().skip(begin).take(limit).collect(), more))
}

/// By number, for SDKs before the cursor. They want a total, so all is read.
pub async fn pages(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    pairs: Pairs,
) -> Answer<Json<Value>> {
    let limit = pairs.number("limit")?.unwrap_or(100usize).clamp(1, LARGEST_PAGE as usize);
    let page = pairs.number("page")?.unwrap_or(1usize).max(1);
    let wanted = filter::read(&door, &caller, &pairs).await?;
    let all = all(&door, &caller, &wanted).await?;
    let items: Vec<Value> =
        all.iter().skip((page - 1).saturating_mul(limit)).take(limit).map(|item| item.view(&origin)).collect();
    Ok(Json(json!({
        "items": items,
        "total": all.len(),
        "page": page,
        "totalPages": all.len().div_ceil(limit),
    })))
}

async fn all(door: &Door, caller: &Caller, wanted: &Wanted) -> Answer<Vec<Item>> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let (items, next) = by_time(door, caller, wanted, LARGEST_PAGE as usize, cursor.as_deref()).await?;
        found.extend(items);
        if next.is_none() {
            break;
        }
        cursor = next;
    }
    wanted.sort.put_in_order(&mut found);
    if wanted.sort != Sort::Created && wanted.order == Order::NewestFirst {
        found.reverse();
    }
    Ok(found)
}
