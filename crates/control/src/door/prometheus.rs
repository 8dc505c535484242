//! `/metrics` in Prometheus' text form: counts of the installation, no names of tenants.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::native::error::ApiError;
use super::observe::{BUCKETS, Requests};
use crate::App;
use crate::job::JobState;
use crate::provider::health::{Act, Totals};
use crate::provider::{Provider, Space};

pub async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let mut page = Page::default();
    page.family("cove_sandboxes", "gauge", "Sandboxes by state.");
    for (state, many) in app.store().count_states().await? {
        page.sample("cove_sandboxes", &[("state", &state)], many);
    }
    pools(&mut page, &app);
    page.family("cove_jobs", "gauge", "Background jobs that wait, run, or were given up; counted up to 1000.");
    for state in [JobState::Queued, JobState::Running, JobState::Failed] {
        let many = app.store().count_jobs(state).await?;
        page.sample("cove_jobs", &[("state", state.as_str())], many);
    }
    capacity(&mut page, &app);
    disks(&mut page, &app);
    providers(&mut page, &app);
    requests(&mut page);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page.text).into_response())
}

fn pools(page: &mut Page, app: &App) {
    let pools = app.pool_figures();
    type Figure = (String, u32, u32, u64, u64);
    type Family = (&'static str, &'static str, &'static str, fn(&Figure) -> u64);
    let families: [Family; 4] = [
        ("cove_pool_size", "gauge", "How many sandboxes a warm pool shall hold.", |pool| pool.1.into()),
        ("cove_pool_ready", "gauge", "How many it holds.", |pool| pool.2.into()),
        ("cove_pool_hits_total", "counter", "Creations that were served from a warm pool.", |pool| pool.3),
        ("cove_pool_misses_total", "counter", "Creations that found their pool empty.", |pool| pool.4),
    ];
    for (name, kind, help, figure) in families {
        page.family(name, kind, help);
        // Several organisations may have a pool of one template: what is shown is their sum.
        let mut sums = std::collections::BTreeMap::<&str, u64>::new();
        for pool in &pools {
            *sums.entry(&pool.0).or_default() += figure(pool);
        }
        for (template, sum) in sums {
            page.sample(name, &[("template", template)], sum);
        }
    }
}

fn capacity(page: &mut Page, app: &App) {
    let figures = app.capacity().figures();
    for (name, help, value) in [
        ("cove_capacity_sandboxes", "Sandboxes that this server runs.", figures.sandboxes),
        ("cove_capacity_memory_bytes", "Memory that they may have together, by their limits.", figures.memory),
        ("cove_launches_running", "Launches under way.", figures.launching),
        ("cove_launches_waiting", "Launches that wait their turn.", figures.waiting),
    ] {
        page.family(name, "gauge", help);
        page.sample(name, &[], value);
    }
}

fn disks(page: &mut Page, app: &App) {
    let kept = app.config().capacity.free_disk;
    let of = |provider: &Arc<dyn Provider>| Some((provider.name().to_owned(), provider.storage(kept)?));
    let all: Vec<_> = app.providers().filter_map(of).collect();
    page.family("cove_storage_ok", "gauge", "1 where sandboxes' files have room and can be written, 0 where not.");
    for (provider, storage) in &all {
        page.sample("cove_storage_ok", &[("provider", provider.as_str())], u8::from(storage.trouble.is_none()));
    }
    type Figure = fn(&Space) -> u64;
    let families: [(&str, &str, Figure); 2] = [
        ("cove_disk_free_bytes", "Free, of the data directory's disk and of the pool of sandboxes' files.", |space| {
            space.free
        }),
        ("cove_disk_size_bytes", "How large they are.", |space| space.total),
    ];
    for (name, help, figure) in families {
        page.family(name, "gauge", help);
        for (provider, storage) in &all {
            page.sample(name, &[("provider", provider.as_str()), ("disk", "host")], figure(&storage.disk));
            if let Some(pool) = &storage.pool {
                page.sample(name, &[("provider", provider.as_str()), ("disk", "pool")], figure(pool));
            }
        }
    }
}

fn providers(page: &mut Page, app: &App) {
    page.family("cove_provider_ok", "gauge", "1 where new sandboxes can go to the provider, 0 where it is ill.");
    for provider in app.providers() {
        page.sample("cove_provider_ok", &[("provider", provider.name())], u8::from(app.is_well(provider.name())));
    }
    type Figure = fn(&Totals) -> f64;
    let families: [(&str, &str, Figure); 3] = [
        ("cove_provider_calls_total", "Calls of a provider, by what was asked.", |totals| totals.calls as f64),
        ("cove_provider_errors_total", "Those that failed for a fault of the provider.", |totals| totals.errors as f64),
        ("cove_provider_seconds_total", "The time that they took together.", |totals| totals.seconds),
    ];
    for (name, help, figure) in families {
        page.family(name, "counter", help);
        for provider in app.providers() {
            for act in Act::ALL {
                let totals = app.watch().totals(provider.name(), act);
                page.sample(name, &[("provider", provider.name()), ("act", act.as_str())], figure(&totals));
            }
        }
    }
}

fn requests(page: &mut Page) {
    let (counts, times) = Requests::figures();
    page.family("cove_http_requests_total", "counter", "Requests answered, by class of status.");
    for (class, count) in counts {
        page.sample("cove_http_requests_total", &[("status", class)], count);
    }
    let name = "cove_http_request_duration_seconds";
    page.family(name, "histogram", "Time to the first byte of the answer.");
    let mut below = 0;
    for (bound, count) in BUCKETS.iter().zip(&times.buckets) {
        below += count;
        page.sample(&format!("{name}_bucket"), &[("le", &bound.to_string())], below);
    }
    page.sample(&format!("{name}_bucket"), &[("le", "+Inf")], times.count);
    page.sample(&format!("{name}_sum"), &[], times.seconds);
    page.sample(&format!("{name}_count"), &[], times.count);
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// What follows, up to the next family, is of this name.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _infallible = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let braced = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _infallible = writeln!(self.text, "{name}{braced} {value}");
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
