//! A sandbox's network: a namespace of its own that holds a loopback device and nothing else, and a proxy of the host's
//! behind which the world lies.
//!
//! # Layout
//! * [`namespace`]: makes namespaces; `firewall` holds their rules, `netlink` brings both to the kernel
//! * [`policy`]: who may be reached ([`rules`]: made ready to be asked, [`place`]: whose address it is), with [`ranges`] that nobody reaches unless named, and [`target`] as people write them
//! * [`proxy`]: judges and passes on; `dns`, `names` and `resolvers` are its knowledge of names

pub mod namespace;
pub mod place;
pub mod policy;
pub mod proxy;
pub mod ranges;
pub mod target;

mod dns;
mod error;
mod firewall;
mod names;
mod netlink;
#[cfg(test)]
mod policy_tests;
mod resolvers;
pub mod rules;

pub use error::Error;
pub use namespace::RESOLVER;
pub use proxy::{Counters, Journal, Proxy, Settings};
