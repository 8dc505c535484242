//! The control plane as a library.
//!
//! # Layout
//! * [`guest`]: talking to the daemon inside a sandbox, whatever provider carries the connection
//! * [`provider`]: where sandboxes run

#![forbid(unsafe_code)]

pub mod guest;
pub mod provider;
