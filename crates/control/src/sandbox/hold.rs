//! Limits that a provider cannot enforce: a requested one is refused, a default is reported as not enforced.

use super::LimitsChange;
use crate::provider::Limit;
use crate::{App, Error};

impl App {
    pub(crate) fn check_held(&self, provider: &str, asked: &LimitsChange) -> Result<(), Error> {
        let is_asked = |limit: Limit| match limit {
            Limit::Cpus => asked.cpus.is_some(),
            Limit::Memory => asked.memory.is_some(),
            Limit::Pids => asked.pids.is_some(),
            Limit::Disk => asked.disk.is_some(),
        };
        match self.provider(provider)?.unheld().into_iter().find(|unheld| is_asked(unheld.limit)) {
            None => Ok(()),
            Some(unheld) => Err(Error::Unsupported(format!(
                "limits.{} cannot be held by provider {provider}: {}; hint: on the server's machine: {}",
                unheld.limit, unheld.why, unheld.remedy
            ))),
        }
    }

    /// Refuses a volume's size that a caller asks for and nothing holds. Without one a volume takes what the disk has.
    pub(crate) fn check_size_held(&self, provider: &str) -> Result<(), Error> {
        match self.provider(provider)?.unheld_volumes() {
            None => Ok(()),
            Some(unheld) => Err(Error::Unsupported(format!(
                "size cannot be held by provider {provider}: {}; a volume can be made without one; hint: on the server's \
                 machine: {}",
                unheld.why, unheld.remedy
            ))),
        }
    }

    /// Their names, for reports about a sandbox.
    pub fn unheld(&self, provider: &str) -> Vec<String> {
        let unheld = self.provider(provider).map(|provider| provider.unheld()).unwrap_or_default();
        unheld.into_iter().map(|unheld| unheld.limit.to_string()).collect()
    }
}
