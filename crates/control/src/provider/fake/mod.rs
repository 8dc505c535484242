//! A provider for tests: sandboxes are entries of a map, their guests are tasks of this process.
//!
//! It keeps the contract of a real one (idempotent calls, files over a stop, departures), so that tests on it are valid
//! for others; it isolates nothing. The guest's files are in memory and its shell knows a few commands.

mod files;
mod guest;
mod images;
mod manifest;
mod process;
mod shell;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cove_protocol::SandboxId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use self::guest::FakeGuest;
use super::kind::Count;
use super::{
    Ability, Aside, Can, Capabilities, Departure, Ended, Handle, Health, Isolation, Kind, Limits, Network, Order,
    Provider, ProviderError, Seen, Sighting, Supply, Usage,
};
use crate::guest::Guest;

pub static KIND: Kind =
    Kind { name: "fake", keys: &[], count: Count::Any, open: |opening| Ok(Arc::new(Fake::named(opening.name))) };

pub struct Fake {
    name: String,
    /// What it shall not be able to do.
    lacks: Mutex<Vec<(Ability, &'static str)>>,
    sandboxes: Mutex<HashMap<SandboxId, Entry>>,
    departures: mpsc::UnboundedSender<Departure>,
    departed: tokio::sync::Mutex<mpsc::UnboundedReceiver<Departure>>,
    trouble: Mutex<HashMap<&'static str, ProviderError>>,
    free_memory: Mutex<Option<u64>>,
    supply: Mutex<Supply>,
    storage: Mutex<Option<Health>>,
    /// Calls of these names wait until they are let through.
    held: Mutex<HashMap<&'static str, Held>>,
    /// Launches take this lock one by one; a test that holds it stops all of them.
    gate: Arc<tokio::sync::Mutex<()>>,
    launching: AtomicUsize,
    /// Sandboxes that were held still to be copied.
    instants: AtomicUsize,
    /// Layers and volumes.
    kept: images::Kept,
    /// Of sandboxes.
    manifests: Mutex<HashMap<SandboxId, manifest::Noted>>,
}

struct Held {
    tell: oneshot::Sender<()>,
    passed: oneshot::Receiver<()>,
}

/// A call that waits in the middle.
pub struct Hold {
    reached: oneshot::Receiver<()>,
    pass: oneshot::Sender<()>,
}

impl Hold {
    /// Returns when the call is there.
    pub async fn reached(&mut self) {
        let _told_or_gone = (&mut self.reached).await;
    }

    pub fn let_through(self) {
        let _nobody_waits = self.pass.send(());
    }
}

struct Entry {
    state: Seen,
    guest: Arc<FakeGuest>,
    limits: Limits,
    processor_ns: u64,
    aside: Option<Aside>,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Arc::new(Fake::named(KIND.name))
    }

    /// Under a name of its own.
    pub fn named(name: &str) -> Self {
        let (departures, departed) = mpsc::unbounded_channel();
        Fake {
            name: name.to_owned(),
            lacks: Mutex::default(),
            sandboxes: Mutex::default(),
            departures,
            departed: tokio::sync::Mutex::new(departed),
            trouble: Mutex::default(),
            supply: Mutex::default(),
            free_memory: Mutex::default(),
            storage: Mutex::default(),
            held: Mutex::default(),
            gate: Arc::default(),
            launching: AtomicUsize::new(0),
            instants: AtomicUsize::new(0),
            kept: images::Kept::default(),
            manifests: Mutex::default(),
        }
    }

    /// From now on it cannot do this, for that reason.
    pub fn lack(&self, ability: Ability, why: &'static str) {
        self.lacks.lock().expect("no panic while held").push((ability, why));
    }

    /// Ends a sandbox's processes without a request, as a kernel would.
    pub fn kill(&self, id: &SandboxId, ended: Ended) {
        if let Some(entry) = self.sandboxes.lock().expect("no panic while held").get_mut(id) {
            entry.state = Seen::Stopped;
            entry.guest.end_processes();
        }
        let _ = self.departures.send(Departure { id: id.clone(), ended });
    }

    /// Ends all processes without a report, as a reboot does.
    pub fn reboot(&self) {
        for entry in self.sandboxes.lock().expect("no panic while held").values_mut() {
            entry.state = Seen::Stopped;
            entry.guest.end_processes();
        }
    }

    /// The next call of that name fails with this error.
    pub fn fail_next(&self, call: &'static str, error: ProviderError) {
        self.trouble.lock().expect("no panic while held").insert(call, error);
    }

    /// So much more processor time has been used by the sandbox.
    pub fn work(&self, id: &SandboxId, time: std::time::Duration) {
        let more = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.with(&handle_of(id), |entry| entry.processor_ns += more).expect("the sandbox is there");
    }

    /// It gets what sandboxes start from in another way.
    pub fn set_supply(&self, supply: Supply) {
        *self.supply.lock().expect("no panic while held") = supply;
    }

    /// Sets the free memory of its machine.
    pub fn set_free_memory(&self, bytes: Option<u64>) {
        *self.free_memory.lock().expect("no panic while held") = bytes;
    }

    /// How its storage shall be.
    pub fn set_storage(&self, health: Option<Health>) {
        *self.storage.lock().expect("no panic while held") = health;
    }

    /// The next call of that name does its work and does not return before it is let through.
    pub fn hold_next(&self, call: &'static str) -> Hold {
        let (tell, reached) = oneshot::channel();
        let (pass, passed) = oneshot::channel();
        self.held.lock().expect("no panic while held").insert(call, Held { tell, passed });
        Hold { reached, pass }
    }

    async fn pass(&self, call: &'static str) {
        let held = self.held.lock().expect("no panic while held").remove(call);
        if let Some(held) = held {
            let _nobody_waits = held.tell.send(());
            let _dropped_lets_through = held.passed.await;
        }
    }

    /// No launch ends before this is dropped. Not while one is under way.
    pub fn hold_launches(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.gate).try_lock_owned().expect("no launch is under way")
    }

    /// Launches that were asked for and have not ended.
    pub fn launching(&self) -> usize {
        self.launching.load(Ordering::Relaxed)
    }

    /// Every sandbox it has, for leak checks.
    pub fn ids(&self) -> Vec<SandboxId> {
        self.sandboxes.lock().expect("no panic while held").keys().cloned().collect()
    }

    fn trouble(&self, call: &'static str) -> Result<(), ProviderError> {
        match self.trouble.lock().expect("no panic while held").remove(call) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn with<T>(&self, handle: &Handle, act: impl FnOnce(&mut Entry) -> T) -> Result<T, ProviderError> {
        let mut sandboxes = self.sandboxes.lock().expect("no panic while held");
        let entry = id_of(handle).and_then(|id| sandboxes.get_mut(&id));
        entry.map(act).ok_or_else(|| ProviderError::NotFound(handle.clone()))
    }
}

/// Not the id, so that a test notices whoever takes one for the other.
fn handle_of(id: &SandboxId) -> Handle {
    Handle::new(format!("fake-{id}"))
}

/// By its handle, or by the id where the handle was never noted.
fn id_of(handle: &Handle) -> Option<SandboxId> {
    let text = handle.as_str();
    text.strip_prefix("fake-").unwrap_or(text).parse().ok()
}

#[async_trait]
impl Provider for Fake {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        let lacks = self.lacks.lock().expect("no panic while held");
        let can = |ability| match lacks.iter().find(|(lacked, _)| *lacked == ability) {
            Some((_, why)) => Can::not(why),
            None => Can::Yes,
        };
        Capabilities {
            isolation: Isolation::None,
            pause: can(Ability::Pause),
            resize: can(Ability::Resize),
            persistent: can(Ability::Persistent),
            network_policy: can(Ability::NetworkPolicy),
            archive: can(Ability::Archive),
            snapshot: can(Ability::Snapshot),
            fork: can(Ability::Fork),
            volumes: can(Ability::Volumes),
            manifest: can(Ability::Manifest),
        }
    }

    /// A map of this process, which tests share between servers.
    fn is_bound_to_host(&self) -> bool {
        false
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        self.trouble("answers")
    }

    fn supply(&self) -> Supply {
        *self.supply.lock().expect("no panic while held")
    }

    fn layers(&self) -> &dyn super::images::Layers {
        self
    }

    fn volumes(&self) -> &dyn super::images::Volumes {
        self
    }

    fn manifests(&self) -> &dyn super::manifest::Manifests {
        self
    }

    fn free_memory(&self) -> Option<u64> {
        *self.free_memory.lock().expect("no panic while held")
    }

    async fn launch(&self, order: &Order) -> Result<Handle, ProviderError> {
        self.launching.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.lock().await);
        self.launching.fetch_sub(1, Ordering::Relaxed);
        self.trouble("launch")?;
        let files = self.kept.files_of(&order.image.root)?;
        {
            let mut sandboxes = self.sandboxes.lock().expect("no panic while held");
            let entry = sandboxes.entry(order.id.clone()).or_insert_with(|| Entry {
                state: Seen::Running,
                guest: FakeGuest::new(order, files),
                limits: order.limits,
                aside: None,
                processor_ns: 0,
            });
            entry.state = Seen::Running;
            entry.limits = order.limits;
        }
        self.pass("launch").await;
        Ok(handle_of(&order.id))
    }

    async fn stop(&self, handle: &Handle, _grace: Duration) -> Result<(), ProviderError> {
        self.trouble("stop")?;
        self.with(handle, |entry| {
            entry.state = Seen::Stopped;
            entry.guest.end_processes();
        })?;
        self.pass("stop").await;
        Ok(())
    }

    async fn pause(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.trouble("pause")?;
        self.with(handle, |entry| entry.state = Seen::Paused)?;
        self.pass("pause").await;
        Ok(())
    }

    async fn resume(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.trouble("resume")?;
        self.with(handle, |entry| entry.state = Seen::Running)?;
        self.pass("resume").await;
        Ok(())
    }

    async fn destroy(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.trouble("destroy")?;
        let removed = id_of(handle).and_then(|id| self.sandboxes.lock().expect("no panic while held").remove(&id));
        if let Some(entry) = removed {
            entry.guest.end_processes();
        }
        self.pass("destroy").await;
        Ok(())
    }

    async fn resize(&self, handle: &Handle, limits: &Limits) -> Result<(), ProviderError> {
        self.trouble("resize")?;
        self.with(handle, |entry| entry.limits = *limits)
    }

    async fn set_network(&self, handle: &Handle, _network: &Network) -> Result<(), ProviderError> {
        self.trouble("set_network")?;
        self.with(handle, |_| ())
    }

    async fn usage(&self, handle: &Handle) -> Result<Usage, ProviderError> {
        self.trouble("usage")?;
        self.with(handle, |entry| Usage {
            cpu_ns: entry.processor_ns,
            memory: 1 << 20,
            memory_peak: 2 << 20,
            memory_limit: entry.limits.memory,
            pids: entry.guest.running_processes() as u64 + 1,
            disk: entry.guest.bytes_in_files(),
            disk_limit: entry.limits.disk,
            ..Usage::default()
        })
    }

    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError> {
        self.trouble("sightings")?;
        let sandboxes = self.sandboxes.lock().expect("no panic while held");
        let sighting = |(id, entry): (&SandboxId, &Entry)| Sighting {
            id: id.clone(),
            handle: handle_of(id),
            state: entry.state,
            ended: None,
            aside: entry.aside.clone(),
        };
        Ok(sandboxes.iter().map(sighting).collect())
    }

    async fn keep_aside(&self, handle: &Handle, aside: &Aside) -> Result<(), ProviderError> {
        self.with(handle, |entry| {
            entry.state = Seen::Stopped;
            entry.guest.end_processes();
            entry.aside = Some(aside.clone());
        })
    }

    async fn take_back(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.with(handle, |entry| entry.aside = None)
    }

    async fn is_blank(&self, handle: &Handle) -> Result<bool, ProviderError> {
        self.with(handle, |entry| entry.guest.bytes_in_files() == 0)
    }

    fn storage(&self, _kept: u64) -> Option<Health> {
        self.storage.lock().expect("no panic while held").clone()
    }

    async fn sweep(&self, keep: std::collections::HashSet<SandboxId>) -> Result<usize, ProviderError> {
        let mut sandboxes = self.sandboxes.lock().expect("no panic while held");
        let before = sandboxes.len();
        sandboxes.retain(|id, _| keep.contains(id));
        Ok(before - sandboxes.len())
    }

    async fn departure(&self) -> Departure {
        match self.departed.lock().await.recv().await {
            Some(departure) => departure,
            None => std::future::pending().await,
        }
    }

    fn guest(&self, handle: &Handle) -> Guest {
        let sandboxes = self.sandboxes.lock().expect("no panic while held");
        let entry = id_of(handle).and_then(|id| sandboxes.get(&id));
        let guest = entry.filter(|entry| entry.state == Seen::Running).map(|entry| Arc::clone(&entry.guest));
        Guest::new(Arc::new(guest::Link(guest)))
    }

    async fn export(&self, handle: &Handle, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        self.trouble("export")?;
        let files = self.with(handle, |entry| entry.guest.save_files())?;
        to.write_all(&files).await.map_err(|error| ProviderError::Failed(error.to_string()))
    }

    async fn import(&self, order: &Order, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<Handle, ProviderError> {
        self.trouble("import")?;
        let mut files = Vec::new();
        from.read_to_end(&mut files).await.map_err(|error| ProviderError::Failed(error.to_string()))?;
        let guest = FakeGuest::new(order, files::Files::fresh());
        guest.load_files(&files).map_err(ProviderError::Failed)?;
        let entry = Entry { state: Seen::Stopped, guest, limits: order.limits, aside: None, processor_ns: 0 };
        self.sandboxes.lock().expect("no panic while held").insert(order.id.clone(), entry);
        self.pass("import").await;
        Ok(handle_of(&order.id))
    }
}
