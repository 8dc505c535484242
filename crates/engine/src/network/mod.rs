//! A sandbox's network: a namespace of its own that holds a loopback device and nothing else.

pub mod namespace;
pub mod policy;
pub mod ranges;
pub mod target;

mod error;
mod firewall;
mod netlink;
#[cfg(test)]
mod policy_tests;

pub use error::Error;
