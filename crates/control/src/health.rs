//! Whether this server can do its work, and whether its disks have room for more.
//!
//! Both are asked at the moment somebody wants to know: a few calls of statvfs and one small query. Nothing is
//! remembered, so that nobody is told of a disk as it was. Room is asked for before anything is begun that would take
//! some, so that a full disk is met by those who would fill it and not by those who have something on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::provider::{Health, Provider, Space, Trouble};
use crate::{App, Error};

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Check {
    /// `database` or `storage`.
    pub name: &'static str,
    pub ok: bool,
    /// A sentence, where it is not in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The disk of the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub disk: Option<Space>,
    /// The filesystem of sandboxes' files, where that is one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub pool: Option<Space>,
}

impl Check {
    fn new(name: &'static str, message: Option<String>) -> Check {
        Check { name, ok: message.is_none(), message, disk: None, pool: None }
    }
}

/// What was last said of each provider's storage in the log.
#[derive(Default)]
pub struct Said(Mutex<BTreeMap<String, String>>);

/// Why there is no room, if so: what has failed may be back in seconds, what is full waits for somebody.
fn refusal(storage: Option<Health>) -> Result<(), Error> {
    match storage.and_then(|storage| storage.trouble) {
        None => Ok(()),
        Some(Trouble::Failed(sentence)) => Err(Error::exhausted(sentence)),
        Some(Trouble::Full(sentence)) => Err(Error::Full(sentence)),
    }
}

impl App {
    /// Says no where a disk that a provider's sandboxes need has no room.
    pub(crate) fn check_disk(&self, provider: &str) -> Result<(), Error> {
        refusal(self.provider(provider)?.storage(self.config().capacity.free_disk))
    }

    /// The same, for those who bring bytes later and in another place.
    pub(crate) fn disk_check(&self, provider: &Arc<dyn Provider>) -> Arc<dyn Fn() -> Result<(), Error> + Send + Sync> {
        let (provider, kept) = (Arc::clone(provider), self.config().capacity.free_disk);
        Arc::new(move || refusal(provider.storage(kept)))
    }

    /// Every part that this server cannot do without.
    pub async fn health(&self) -> Vec<Check> {
        let database = match self.store().ping().await {
            Ok(()) => None,
            Err(_) => Some("the database does not answer".to_owned()),
        };
        let mut checks = vec![Check::new("database", database)];
        for provider in self.providers() {
            let Some(storage) = provider.storage(self.config().capacity.free_disk) else { continue };
            let message = storage.trouble.map(|trouble| trouble.sentence().to_owned());
            let check = Check::new("storage", message);
            checks.push(Check { disk: Some(storage.disk), pool: storage.pool, ..check });
        }
        checks
    }

    /// Says in the log when storage comes to trouble, and when it is over.
    pub(crate) async fn watch_storage(&self) -> Result<(), Error> {
        for provider in self.providers() {
            let now = provider.storage(self.config().capacity.free_disk).and_then(|storage| storage.trouble);
            let mut said = self.said().0.lock().expect("no panic while held");
            let name = provider.name();
            // Sizes change with every look; whether there is trouble does not.
            match (said.contains_key(name), now) {
                (false, Some(trouble)) => {
                    tracing::error!(provider = name, "{}", trouble.sentence());
                    said.insert(name.to_owned(), trouble.sentence().to_owned());
                }
                (true, None) => {
                    tracing::info!(provider = name, "storage is in order again");
                    said.remove(name);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
