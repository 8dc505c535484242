//! Ports that something in the sandbox listens on.

pub mod dial;
pub mod list;
