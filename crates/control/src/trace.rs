//! Spans for traces. They have a target of their own, so that the log ignores them and they exist without a log.

/// Only the collector's layer listens to this target.
pub const TARGET: &str = "cove::trace";

/// A span around an operation of a provider; made only where traces are collected.
macro_rules! effect {
    ($name:literal, $sandbox:expr) => {
        tracing::info_span!(target: "cove::trace", $name, otel.kind = "internal", sandbox = %$sandbox)
    };
}

pub(crate) use effect;
