//! The control plane as a library.
//!
//! # Layout
//! * [`guest`]: talking to the daemon inside a sandbox, whatever provider carries the connection
//! * [`interpreter`]: code that keeps its variables between calls
//! * [`provider`]: where sandboxes run

#![forbid(unsafe_code)]

pub mod guest;
pub mod interpreter;
pub mod provider;
