//! A sandbox's network: a namespace of its own that holds a loopback device and nothing else, and a proxy of the host's
//! behind which the world lies.
//!
//! # Layout
//! * [`namespace`]: makes namespaces; `firewall` holds their rules, `netlink` brings both to the kernel
//! * [`policy`]: who may be reached; it is the crate `cove-policy`, which the control plane shares
//! * [`proxy`]: judges by it and passes on; `dns`, `names` and `resolvers` are its knowledge of names

pub mod namespace;
pub mod proxy;

mod dns;
mod error;
mod firewall;
mod names;
mod netlink;
mod resolvers;

pub use cove_policy::{place, policy, ranges, rules, target};
pub use error::Error;
pub use namespace::RESOLVER;
pub use proxy::{Counters, Journal, Proxy, Settings};
