//! Isolation on Linux. Synchronous, no HTTP, no database.
//!
//! # Layout
//! * [`cgroup`]: limits, accounts, freezing, killing
//! * [`doctor`]: what this host can do
//! * [`network`]: network namespaces and the egress proxy
//! * [`spec`]: what a sandbox shall be
//! * [`state`]: what is told of it
//! * [`storage`]: where what a sandbox writes is kept

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod doctor;
pub mod network;
pub mod spec;
pub mod state;
pub mod storage;

pub use spec::{SandboxId, Spec};
pub use state::{Ended, Found, Running, Usage};
