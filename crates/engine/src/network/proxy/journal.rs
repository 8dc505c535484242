//! The interface of the decision log: it gets every decision as it happens.

use crate::network::policy::{Decision, Destination};
use crate::spec::SandboxId;

/// Called on the proxy's own threads: an implementation notes and returns, it never waits.
pub trait Journal: Send + Sync {
    fn decided(&self, sandbox: &SandboxId, destination: &Destination, decision: &Decision);

    /// A name was asked for, before anybody answered.
    fn asked(&self, sandbox: &SandboxId, name: &str);
}

/// Keeps no record.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Journal for Silent {
    fn decided(&self, _: &SandboxId, _: &Destination, _: &Decision) {}

    fn asked(&self, _: &SandboxId, _: &str) {}
}
