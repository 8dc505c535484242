//! The server's log on stderr, and traces for a collector where one is configured.
//!
//! ```text
//!   tracing ──▶ log       (filter: log.filter; text or JSON)
//!          └──▶ traces    (target "cove::trace" alone) ──▶ channel ──▶ exporter ──▶ POST {endpoint}/v1/traces
//! ```
//! Spans of traces have a target of their own, which the log ignores. Without a collector nobody listens to it, and
//! such a span is never made.

mod export;
pub mod filter;
mod otlp;
mod spans;

use cove_control::config::Config;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::complaint::Complaint;

/// The exporter, which must finish its last batch.
pub struct Traces(Option<export::Exporter>);

impl Traces {
    pub async fn finish(self) {
        if let Some(exporter) = self.0 {
            exporter.finish().await;
        }
    }
}

/// To be called once, inside the runtime.
pub fn start(config: &Config) -> Result<Traces, Complaint> {
    let filter = filter::read(&config.log.filter)?.with_target(cove_control::trace::TARGET, LevelFilter::OFF);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = log.with_ansi(!config.log.json && crate::terminal::has_colour(&std::io::stderr()));
    let log = if config.log.json { log.json().flatten_event(true).boxed() } else { log.boxed() };
    let (spans, exporter) = match &config.telemetry.endpoint {
        None => (None, None),
        Some(endpoint) => {
            let (spans, exporter) = export::start(endpoint, &config.telemetry.service)?;
            let ours = Targets::new().with_target(cove_control::trace::TARGET, tracing::Level::INFO);
            (Some(spans.with_filter(ours)), Some(exporter))
        }
    };
    tracing_subscriber::registry().with(spans).with(log.with_filter(filter)).init();
    Ok(Traces(exporter))
}
