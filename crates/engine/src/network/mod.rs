//! A sandbox's network: a namespace of its own that holds a loopback device and nothing else.

pub mod namespace;

mod error;
mod netlink;

pub use error::Error;
