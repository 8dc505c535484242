//! A server for one test: real store, real HTTP, fake sandboxes, a clock that moves only on request.

use std::sync::Arc;
use std::time::Duration;

use cove_control::clock::Clock;
use cove_control::config::Config;
use cove_control::provider::fake::Fake;
use cove_control::store::Store;
use cove_control::{App, Caller};

pub struct TestApp {
    pub app: App,
    pub fake: Arc<Fake>,
    pub clock: Clock,
    pub caller: Caller,
    pub key: String,
    /// Goes with it, where the test did not bring one.
    data: Option<tempfile::TempDir>,
}

impl TestApp {
    pub async fn new() -> Self {
        Self::with(Config::default()).await
    }

    /// With these settings, except for directory and provider.
    pub async fn with(config: Config) -> Self {
        let data = tempfile::tempdir().unwrap();
        let config = Config { data: data.path().to_owned(), ..config };
        Self::on(config, Some(data), Fake::new(), standing()).await
    }

    /// With all that it keeps in this folder.
    pub async fn in_folder(folder: &std::path::Path) -> Self {
        let config = Config { data: folder.to_owned(), ..Config::default() };
        Self::on(config, None, Fake::new(), standing()).await
    }

    async fn on(config: Config, data: Option<tempfile::TempDir>, fake: Arc<Fake>, clock: Clock) -> Self {
        let store = Store::sqlite(&config.data.join("cove.db")).await.unwrap();
        let config = Config { provider: "fake".into(), ..config };
        let app = App::open(config, store, vec![fake.clone()], clock.clone()).await.unwrap();
        let key = app.first_key().unwrap();
        let caller = app.authenticate(&key).await.unwrap();
        TestApp { app, fake, clock, caller, key, data }
    }

    /// The server dies without an orderly end and another starts on the same data.
    pub async fn killed_and_restarted(self) -> Self {
        let TestApp { app, fake, clock, data, .. } = self;
        app.ending().cancel();
        let config = app.config().clone();
        drop(app);
        let again = Self::on(config, data, fake, clock).await;
        again.app.reconcile().await.unwrap();
        again
    }

    /// The same sandboxes, and a database that knows none of them, as one that was restored would.
    pub async fn with_another_database(self) -> Self {
        let TestApp { app, fake, clock, .. } = self;
        app.ending().cancel();
        let data = tempfile::tempdir().unwrap();
        let config = Config { data: data.path().to_owned(), ..app.config().clone() };
        drop(app);
        let again = Self::on(config, Some(data), fake, clock).await;
        again.app.reconcile().await.unwrap();
        again
    }
}

fn standing() -> Clock {
    Clock::standing_at("2026-01-01T00:00:00Z".parse().unwrap())
}

/// Longer than anything takes on a machine with much else to do. Only what never comes true waits for so long.
const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until it holds; a test that waits too long fails with the story's own words.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
