//! `/metrics` in Prometheus' text form: counts of the installation, no names of tenants.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::native::error::ApiError;
use crate::App;
use crate::job::JobState;

pub async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let mut text = String::new();
    let head = |text: &mut String, name: &str, kind: &str, help: &str| {
        let _infallible = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    };
    head(&mut text, "cove_sandboxes", "gauge", "Sandboxes by state.");
    for (state, many) in app.store().count_states().await? {
        let _infallible = writeln!(text, "cove_sandboxes{{state=\"{state}\"}} {many}");
    }
    head(&mut text, "cove_pool_size", "gauge", "How many sandboxes a warm pool shall hold.");
    head(&mut text, "cove_pool_ready", "gauge", "How many it holds.");
    head(&mut text, "cove_pool_hits_total", "counter", "Creations that were served from a warm pool.");
    head(&mut text, "cove_pool_misses_total", "counter", "Creations that found their pool empty.");
    for (template, size, ready, hits, misses) in app.pool_figures() {
        let _infallible = writeln!(
            text,
            "cove_pool_size{{template=\"{template}\"}} {size}\ncove_pool_ready{{template=\"{template}\"}} {ready}\n\
             cove_pool_hits_total{{template=\"{template}\"}} {hits}\ncove_pool_misses_total{{template=\"{template}\"}} {misses}"
        );
    }
    head(&mut text, "cove_jobs", "gauge", "Background jobs that wait, or that were given up.");
    for state in [JobState::Queued, JobState::Running, JobState::Failed] {
        let many = app.store().jobs(None, Some(state), 1000).await?.len();
        let _infallible = writeln!(text, "cove_jobs{{state=\"{}\"}} {many}", state.as_str());
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
