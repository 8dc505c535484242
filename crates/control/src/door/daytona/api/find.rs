//! Finding sandboxes, one or many.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::filter::{self, Sort, Wanted};
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

/// How long one that was destroyed is shown to clients that look at it once more.
const SHOWN_AFTER_DELETE_MS: i64 = 60_000;

pub async fn show(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let found = match door.app.sandbox(&caller, &id).await {
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
        return Ok(Json(all.iter().map(|sandbox| view::sandbox(sandbox, &origin)).collect()));
    }
    let limit = pairs.number("limit")?.unwrap_or(100u32).clamp(1, LARGEST_PAGE);
    let cursor = pairs.one("cursor");
    let (items, next) = match wanted.sort {
        Sort::Created => by_time(&door, &caller, &wanted, limit, cursor).await?,
        _ => sorted(&door, &caller, &wanted, limit as usize, cursor).await?,
    };
    let items: Vec<Value> = items.iter().map(|sandbox| view::sandbox(sandbox, &origin)).collect();
    Ok(Json(json!({ "items": items, "nextCursor": next })))
}

type Found = (Vec<Sandbox>, Option<String>);

/// A page may hold fewer than were asked for: what the store cannot filter is taken out here.
async fn by_time(door: &Door, caller: &Caller, wanted: &Wanted, limit: u32, cursor: Option<&str>) -> Answer<Found> {
    if wanted.nothing {
        return Ok((Vec::new(), None));
    }
    let page = Page { limit, cursor: cursor.map(str::to_owned), order: wanted.order };
    let listed = door.app.list_sandboxes(caller, &wanted.filter, &page).await?;
    Ok((listed.items.into_iter().filter(|sandbox| wanted.keeps(sandbox)).collect(), listed.next))
}

/// By something else than the time: all are read, and the cursor counts them.
async fn sorted(door: &Door, caller: &Caller, wanted: &Wanted, limit: usize, cursor: Option<&str>) -> Answer<Found> {
    let begin = match cursor {
        Some(text) => text.parse().map_err(|_| Error::invalid("cursor", "not one that this server gave"))?,
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
        all.iter().skip((page - 1).saturating_mul(limit)).take(limit).map(|s| view::sandbox(s, &origin)).collect();
    Ok(Json(json!({
        "items": items,
        "total": all.len(),
        "page": page,
        "totalPages": all.len().div_ceil(limit),
    })))
}

async fn all(door: &Door, caller: &Caller, wanted: &Wanted) -> Answer<Vec<Sandbox>> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let (items, next) = by_time(door, caller, wanted, LARGEST_PAGE, cursor.as_deref()).await?;
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
