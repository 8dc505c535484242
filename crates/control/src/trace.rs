//! Spans for traces. They have a target of their own, so that whoever logs does not make them, and who makes them need
//! not log.

/// Only a collector's layer takes it.
pub const TARGET: &str = "cove::trace";

/// A span around something a provider does; made only where somebody collects traces.
macro_rules! effect {
    ($name:literal, $sandbox:expr) => {
        tracing::info_span!(target: "cove::trace", $name, otel.kind = "internal", sandbox = %$sandbox)
    };
}

pub(crate) use effect;
