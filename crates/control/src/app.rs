//! The one handle that every door and every loop holds.
//!
//! Cheap to clone. The files of the nouns implement what it can do; this file has its parts.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use object_store::ObjectStore;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::activity::Activity;
use crate::build::Builds;
use crate::capacity::Capacity;
use crate::clock::{Clock, Timestamp};
use crate::config::Config;
use crate::event::Bus;
use crate::health::Said;
use crate::image::outlet::Places;
use crate::image::registries::Registries;
use crate::image::turn::Turns as LayerTurns;
use crate::interpreter::Interpreter;
use crate::job::at_work::AtWork;
use crate::key::Organisation;
use crate::key::cache::KeyCache;
use crate::ledger::Ledger;
use crate::lock::Locks;
use crate::pool::Pools;
use crate::provider::health::Watch;
use crate::provider::route::Route;
use crate::provider::{Provider, VolumeId};
use crate::push::Pushes;
use crate::rate::Rates;
use crate::right::Rights;
use crate::right::budget::Budget;
use crate::sandbox::metrics::History;
use crate::sandbox::repair::Unfinished;
use crate::sandbox::work::Looks;
use crate::session::Live;
use crate::shares::Shares;
use crate::store::{Dialect, Store};
use crate::traffic::Traffic;
use crate::{Error, identity, random};

/// How long changes under way may take once there are no more requests. The next server finishes what takes longer.
const LAST_WORK: std::time::Duration = std::time::Duration::from_secs(2);

/// The pauses between tries of what must be written: they double from the first to the longest.
const INSIST_FIRST: std::time::Duration = std::time::Duration::from_millis(200);
const INSIST_MOST: std::time::Duration = std::time::Duration::from_secs(5);

/// The organisation of the first key.
pub const FIRST_ORGANISATION: &str = "default";

#[derive(Clone)]
pub struct App(Arc<Parts>);

struct Parts {
    /// What the operator set.
    config: Config,
    /// The database.
    store: Store,
    /// The time, which tests can set.
    clock: Clock,
    /// What runs sandboxes, by name.
    providers: BTreeMap<String, Arc<dyn Provider>>,
    /// How each of them does.
    watch: Arc<Watch>,
    /// Which of them new sandboxes go to that name none.
    routes: Vec<Route>,
    /// Where archives and artifacts are.
    objects: Arc<dyn ObjectStore>,
    /// This server's name among those that share the store.
    server: String,
    /// One lock for each sandbox: one change at a time.
    locks: Locks,
    /// One lock for each volume.
    volume_locks: Locks<VolumeId>,
    /// Turns to work on their files.
    volume_turns: Arc<Shares>,
    /// When each sandbox was last used.
    activity: Arc<Activity>,
    /// What sandboxes had used at the last sample, to distinguish work from waiting.
    looks: Looks,
    /// Keys and quotas that were read a moment ago.
    keys: KeyCache,
    /// State changes, for listeners in this process.
    bus: Bus,
    /// Runs stateful code in sandboxes.
    interpreter: Interpreter,
    /// Work that runs to its end although its caller left; [`App::shutdown`] waits for it.
    tasks: TaskTracker,
    /// Cancelled when the server ends.
    ending: CancellationToken,
    /// Places for webhook deliveries under way.
    deliveries: Arc<Semaphore>,
    /// How many sandboxes each organisation has, against its maxima.
    ledger: Ledger,
    /// How many requests each key and organisation may still make.
    rates: Rates,
    /// The rights of all requests under way.
    rights: Arc<Rights>,
    /// Room for sandboxes on this server, and turns to start them.
    capacity: Capacity,
    /// The latest samples of what each sandbox uses.
    history: History,
    /// What was logged about storage, to log each change once.
    said: Said,
    /// Changes of sandboxes that were interrupted.
    unfinished: Unfinished,
    /// Jobs that this server does at this moment.
    at_work: AtWork,
    /// Warm pools: sandboxes made ahead.
    pools: Pools,
    /// Requests under way: what is made ahead waits for a pause.
    traffic: Traffic,
    /// Builds of templates under way on this server.
    builds: Builds,
    /// Images on their way to registries.
    pushes: Pushes,
    /// Who is at the files of a layer on this server.
    layer_turns: LayerTurns,
    /// Exports that somebody reads.
    exports: Places,
    /// Sessions with an execution under way.
    sessions: Live,
    /// An HTTP client for operators' requests: it reaches private addresses too.
    http: reqwest::Client,
    /// An HTTP client for tenants' requests: it reaches public addresses and `private_targets`.
    guarded: reqwest::Client,
    /// The address that this server listens on, for other servers.
    peer_url: OnceLock<String>,
    /// Which certificates of other servers this one trusts.
    peer_trust: Arc<rustls::ClientConfig>,
    /// The secret that proves to servers of the same store who sent a request on; `None` on SQLite.
    peer_secret: Option<String>,
}

impl App {
    /// Puts the parts together, makes the first organisation and key. Nothing runs yet: see [`App::begin`].
    pub async fn open(
        config: Config,
        store: Store,
        providers: Vec<Arc<dyn Provider>>,
        clock: Clock,
    ) -> Result<App, Error> {
        let providers: BTreeMap<_, _> =
            providers.into_iter().map(|provider| (provider.name().to_owned(), provider)).collect();
        if !providers.contains_key(&config.provider) {
            return Err(Error::invalid("provider", format!("{:?} is not one that this server has", config.provider)));
        }
        let read = |written: &crate::config::Route| Route::read(written).map_err(|why| Error::invalid("routes", why));
        let routes = config.routes.iter().map(read).collect::<Result<Vec<Route>, Error>>()?;
        make_private_directory(&config.data)
            .map_err(|error| Error::internal(format!("make the data directory {}: {error}", config.data.display())))?;
        let objects = crate::archive::open(&config.archive, &config.data.join("archive"))?;
        identity::check_database(&config.data, &store.identity().await?)?;
        let server = identity::of_server(&config.data)?;
        let peer_trust = crate::peer::trust::client(&config, store.dialect())?;
        let peer_secret = match store.dialect() {
            Dialect::Postgres => Some(store.peer_secret().await?),
            Dialect::Sqlite => None,
        };
        let interpreter = Interpreter::new(providers.clone());
        let activity = Arc::new(Activity::new(clock.clone()));
        let app = App(Arc::new(Parts {
            store,
            clock,
            providers,
            watch: Arc::new(Watch::default()),
            routes,
            objects,
            server,
            locks: Locks::default(),
            volume_locks: Locks::default(),
            volume_turns: crate::volume::turns(),
            activity,
            looks: Looks::default(),
            keys: KeyCache::default(),
            bus: Bus::default(),
            interpreter,
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
            deliveries: Arc::new(Semaphore::new(crate::job::run::DELIVERIES)),
            ledger: Ledger::default(),
            rates: Rates::default(),
            rights: Arc::new(Rights::new(Budget::new(&config.connections, open_files()))),
            capacity: Capacity::new(config.capacity.clone()),
            history: History::default(),
            said: Said::default(),
            unfinished: Unfinished::default(),
            at_work: AtWork::default(),
            pools: Pools::default(),
            traffic: Traffic::default(),
            builds: Builds::new(&config.builds, Arc::new(Registries::new(&config)?)),
            pushes: Pushes::new(&config.builds),
            layer_turns: LayerTurns::default(),
            exports: Places::default(),
            sessions: Live::default(),
            http: http_client()?,
            guarded: crate::neighbourhood::guarded_client(config.private_targets.clone())?,
            peer_url: OnceLock::new(),
            peer_trust,
            peer_secret,
            config,
        }));
        app.make_first().await?;
        Ok(app)
    }

    /// Makes the first organisation and the first key: the configured one, or one that is kept in the data directory
    /// for its owner to read.
    async fn make_first(&self) -> Result<(), Error> {
        let first = Organisation {
            id: FIRST_ORGANISATION.into(),
            name: FIRST_ORGANISATION.into(),
            created_at: self.now(),
            quota: self.config().quota,
        };
        self.store().insert_organisation(&first).await?;
        let secret = self.first_key()?;
        self.configure_key(&secret).await
    }

    /// The secret of the first key.
    pub fn first_key(&self) -> Result<String, Error> {
        if let Some(key) = &self.config().api_key {
            return Ok(key.clone());
        }
        let path = self.config().data.join("api-key");
        let trouble = |error: std::io::Error| Error::internal(format!("{}: {error}", path.display()));
        match std::fs::read_to_string(&path) {
            Ok(key) if !key.trim().is_empty() => Ok(key.trim().to_owned()),
            Ok(_) => Err(Error::internal(format!("{} is empty; remove it for a new key", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let key = random::api_key();
                write_private(&path, &key).map_err(trouble)?;
                Ok(key)
            }
            Err(error) => Err(trouble(error)),
        }
    }

    /// Stateful code, in any sandbox of this server.
    pub fn interpreter(&self) -> &Interpreter {
        &self.0.interpreter
    }

    pub fn config(&self) -> &Config {
        &self.0.config
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// This server's own name among those that share the store.
    pub fn server(&self) -> &str {
        &self.0.server
    }

    pub fn default_provider(&self) -> &str {
        &self.0.config.provider
    }

    pub fn providers(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.0.providers.values()
    }

    pub fn provider(&self, name: &str) -> Result<&Arc<dyn Provider>, Error> {
        self.0.providers.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.0.providers.keys().map(String::as_str).collect();
            Error::invalid("provider", format!("{name:?} is not one of {}", known.join(", ")))
        })
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.0.watch
    }

    pub(crate) fn routes(&self) -> &[Route] {
        &self.0.routes
    }

    /// Whether a provider's sandboxes are on this machine: then no other server can act on them.
    pub(crate) fn is_bound_to_host(&self, provider: &str) -> bool {
        // One that is not configured here may be another server's own.
        self.provider(provider).map_or(true, |provider| provider.is_bound_to_host())
    }

    pub(crate) fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.0.objects
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    pub(crate) fn volume_locks(&self) -> &Locks<VolumeId> {
        &self.0.volume_locks
    }

    pub(crate) fn volume_turns(&self) -> &Arc<Shares> {
        &self.0.volume_turns
    }

    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.0.activity
    }

    pub(crate) fn looks(&self) -> &Looks {
        &self.0.looks
    }

    pub(crate) fn key_cache(&self) -> &KeyCache {
        &self.0.keys
    }

    pub(crate) fn bus(&self) -> &Bus {
        &self.0.bus
    }

    /// Places for deliveries under way.
    pub(crate) fn deliveries(&self) -> &Arc<Semaphore> {
        &self.0.deliveries
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.0.rates
    }

    pub(crate) fn rights(&self) -> &Arc<Rights> {
        &self.0.rights
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.0.capacity
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    pub(crate) fn said(&self) -> &Said {
        &self.0.said
    }

    pub(crate) fn unfinished(&self) -> &Unfinished {
        &self.0.unfinished
    }

    pub(crate) fn at_work(&self) -> &AtWork {
        &self.0.at_work
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.0.pools
    }

    pub fn builds(&self) -> &Builds {
        &self.0.builds
    }

    pub(crate) fn pushes(&self) -> &Pushes {
        &self.0.pushes
    }

    pub(crate) fn layer_turns(&self) -> &LayerTurns {
        &self.0.layer_turns
    }

    pub(crate) fn exports(&self) -> &Places {
        &self.0.exports
    }

    pub(crate) fn live_sessions(&self) -> &Live {
        &self.0.sessions
    }

    /// For requests that an operator asked for: reaches every address that the server reaches.
    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    /// For requests that a tenant asked for: reaches public addresses.
    pub(crate) fn guarded_http(&self) -> &reqwest::Client {
        &self.0.guarded
    }

    /// Where other servers of the same store reach this one.
    pub(crate) fn peer_url(&self) -> Option<&str> {
        self.config().peer_url.as_deref().or_else(|| self.0.peer_url.get().map(String::as_str))
    }

    /// Which certificates of other servers it trusts.
    pub(crate) fn peer_trust(&self) -> &rustls::ClientConfig {
        &self.0.peer_trust
    }

    pub(crate) fn peer_secret(&self) -> Option<&str> {
        self.0.peer_secret.as_deref()
    }

    /// Notes the address that it listens on, unless that is every address: other servers would reach themselves.
    pub(crate) fn listens_on(&self, address: std::net::SocketAddr) {
        if !address.ip().is_unspecified() {
            // Set once; a second listener changes nothing.
            let _ = self.0.peer_url.set(format!("http://{address}"));
        }
    }

    /// Cancelled when the server ends.
    pub fn ending(&self) -> &CancellationToken {
        &self.0.ending
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Writes what must not be left out as often as it takes, while the disk is full or the database is away. Fails where
    /// trying again changes nothing, and with the server: its next start settles what is left.
    pub(crate) async fn insist<F>(&self, what: &str, write: impl Fn() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let mut pause = INSIST_FIRST;
        loop {
            let error = match write().await {
                Err(error) if error.is_of_the_database() => error,
                written => return written,
            };
            tracing::warn!(%error, detail = error.detail(), "{what}; trying again");
            tokio::select! {
                () = self.ending().cancelled() => return Err(error),
                () = tokio::time::sleep(pause) => pause = (2 * pause).min(INSIST_MOST),
            }
        }
    }

    /// The same in the background, for those who do not wait for it.
    pub(crate) fn insist_behind<F>(&self, what: &'static str, write: impl Fn(App) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let app = self.clone();
        self.tasks().spawn(async move {
            if let Err(error) = app.insist(what, || write(app.clone())).await {
                tracing::error!(%error, detail = error.detail(), "{what}; given up");
            }
        });
    }

    /// Runs to its end even when the caller no longer waits.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        match self.0.tasks.spawn(work.in_current_span()).await {
            Ok(result) => result,
            Err(error) => Err(Error::internal(format!("a task ended early: {error}"))),
        }
    }

    /// Ends the loops and waits for changes that are under way. Sandboxes go on.
    pub async fn shutdown(&self) {
        self.0.ending.cancel();
        self.0.tasks.close();
        // The next server finds what takes longer.
        if tokio::time::timeout(LAST_WORK, self.0.tasks.wait()).await.is_err() {
            tracing::warn!("some work was still under way at the end");
        }
        if let Err(error) = self.flush_activity().await {
            tracing::warn!(%error, detail = error.detail(), "last notes");
        }
        if tokio::time::timeout(LAST_WORK, self.0.store.close()).await.is_err() {
            tracing::warn!("the database was still busy at the end");
        }
    }
}

fn http_client() -> Result<reqwest::Client, Error> {
    // If another provider is installed already, it is the same one.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    builder.build().map_err(|error| Error::internal(crate::tls::no_client(&error)))
}

/// How many files this process may open.
fn open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Makes a directory that no other user of the host may enter. One that already exists stays as it is.
pub fn make_private_directory(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file that only its owner can read, from the first byte.
fn write_private(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    cove_sys::replacement::replace(path, format!("{text}\n").as_bytes(), 0o600)
}
