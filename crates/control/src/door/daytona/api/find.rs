//! Finding sandboxes, one or many.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view;
use crate::sandbox::{Filter, Order, Page, Sandbox};
use crate::{Caller, Error};

pub async fn show(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let sandbox = door.app.sandbox(&caller, &id).await?;
    Ok(Json(view::sandbox(&sandbox, &origin)))
}

const LARGEST_PAGE: u32 = 200;

fn filter(pairs: &Pairs) -> Answer<Filter> {
    let labels = match pairs.one("labels") {
        Some(text) => {
            serde_json::from_str(text).map_err(|_| Problem::bad_request("labels must be a JSON object of strings"))?
        }
        None => Default::default(),
    };
    let time = |name: &str| match pairs.one(name) {
        Some(text) => text
            .parse::<Timestamp>()
            .map(Some)
            .map_err(|_| Problem::bad_request(format!("{name} {text:?} is not a time such as 2026-01-31T12:00:00Z"))),
        None => Ok(None),
    };
    let words: Vec<&str> = pairs.all("states").flat_map(|words| words.split(',')).collect();
    Ok(Filter {
        labels,
        states: words.iter().flat_map(|word| view::states(word)).collect(),
        template: pairs.one("snapshots").map(str::to_owned),
        name_prefix: pairs.one("name").map(str::to_owned),
        owner: None,
        created_after: time("createdAtAfter")?,
        created_before: time("createdAtBefore")?,
    })
}

fn order(pairs: &Pairs) -> Order {
    if pairs.one("order") == Some("asc") { Order::OldestFirst } else { Order::NewestFirst }
}

pub async fn list(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    pairs: Pairs,
) -> Answer<Json<Value>> {
    // An id that begins so: there is one at most.
    if let Some(id) = pairs.one("id") {
        let found = match door.app.sandbox(&caller, id).await {
            Ok(sandbox) => vec![view::sandbox(&sandbox, &origin)],
            Err(Error::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        return Ok(Json(json!({ "items": found, "nextCursor": null })));
    }
    let limit = pairs.number("limit")?.unwrap_or(100u32).clamp(1, LARGEST_PAGE);
    let page = Page { limit, cursor: pairs.one("cursor").map(str::to_owned), order: order(&pairs) };
    let listed = door.app.list_sandboxes(&caller, &filter(&pairs)?, &page).await?;
    let items: Vec<Value> = listed.items.iter().map(|sandbox| view::sandbox(sandbox, &origin)).collect();
    Ok(Json(json!({ "items": items, "nextCursor": listed.next })))
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
    let all = all(&door, &caller, &filter(&pairs)?, order(&pairs)).await?;
    let items: Vec<Value> =
        all.iter().skip((page - 1).saturating_mul(limit)).take(limit).map(|s| view::sandbox(s, &origin)).collect();
    Ok(Json(json!({
        "items": items,
        "total": all.len(),
        "page": page,
        "totalPages": all.len().div_ceil(limit),
    })))
}

async fn all(door: &Door, caller: &Caller, filter: &Filter, order: Order) -> Answer<Vec<Sandbox>> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = Page { limit: LARGEST_PAGE, cursor, order };
        let listed = door.app.list_sandboxes(caller, filter, &page).await?;
        found.extend(listed.items);
        match listed.next {
            Some(next) => cursor = Some(next),
            None => return Ok(found),
        }
    }
}
