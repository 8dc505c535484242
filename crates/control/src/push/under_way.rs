//! What this server knows of its pushes beside their rows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::build::Credentials;
use crate::config;
use crate::shares::{Share, Shares};

/// One part of [`App`](crate::App).
pub struct Pushes {
    under_way: Mutex<HashMap<String, Arc<UnderWay>>>,
    /// Turns to push.
    shares: Shares,
}

/// A push that was started on this server and has not ended.
pub struct UnderWay {
    /// Cancelled when it shall end.
    pub cancelled: CancellationToken,
    pub credentials: Mutex<Option<Credentials>>,
    /// The number of its last line, for those who follow.
    pub news: watch::Sender<i64>,
}

impl Default for UnderWay {
    fn default() -> Self {
        UnderWay { cancelled: CancellationToken::new(), credentials: Mutex::default(), news: watch::channel(0).0 }
    }
}

impl Pushes {
    /// As many at a time as builds.
    pub fn new(settings: &config::Builds) -> Pushes {
        let shares = Shares::new(settings.at_once as usize, settings.per_organisation as usize);
        Pushes { under_way: Mutex::default(), shares }
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self, organisation: &str) -> Share {
        self.shares.take(organisation).await
    }

    /// The push's place here, made where there is none.
    pub(super) fn place(&self, push: &str) -> Arc<UnderWay> {
        let mut under_way = self.under_way.lock().expect("no panic while held");
        Arc::clone(under_way.entry(push.to_owned()).or_default())
    }

    pub(super) fn find(&self, push: &str) -> Option<Arc<UnderWay>> {
        self.under_way.lock().expect("no panic while held").get(push).cloned()
    }

    pub(super) fn remove(&self, push: &str) {
        self.under_way.lock().expect("no panic while held").remove(push);
    }
}
