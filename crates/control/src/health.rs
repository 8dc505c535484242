//! Whether this server can do its work, and whether its disks have room for more.
//!
//! Both are asked at the moment somebody wants to know: a few calls of statvfs and one small query. Nothing is
//! remembered, so that nobody is told of a disk as it was. Room is asked for before anything is begun that would take
//! some, so that a full disk is met by those who would fill it and not by those who have something on it.

use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::provider::{Health, Provider, Space};
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

/// What was last said of the storage in the log.
#[derive(Default)]
pub struct Said(Mutex<Option<String>>);

/// Why there is no room, if so: what has failed may be back in seconds, what is full waits for somebody.
fn refusal(storage: Option<Health>, kept: u64) -> Result<(), Error> {
    let Some(storage) = storage else { return Ok(()) };
    match storage.refusal(kept) {
        None => Ok(()),
        Some(sentence) if storage.broken.is_some() => Err(Error::exhausted(sentence)),
        Some(sentence) => Err(Error::Full(sentence)),
    }
}

impl App {
    /// Says no where a disk that a provider's sandboxes need has no room.
    pub(crate) fn check_disk(&self, provider: &str) -> Result<(), Error> {
        refusal(self.provider(provider)?.storage(), self.config().capacity.free_disk)
    }

    /// The same, for those who bring bytes later and in another place.
    pub(crate) fn disk_check(&self, provider: &Arc<dyn Provider>) -> Arc<dyn Fn() -> Result<(), Error> + Send + Sync> {
        let (provider, kept) = (Arc::clone(provider), self.config().capacity.free_disk);
        Arc::new(move || refusal(provider.storage(), kept))
    }

    /// Every part that this server cannot do without.
    pub async fn health(&self) -> Vec<Check> {
        let database = match self.store().ping().await {
            Ok(()) => None,
            Err(_) => Some("the database does not answer".to_owned()),
        };
        let mut checks = vec![Check::new("database", database)];
        for provider in self.providers() {
            let Some(storage) = provider.storage() else { continue };
            let message = storage.refusal(self.config().capacity.free_disk);
            let check = Check::new("storage", message);
            checks.push(Check { disk: Some(storage.host), pool: storage.pool, ..check });
        }
        checks
    }

    /// Says in the log when storage comes to trouble, and when it is over.
    pub(crate) async fn watch_storage(&self) -> Result<(), Error> {
        for provider in self.providers() {
            let now = provider.storage().and_then(|storage| storage.refusal(self.config().capacity.free_disk));
            let mut said = self.said().0.lock().expect("no panic while held");
            // Sizes change with every look; whether there is trouble does not.
            match (said.is_some(), &now) {
                (false, Some(sentence)) => tracing::error!("{sentence}"),
                (true, None) => tracing::info!("storage is in order again"),
                _ => {}
            }
            *said = now;
        }
        Ok(())
    }
}
