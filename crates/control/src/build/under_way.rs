//! What this server knows of its builds beside their rows: who does them, who waits for them, and what must not be
//! written down.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, RwLock};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cache::Flights;
use super::request::Confidential;
use crate::config;
use crate::image::Source;
use crate::shares::{Share, Shares};

/// One part of [`App`](crate::App).
pub struct Builds {
    under_way: Mutex<HashMap<String, Arc<UnderWay>>>,
    flights: Flights,
    /// Turns to build.
    shares: Shares,
    /// Bytes of archives that each organisation is sending now.
    arriving: Mutex<HashMap<String, u64>>,
    source: RwLock<Arc<dyn Source>>,
    /// Builds of notes that have their rows.
    adopted: Mutex<HashSet<String>>,
}

/// A build that was started on this server and has not ended.
pub struct UnderWay {
    /// Cancelled when it shall end.
    pub cancelled: CancellationToken,
    /// Taken by the executor.
    pub confidential: Mutex<Option<Confidential>>,
    /// The number of its last line, for those who follow.
    pub news: watch::Sender<i64>,
}

impl Default for UnderWay {
    fn default() -> Self {
        UnderWay { cancelled: CancellationToken::new(), confidential: Mutex::default(), news: watch::channel(0).0 }
    }
}

/// An archive that is being sent. What came of it counts until it is dropped: by then its row does, or nothing is left of it.
pub struct Arrival<'a> {
    builds: &'a Builds,
    organisation: String,
    bytes: u64,
}

impl Arrival<'_> {
    /// Counts bytes that came. Returns how many have come of all archives that the organisation is sending.
    pub fn add(&mut self, bytes: u64) -> u64 {
        self.bytes += bytes;
        let mut arriving = self.builds.arriving.lock().expect("no panic while held");
        let all = arriving.entry(self.organisation.clone()).or_default();
        *all += bytes;
        *all
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let mut arriving = self.builds.arriving.lock().expect("no panic while held");
        if let Some(all) = arriving.get_mut(&self.organisation) {
            *all = all.saturating_sub(self.bytes);
            if *all == 0 {
                arriving.remove(&self.organisation);
            }
        }
    }
}

impl Builds {
    pub fn new(settings: &config::Builds, source: Arc<dyn Source>) -> Builds {
        Builds {
            under_way: Mutex::default(),
            flights: Flights::default(),
            shares: Shares::new(settings.at_once as usize, settings.per_organisation as usize),
            arriving: Mutex::default(),
            source: RwLock::new(source),
            adopted: Mutex::default(),
        }
    }

    pub fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.source.read().expect("no panic while held"))
    }

    /// Where images come from.
    pub fn set_source(&self, source: Arc<dyn Source>) {
        *self.source.write().expect("no panic while held") = source;
    }

    pub(super) fn flights(&self) -> &Flights {
        &self.flights
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self, organisation: &str) -> Share {
        self.shares.take(organisation).await
    }

    /// An archive that an organisation begins to send.
    pub(super) fn arrival(&self, organisation: &str) -> Arrival<'_> {
        Arrival { builds: self, organisation: organisation.to_owned(), bytes: 0 }
    }

    /// The build's place here, made where there is none.
    pub(super) fn place(&self, build: &str) -> Arc<UnderWay> {
        let mut under_way = self.under_way.lock().expect("no panic while held");
        Arc::clone(under_way.entry(build.to_owned()).or_default())
    }

    pub(super) fn find(&self, build: &str) -> Option<Arc<UnderWay>> {
        self.under_way.lock().expect("no panic while held").get(build).cloned()
    }

    pub(super) fn remove(&self, build: &str) {
        self.under_way.lock().expect("no panic while held").remove(build);
    }

    pub(crate) fn is_adopted(&self, build: &str) -> bool {
        self.adopted.lock().expect("no panic while held").contains(build)
    }

    pub(crate) fn note_adopted(&self, build: &str) {
        self.adopted.lock().expect("no panic while held").insert(build.to_owned());
    }
}
