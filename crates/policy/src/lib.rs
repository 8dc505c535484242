//! Who may be reached from inside a sandbox.
//!
//! The engine's proxy asks for every connection, the control plane before it accepts a policy, and other providers
//! translate the same rules into their own. So the rules are a crate that all of them share: no threads, no tokio, and
//! no kernel but for one question to the routing table ([`place`]).
//!
//! # Layout
//! * [`egress`]: the rules as data; [`target`]: addresses as people write them
//! * [`policy`]: may this sandbox talk to that address? ([`rules`]: made ready to be asked often)
//! * [`ranges`]: addresses that nobody reaches unless a rule names them; [`place`]: whose address it is

#![forbid(unsafe_code)]

pub mod egress;
pub mod place;
pub mod policy;
#[cfg(test)]
mod policy_tests;
pub mod ranges;
pub mod rules;
pub mod target;

pub use egress::{Egress, Network, Target, Verdict};
