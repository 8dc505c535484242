//! What a build says, as text: replayed from its first line, and followed to its end.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use serde_json::{Value, json};

use super::{pending, snapshot};
use crate::App;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::Answer;
use crate::door::daytona::query::Pairs;

/// How long a follower waits at one time. Longer silences are of no account: it waits again.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn of_snapshot(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Answer<Response> {
    let build = snapshot::build_of(&door.app, &caller, &id).await?;
    told(door.app, build.id, &pairs)
}

/// SDKs put `?follow=true` behind it and bring their key.
pub async fn url_of_snapshot(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    snapshot::build_of(&door.app, &caller, &id).await?;
    Ok(Json(json!({ "url": format!("{}/snapshots/{}/build-logs", origin.api(), in_path(&id)) })))
}

pub async fn of_sandbox(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Answer<Response> {
    let build = pending::build_of(&door, &caller, &id).await?;
    told(door.app, build, &pairs)
}

pub async fn url_of_sandbox(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    pending::build_of(&door, &caller, &id).await?;
    Ok(Json(json!({ "url": format!("{}/sandbox/{}/build-logs", origin.api(), in_path(&id)) })))
}

fn in_path(id: &str) -> String {
    percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC).to_string().replace("%2D", "-")
}

/// Where a listener is.
struct Place {
    app: App,
    build: String,
    /// Lines that were told.
    told: i64,
    wait: Duration,
    is_over: bool,
}

fn told(app: App, build: String, pairs: &Pairs) -> Answer<Response> {
    let wait = if pairs.switch("follow")? == Some(true) { PATIENCE } else { Duration::ZERO };
    let place = Place { app, build, told: 0, wait, is_over: false };
    let body = Body::from_stream(stream::unfold(place, next));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// The lines since the last ones. Over once the build has ended and all of it was told; without a wait, once nothing is
/// left that was there.
async fn next(mut place: Place) -> Option<(Result<Bytes, std::io::Error>, Place)> {
    loop {
        if place.is_over {
            return None;
        }
        let status = tokio::select! {
            status = place.app.follow_build(&place.build, place.told, place.wait) => status,
            () = place.app.ending().cancelled() => return None,
        };
        let status = match status {
            Ok(status) => status,
            // The head of the answer is long gone: a connection that breaks says that something is missing.
            Err(error) => {
                place.is_over = true;
                return Some((Err(std::io::Error::other(error.to_string())), place));
            }
        };
        if status.lines.is_empty() {
            if place.wait.is_zero() || status.build.state.is_final() {
                return None;
            }
            continue;
        }
        place.told = status.lines.last().map_or(place.told, |line| line.seq);
        let text: String = status.lines.iter().flat_map(|line| [line.message.as_str(), "\n"]).collect();
        return Some((Ok(text.into()), place));
    }
}
