//! Every request, seen from outside: its id, a line in the log, a span in the traces.
//!
//! The id is the caller's own `X-Request-Id` where it is a decent one; it comes back with the answer, so that a person
//! can find the line of the log that belongs to a refusal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;

use crate::{App, random};

const ID: &str = "x-request-id";

/// Upper bounds of the histogram, in seconds.
pub const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// All requests of this process: servers of one process are one to whoever scrapes it.
pub struct Requests {
    classes: [AtomicU64; CLASSES.len()],
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    microseconds: AtomicU64,
}

static REQUESTS: Requests = Requests {
    classes: [const { AtomicU64::new(0) }; CLASSES.len()],
    buckets: [const { AtomicU64::new(0) }; BUCKETS.len()],
    count: AtomicU64::new(0),
    microseconds: AtomicU64::new(0),
};

/// How long they took, not yet added up from below.
pub struct Times {
    pub buckets: Vec<u64>,
    pub count: u64,
    pub seconds: f64,
}

impl Requests {
    fn note(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        let bucket = BUCKETS.iter().position(|bound| took.as_secs_f64() <= *bound);
        if let Some(bucket) = bucket {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn figures() -> (Vec<(&'static str, u64)>, Times) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let classes = CLASSES.into_iter().zip(REQUESTS.classes.iter().map(read)).collect();
        let buckets = REQUESTS.buckets.iter().map(read).collect();
        let seconds = read(&REQUESTS.microseconds) as f64 / 1e6;
        (classes, Times { buckets, count: read(&REQUESTS.count), seconds })
    }
}

pub async fn observe(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let _under_way = app.traffic().begin();
    let id = request_id(&request);
    request.headers_mut().insert(ID, id.clone());
    let told = id.to_str().unwrap_or_default().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let (method, path) = (request.method().clone(), shown(request.uri().path()));
    let span = span(&request, &path, route.as_deref(), &told);
    let mut response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status", "error");
    }
    response.headers_mut().entry(ID).or_insert(id);
    let took = began.elapsed();
    REQUESTS.note(status, took);
    let milliseconds = took.as_millis() as u64;
    // Refusals for want of room are told to the caller and are no news each; the rest of the 5xx is.
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(target: "cove::access", %method, path, status = status.as_u16(), milliseconds, request = told, "answered");
    } else {
        tracing::debug!(target: "cove::access", %method, path, status = status.as_u16(), milliseconds, request = told, "answered");
    }
    response
}

fn span(request: &Request, path: &str, route: Option<&str>, id: &str) -> tracing::Span {
    let span = tracing::info_span!(
        target: "cove::trace",
        "request",
        otel.name = tracing::field::Empty,
        otel.kind = "server",
        otel.status = tracing::field::Empty,
        traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok()),
        http.request.method = request.method().as_str(),
        http.route = route,
        url.path = path,
        http.response.status_code = tracing::field::Empty,
        cove.request = id,
    );
    if !span.is_disabled() {
        let name = route.map_or_else(|| request.method().to_string(), |route| format!("{} {route}", request.method()));
        span.record("otel.name", name.as_str());
    }
    span
}

/// The path without the tokens of links that stand in it (`/daytona/preview/{id}/{port}~{token}`, and the call that ends
/// one); logs and traces are read by others than those who may use a link. Queries are never shown.
fn shown(path: &str) -> String {
    let mut before = "";
    let parts = path.split('/').map(|part| {
        let ends_a_link = std::mem::replace(&mut before, part) == "signed-preview-url";
        let tilde = part.find('~').or_else(|| part.to_ascii_lowercase().find("%7e"));
        match tilde {
            _ if ends_a_link => "…",
            Some(at) => return format!("{}~…", &part[..at]),
            None => part,
        }
        .to_owned()
    });
    parts.collect::<Vec<_>>().join("/")
}

fn request_id(request: &Request) -> HeaderValue {
    let decent = |value: &&HeaderValue| {
        let text = value.as_bytes();
        (1..=128).contains(&text.len()) && text.iter().all(|byte| byte.is_ascii_graphic())
    };
    let own = request.headers().get(ID).filter(decent).cloned();
    own.unwrap_or_else(|| HeaderValue::from_str(&random::id("req")).expect("an id is letters and digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_link_is_not_shown() {
        for (path, wanted) in [
            ("/daytona/preview/abc/3000~secret/a/b", "/daytona/preview/abc/3000~…/a/b"),
            ("/daytona/preview/abc/3000%7esecret", "/daytona/preview/abc/3000~…"),
            (
                "/daytona/api/sandbox/abc/ports/80/signed-preview-url/secret/expire",
                "/daytona/api/sandbox/abc/ports/80/signed-preview-url/…/expire",
            ),
            ("/api/sandboxes/abc", "/api/sandboxes/abc"),
        ] {
            assert_eq!(shown(path), wanted);
        }
    }
}
