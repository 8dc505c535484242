//! The egress proxy: what leaves a sandbox arrives here, is judged, and goes on from the host's network, or does not.
//!
//! Inside a sandbox's namespace every TCP connection and every question to port 53 is redirected to sockets that this
//! process owns (see [`super::namespace`]). The few threads that serve them live in the host's network; each has an
//! epoll and a share of the sandboxes, so that one busy sandbox slows at most its own share.
//!
//! # Layout
//! * `worker`: a thread and its loop
//! * `accept`: a connection arrives; `relay`: its bytes
//! * `lookup`, `stream`: names, by datagram and by TCP
//! * `listen`: the sockets inside; `budget`: how many descriptors all this may take
//! * [`Counters`], [`Journal`]: what is told of it

mod accept;
mod account;
mod arena;
mod budget;
mod journal;
pub(super) mod listen;
mod lookup;
mod relay;
mod source;
mod stream;
mod worker;

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use self::account::Account;
use self::budget::{Budget, Purpose};
use self::listen::Listening;
use self::worker::{Attach, Command, Order, Worker};
use super::error::Error;
use super::policy;
use super::rules::Rules;
use crate::spec::{Egress, SandboxId};

pub use self::account::Counters;
pub use self::journal::{Journal, Silent};

/// How the proxy behaves; the default is right for a server.
#[derive(Clone)]
pub struct Settings {
    pub workers: usize,
    /// Where the host's resolvers are named.
    pub resolv_conf: PathBuf,
    pub journal: Arc<dyn Journal>,
    /// How long a connection may be silent.
    pub idle: Duration,
    /// How long the other end may take to answer a dial.
    pub dial: Duration,
    /// How long one resolver is waited for.
    pub resolver_patience: Duration,
    pub connections_per_sandbox: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            workers: thread::available_parallelism().map_or(2, |cores| cores.get().min(8)),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            journal: Arc::new(Silent),
            idle: Duration::from_secs(3600),
            dial: Duration::from_secs(20),
            resolver_patience: lookup::PATIENCE,
            connections_per_sandbox: 256,
        }
    }
}

/// The running proxy. Dropping it ends its threads, and with them every connection.
pub struct Proxy {
    workers: Vec<Handle>,
    budget: Arc<Budget>,
    attached: Mutex<HashMap<SandboxId, Attached>>,
}

struct Handle {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

struct Attached {
    worker: usize,
    account: Arc<Account>,
}

impl Proxy {
    /// Starts the threads, in the network namespace of the caller: from there all connections will leave.
    pub fn start() -> Result<Proxy, Error> {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Result<Proxy, Error> {
        let settings = Arc::new(settings);
        let budget = Arc::new(Budget::default());
        let workers = (0..settings.workers.max(1)).map(|_| Handle::start(&settings, &budget));
        let workers = workers.collect::<io::Result<_>>().map_err(Error::step("start the egress proxy"))?;
        Ok(Proxy { workers, budget, attached: Mutex::default() })
    }

    /// Serves a sandbox whose namespace was made for egress. Doing it again, also after a restart, opens the same sockets
    /// anew; connections of the time before are lost.
    pub fn attach(&self, id: &SandboxId, network: BorrowedFd<'_>, egress: &Egress) -> Result<(), Error> {
        self.serve(id, egress, || listen::open(network))
    }

    /// The same for a namespace whose sockets are open already.
    pub fn attach_ready(&self, id: &SandboxId, listening: Listening, egress: &Egress) -> Result<(), Error> {
        self.serve(id, egress, || Ok(listening))
    }

    fn serve(
        &self,
        id: &SandboxId,
        egress: &Egress,
        listen: impl FnOnce() -> Result<Listening, Error>,
    ) -> Result<(), Error> {
        policy::check(egress).map_err(Error::Policy)?;
        let mut attached = self.attached();
        let account = match attached.remove(id) {
            None => Arc::default(),
            Some(before) => {
                self.workers[before.worker].order(Command::Detach(id.clone()))?;
                before.account
            }
        };
        let permit = self.budget.take(Purpose::Listening, 2).ok_or_else(|| Error::Descriptors(budget::limit()))?;
        let listening = listen()?;
        let worker = self.least_loaded(&attached);
        let policy = Arc::new(Rules::of(egress));
        let attach = Attach { id: id.clone(), listening, policy, account: account.clone(), permit };
        self.workers[worker].order(Command::Attach(Box::new(attach)))?;
        attached.insert(id.clone(), Attached { worker, account });
        Ok(())
    }

    /// Changes the policy. When this returns it holds, and connections that it forbids are cut.
    pub fn update(&self, id: &SandboxId, egress: &Egress) -> Result<(), Error> {
        policy::check(egress).map_err(Error::Policy)?;
        let attached = self.attached();
        let worker = attached.get(id).ok_or_else(|| Error::NotAttached(id.clone()))?.worker;
        self.workers[worker].order(Command::Update(id.clone(), Arc::new(Rules::of(egress))))
    }

    /// Lets go of a sandbox: its connections are cut and its namespace is no longer held. Says what it had used; nothing for
    /// one that was not attached.
    pub fn detach(&self, id: &SandboxId) -> Option<Counters> {
        let mut attached = self.attached();
        let Attached { worker, account } = attached.remove(id)?;
        // A worker that is gone has let go already.
        let _ = self.workers[worker].order(Command::Detach(id.clone()));
        Some(account.counters())
    }

    pub fn counters(&self, id: &SandboxId) -> Option<Counters> {
        self.attached().get(id).map(|attached| attached.account.counters())
    }

    fn attached(&self) -> MutexGuard<'_, HashMap<SandboxId, Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn least_loaded(&self, attached: &HashMap<SandboxId, Attached>) -> usize {
        let mut load = vec![0usize; self.workers.len()];
        for sandbox in attached.values() {
            load[sandbox.worker] += 1;
        }
        (0..load.len()).min_by_key(|&worker| load[worker]).unwrap_or(0)
    }
}

impl Handle {
    fn start(settings: &Arc<Settings>, budget: &Arc<Budget>) -> io::Result<Handle> {
        let (orders, received) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let worker = Worker::new(settings.clone(), budget.clone(), received, wake.clone())?;
        let thread = thread::Builder::new().name("cove-egress".into()).spawn(move || worker.run())?;
        Ok(Handle { orders, wake, thread: Some(thread) })
    }

    /// Has the worker do something and waits until it is done.
    fn order(&self, command: Command) -> Result<(), Error> {
        let (done, finished) = mpsc::channel();
        self.orders.send(Order { command, done }).map_err(|_| Error::ProxyGone)?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes())
            .map_err(|errno| Error::Step { step: "wake the egress proxy", source: errno.into() })?;
        finished.recv().map_err(|_| Error::ProxyGone)?.map_err(Error::step("watch a sandbox's network"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // One that has died already cannot be told, and need not be.
            let _ = worker.order(Command::Stop);
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
