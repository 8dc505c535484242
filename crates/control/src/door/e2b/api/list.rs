//! Lists of sandboxes, filtered and in pages.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::super::error::ApiError;
use super::super::query::Query;
use super::create::template_name;
use super::{By, describe};
use crate::sandbox::{Filter, Order, Page};
use crate::{App, Error};

const LIMIT: u32 = 100;

/// The first version: those that run, all at once.
pub async fn v1(State(app): State<App>, By(caller): By, uri: Uri) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let filter = Filter {
        labels: query.get("metadata").map(metadata).transpose()?.unwrap_or_default(),
        states: describe::states("running").unwrap_or_default(),
        ..Filter::default()
    };
    let mut all = Vec::new();
    let mut page = Page { limit: LIMIT, cursor: None, order: Order::NewestFirst };
    loop {
        let listed = app.list_sandboxes(&caller, &filter, &page).await?;
        all.extend(listed.items.iter().map(describe::listed));
        match listed.next {
            Some(next) => page.cursor = Some(next),
            None => return Ok(axum::Json(all).into_response()),
        }
    }
}

pub async fn v2(State(app): State<App>, By(caller): By, uri: Uri) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let (mut filter, page) = (filter(&query)?, page(&query)?);
    if let Some(name) = query.get("template").filter(|name| !name.is_empty()) {
        match app.template(&caller, &template_name(name)?).await {
            Ok(template) => filter.template = Some(template.name),
            // Nobody's template is in no sandbox.
            Err(Error::NotFound { .. }) => return Ok(axum::Json(serde_json::json!([])).into_response()),
            Err(error) => return Err(error.into()),
        }
    }
    let listed = app.list_sandboxes(&caller, &filter, &page).await?;
    let told: Vec<_> = listed.items.iter().map(describe::listed).collect();
    let mut response = axum::Json(told).into_response();
    if let Some(next) = listed.next.as_deref().and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

fn filter(query: &Query) -> Result<Filter, ApiError> {
    let mut words = query.list("state");
    if words.is_empty() {
        words = vec!["running", "paused"];
    }
    let mut states = Vec::new();
    for word in words {
        let meant = describe::states(word);
        states.extend(meant.ok_or_else(|| ApiError::bad(format!("state '{word}' is neither running nor paused")))?);
    }
    let created_after = query
        .get("startedAfter")
        .map(|text| text.parse().map_err(|_| ApiError::bad(format!("startedAfter: '{text}' is no RFC 3339 time"))))
        .transpose()?;
    Ok(Filter {
        labels: query.get("metadata").map(metadata).transpose()?.unwrap_or_default(),
        states,
        created_after,
        ..Filter::default()
    })
}

fn page(query: &Query) -> Result<Page, ApiError> {
    let limit = match query.get("limit").map(str::parse::<u32>) {
        None => LIMIT,
        Some(Ok(limit)) if (1..=LIMIT).contains(&limit) => limit,
        Some(_) => return Err(ApiError::bad(format!("limit must be 1 to {LIMIT}"))),
    };
    let order = match query.get("order") {
        None | Some("desc") => Order::NewestFirst,
        Some("asc") => Order::OldestFirst,
        Some(other) => return Err(ApiError::bad(format!("order '{other}' is neither asc nor desc"))),
    };
    let cursor = query.get("nextToken").filter(|token| !token.is_empty()).map(ToOwned::to_owned);
    Ok(Page { limit, cursor, order })
}

/// `key=value&…`, where the whole was escaped once more than a query is, and each part once more than that.
fn metadata(text: &str) -> Result<BTreeMap<String, String>, ApiError> {
    let unescape = |text: &str| {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(|text| text.into_owned());
        decoded.map_err(|_| ApiError::bad("metadata is no valid UTF-8"))
    };
    let whole = unescape(text)?;
    whole
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((unescape(key)?, unescape(value)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_unescaped_as_often_as_clients_escape_it() {
        let query = Query::parse("metadata=a%3Db%252520c%26u%3D%2525C5%252599%252526%25253D");
        let pairs = metadata(query.get("metadata").unwrap()).ok().unwrap();
        assert_eq!(pairs, BTreeMap::from([("a".into(), "b c".into()), ("u".into(), "ř&=".into())]));
    }

    #[test]
    fn both_states_are_meant_where_none_is_named() {
        let all = filter(&Query::parse("")).ok().unwrap().states;
        let both = filter(&Query::parse("state=running%2Cpaused")).ok().unwrap().states;
        assert_eq!(all, both);
        assert!(filter(&Query::parse("state=asleep")).is_err());
        assert!(filter(&Query::parse("startedAfter=yesterday")).is_err());
    }

    #[test]
    fn a_page_has_its_bounds() {
        assert!(page(&Query::parse("limit=0")).is_err());
        assert!(page(&Query::parse("limit=101")).is_err());
        assert!(page(&Query::parse("order=up")).is_err());
        assert_eq!(page(&Query::parse("limit=5&order=asc&nextToken=x")).ok().unwrap().order, Order::OldestFirst);
    }
}
