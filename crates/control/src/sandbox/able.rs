//! What a sandbox asks of its provider beyond being made: refused before the provider is asked, where it cannot.

use super::state::Event;
use super::{NetworkPolicy, Sandbox};
use crate::provider::Ability;
use crate::{App, Error};

impl App {
    /// Whether the provider can do all that the sandbox is set to.
    pub(crate) fn check_able(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let is_closed = sandbox.network == NetworkPolicy::closed();
        let rules = sandbox.network != NetworkPolicy::open()
            && !(is_closed && self.provider(&sandbox.provider)?.closes_networks());
        let asked = [
            // Without rules everything is reached.
            (Ability::NetworkPolicy, rules),
            (Ability::Volumes, !sandbox.volumes.is_empty()),
            (Ability::Archive, sandbox.timers.archive_after_seconds.is_some()),
        ];
        asked
            .into_iter()
            .filter(|(_, asked)| *asked)
            .try_for_each(|(ability, _)| self.require(&sandbox.provider, ability))
    }

    /// Whether it can do what is asked for now.
    pub(super) fn check_capable(&self, sandbox: &Sandbox, event: Event) -> Result<(), Error> {
        match event {
            Event::Pause => self.require(&sandbox.provider, Ability::Pause),
            Event::Stop | Event::Kill => self.require(&sandbox.provider, Ability::Persistent),
            Event::Archive if sandbox.timers.ephemeral => {
                Err(Error::invalid("archive", "an ephemeral sandbox cannot be archived"))
            }
            Event::Archive => self.require(&sandbox.provider, Ability::Archive),
            _ => Ok(()),
        }
    }
}
