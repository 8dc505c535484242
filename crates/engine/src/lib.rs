//! Isolation on Linux. Synchronous, no HTTP, no database.
//!
//! # Layout
//! * [`network`]: network namespaces and the egress proxy
//! * [`spec`]: what a sandbox shall be
//! * [`state`]: what is told of it

#![forbid(unsafe_code)]

pub mod network;
pub mod spec;
pub mod state;

pub use spec::{SandboxId, Spec};
pub use state::{Ended, Found, Running, Usage};
