//! A server of the test's own: real store, real HTTP, fake sandboxes, a clock that stands.

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
    data: tempfile::TempDir,
}

impl TestApp {
    pub async fn new() -> Self {
        Self::with(Config::default()).await
    }

    /// With these settings, but for where it lies and what it runs on.
    pub async fn with(config: Config) -> Self {
        let data = tempfile::tempdir().unwrap();
        let clock = Clock::standing_at("2026-01-01T00:00:00Z".parse().unwrap());
        Self::on(config, data, Fake::new(), clock).await
    }

    async fn on(config: Config, data: tempfile::TempDir, fake: Arc<Fake>, clock: Clock) -> Self {
        let store = Store::sqlite(&data.path().join("cove.db")).await.unwrap();
        let config = Config { data: data.path().to_owned(), provider: "fake".into(), ..config };
        let app = App::open(config, store, vec![fake.clone()], clock.clone()).await.unwrap();
        let key = app.first_key().unwrap();
        let caller = app.authenticate(&key).await.unwrap();
        TestApp { app, fake, clock, caller, key, data }
    }

    /// The server dies without a word and another comes up on the same data.
    pub async fn killed_and_restarted(self) -> Self {
        let TestApp { app, fake, clock, data, .. } = self;
        app.ending().cancel();
        let config = app.config().clone();
        drop(app);
        let again = Self::on(config, data, fake, clock).await;
        again.app.reconcile().await.unwrap();
        again
    }
}

/// Waits until it holds; a test that waits too long fails with the story's own words.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
