//! State that all connections and the supervisor share.
//!
//! Locks are taken in this order and never the other way: births, table, a process's state. Nothing that can block is
//! done under the table's lock.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cove_sys::program::Identity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::process::{Resource, Rlimit, getgid, getrlimit, getuid, setrlimit};
use serde::Deserialize;

use crate::failure::Result;
use crate::process::memory::Kills;
use crate::process::table::Table;
use crate::token::Token;
use crate::users::{User, Users};

/// What processes inherit. The host gives the first in the environment variable `COVE_GUEST` and changes it with
/// `Configure`.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Configuration {
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub default_user: Option<String>,
    #[serde(default)]
    pub default_cwd: Option<String>,
    /// What every connection must begin with; taken out when the guest starts.
    #[serde(default)]
    pub token: Option<Token>,
}

impl Configuration {
    /// Makes the default working folder, root's, as container runtimes do: tools that write an image without running anything in it
    /// rely on that. Where it cannot be made, a process that starts there says so.
    pub fn make_default_cwd(&self) {
        if let Some(path) = self.default_cwd.as_deref().filter(|path| path.starts_with('/')) {
            // The guest's own mask is empty: without a mode the folder would be everybody's to write.
            let _ = DirBuilder::new().recursive(true).mode(0o755).create(path);
        }
    }
}

/// Why an ordinary user's sandbox without a range of ids has no other user.
pub const ONE_ID: &str =
    "this sandbox has one user id, because its server runs without root and without a range in /etc/subuid";

pub struct Guest {
    started: Instant,
    configuration: Mutex<Configuration>,
    table: Mutex<Table>,
    /// Held while a child is on its way to execve. The reaper keeps its hands off meanwhile: it could otherwise take
    /// the exit of a process that is not in the table yet.
    pub births: Mutex<()>,
    /// The pid of the child on its way.
    pub newborn: AtomicI32,
    /// The reaper came while a child was on its way and wants to be called back.
    pub reaper_waits: AtomicBool,
    /// Where the supervisor looks for output.
    pub epoll: OwnedFd,
    wake: OwnedFd,
    pub connections: AtomicUsize,
    ending: Mutex<Option<Duration>>,
    /// The limit of open files that children get back; the guest raises its own.
    pub open_files: Option<(u64, u64)>,
    pub oom_score_adj: CString,
    pub kills: Kills,
    /// What every connection must begin with. Without one, whoever reaches the socket is the host.
    pub token: Option<Token>,
    setgroups_is_denied: bool,
}

impl Guest {
    pub fn new(mut configuration: Configuration, kills: Kills) -> rustix::io::Result<Self> {
        configuration.make_default_cwd();
        Ok(Guest {
            started: Instant::now(),
            token: configuration.token.take(),
            configuration: Mutex::new(configuration),
            table: Mutex::new(Table::new()),
            births: Mutex::new(()),
            newborn: AtomicI32::new(0),
            reaper_waits: AtomicBool::new(false),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            connections: AtomicUsize::new(0),
            ending: Mutex::new(None),
            open_files: raise_open_files(),
            oom_score_adj: children_oom_score(),
            kills,
            // user_namespaces(7): a namespace made without privileges may not change supplementary groups.
            setgroups_is_denied: std::fs::read_to_string("/proc/self/setgroups")
                .is_ok_and(|text| text.trim() == "deny"),
        })
    }

    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn configuration(&self) -> MutexGuard<'_, Configuration> {
        self.configuration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the supervisor look up from its sleep.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn wake_source(&self) -> &OwnedFd {
        &self.wake
    }

    /// Asks the supervisor to end the sandbox.
    pub fn end(&self, grace: Duration) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(grace);
        self.wake();
    }

    pub fn ending(&self) -> Option<Duration> {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user: the given one, the sandbox's default, or the guest's own.
    pub fn user(&self, users: &Users, wanted: Option<&str>) -> Result<User> {
        let default = self.configuration().default_user.clone();
        match wanted.or(default.as_deref()) {
            Some(wanted) => users.find(wanted),
            None => users.find(&getuid().as_raw().to_string()),
        }
    }

    /// How to become the user; `None` where the guest is that user and has no right to be another.
    pub fn identity(&self, user: &User) -> Option<Identity> {
        let is_root = getuid().is_root();
        if !is_root && user.uid == getuid().as_raw() && user.gid == getgid().as_raw() {
            return None;
        }
        let mut identity = user.identity();
        if self.setgroups_is_denied {
            identity.groups = None;
        }
        Some(identity)
    }
}

/// Raises the limit of open files to the maximum and returns the previous one.
fn raise_open_files() -> Option<(u64, u64)> {
    let before = getrlimit(Resource::Nofile);
    let (soft, hard) = (before.current?, before.maximum?);
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) }).ok()?;
    Some((soft, hard))
}

/// Children are killed before the guest when memory runs out.
fn children_oom_score() -> CString {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj");
    let own: i32 = own.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    CString::new((own.saturating_add(500)).min(1000).to_string()).unwrap_or_default()
}
