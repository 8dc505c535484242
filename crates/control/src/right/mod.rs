//! A stream ends when the right that opened it ends.
//!
//! Every request has an [`Admission`]. Whoever checks a key or finds a sandbox for a caller without one notes the right in
//! it ([`hold`]); doors need not think of it. When the right ends, the admission ends, and with it the handler, the body
//! of its answer, or the connection that the request was upgraded to (`connection.rs`).
//!
//! ```text
//!   authenticate ── Right::Key ──┐                       ┌── handler dropped, 401
//!   sandbox_any ─ Right::Sandbox ┼──▶ Admission ── ends ─┼── body breaks off
//!   signed link ── Right::Link ──┘         ▲             └── socket shut down
//!                                          │
//!   revoked · expired · organisation deleted · tokens rotated · made private · server ends
//! ```
//!
//! On this server a right ends at once. Other servers of the same database read one number every [`LOOK`]; when it has
//! changed they forget the keys that they remember and ask the store about every right that is held. One read of one row a
//! look is what it costs, with any number of streams; it needs no connection of its own and misses nothing while the
//! database is away, as a notification would.

mod follow;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use cove_engine::SandboxId;
use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::sandbox::Sandbox;

/// How often expired rights, and other servers' changes, are looked for.
pub(crate) const LOOK: Duration = Duration::from_millis(300);

tokio::task_local! {
    /// The admission of the request that this task answers.
    static CURRENT: Admission;
}

/// What a request was let in with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Right {
    /// An API key, by its id.
    Key(String),
    /// A sandbox's own token, or that it is public.
    Sandbox(SandboxId),
    /// A signed link: one use of it.
    Link(u64),
}

/// Why an admission ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The right is no more.
    Right,
    /// The server is told to end.
    Server,
}

/// Closes the connection that a request was upgraded to.
pub type Cut = Box<dyn Fn() + Send + Sync>;

/// All admissions of this server, and the rights that they live on.
#[derive(Default)]
pub struct Rights {
    held: Mutex<Held>,
    next: AtomicU64,
}

#[derive(Default)]
struct Held {
    rights: HashMap<Right, Holders>,
    /// Admissions whose answer has begun and goes on.
    streams: HashMap<u64, Weak<Inner>>,
}

#[derive(Default)]
struct Holders {
    until: Option<Timestamp>,
    /// The state of the sandbox that the right came from, see [`mark`].
    mark: u64,
    admissions: HashMap<u64, Weak<Inner>>,
}

/// One request's permission to go on. Cheap to clone; ends for all clones.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    id: u64,
    rights: Arc<Rights>,
    ended: CancellationToken,
    why: OnceLock<Ended>,
    held: Mutex<HashSet<Right>>,
    cut: OnceLock<Cut>,
}

impl Rights {
    /// For a request that has shown nothing yet.
    pub fn admit(self: &Arc<Self>) -> Admission {
        Admission(Arc::new(Inner {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            rights: Arc::clone(self),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
            held: Mutex::default(),
            cut: OnceLock::new(),
        }))
    }

    /// The right is no more: whatever was let in with it ends.
    pub fn end(&self, right: &Right) {
        let holders = self.lock().rights.get(right).map(living).unwrap_or_default();
        end_all(holders, Ended::Right);
    }

    /// Ends the rights whose time is over.
    pub fn expire(&self, now: Timestamp) {
        let held = self.lock();
        let over = held.rights.values().filter(|holders| holders.until.is_some_and(|until| until <= now));
        let holders = over.flat_map(living).collect();
        drop(held);
        end_all(holders, Ended::Right);
    }

    /// Ends every stream: the server is about to go.
    pub fn end_streams(&self) {
        let streams = self.lock().streams.values().filter_map(Weak::upgrade).collect();
        end_all(streams, Ended::Server);
    }

    /// The rights that are held now, with what was noted of them.
    fn held(&self) -> Vec<(Right, u64)> {
        self.lock().rights.iter().map(|(right, holders)| (right.clone(), holders.mark)).collect()
    }

    /// How many answers go on at this moment.
    pub fn streams(&self) -> usize {
        self.lock().streams.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("no panic while held")
    }
}

/// Never while the registry is locked: the last holder of an admission locks it to take its name off.
fn end_all(admissions: Vec<Arc<Inner>>, why: Ended) {
    for admission in admissions {
        // The first reason stays.
        let _first = admission.why.set(why);
        admission.ended.cancel();
        if let Some(cut) = admission.cut.get() {
            cut();
        }
    }
}

fn living(holders: &Holders) -> Vec<Arc<Inner>> {
    holders.admissions.values().filter_map(Weak::upgrade).collect()
}

impl Admission {
    /// Runs the work of the request: rights that it holds are noted here.
    pub async fn within<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// When it has ended.
    pub fn ended(&self) -> &CancellationToken {
        &self.0.ended
    }

    pub fn why(&self) -> Option<Ended> {
        self.0.why.get().copied()
    }

    /// The answer has begun and goes on.
    pub fn streams(&self) {
        self.0.rights.lock().streams.insert(self.0.id, Arc::downgrade(&self.0));
    }

    /// The request's connection is something else from now on; `cut` closes it.
    pub fn upgraded(&self, cut: Cut) {
        // A connection is upgraded once.
        let _first = self.0.cut.set(cut);
        self.streams();
        // It may have ended in between, when there was nothing to cut yet.
        if self.0.ended.is_cancelled()
            && let Some(cut) = self.0.cut.get()
        {
            cut();
        }
    }

    fn hold(&self, right: Right, until: Option<Timestamp>, mark: u64) {
        if !self.0.held.lock().expect("no panic while held").insert(right.clone()) {
            return;
        }
        let mut held = self.0.rights.lock();
        let holders = held.rights.entry(right).or_default();
        (holders.until, holders.mark) = (until, mark);
        holders.admissions.insert(self.0.id, Arc::downgrade(&self.0));
    }

    fn holds_a_key(&self) -> bool {
        self.0.held.lock().expect("no panic while held").iter().any(|right| matches!(right, Right::Key(_)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(mut held) = self.rights.held.lock() else { return };
        held.streams.remove(&self.id);
        for right in self.held.get_mut().map(std::mem::take).unwrap_or_default() {
            if let Some(holders) = held.rights.get_mut(&right) {
                holders.admissions.remove(&self.id);
                if holders.admissions.is_empty() {
                    held.rights.remove(&right);
                }
            }
        }
    }
}

/// The admission of the request that this task answers; none in background work.
pub fn current() -> Option<Admission> {
    CURRENT.try_with(Clone::clone).ok()
}

/// The request was let in with this key.
pub(crate) fn hold_key(id: &str, until: Option<Timestamp>) {
    let _in_a_request = CURRENT.try_with(|admission| admission.hold(Right::Key(id.to_owned()), until, 0));
}

/// The request is about a sandbox whose own tokens, or whose being public, are its right, unless it has shown a key.
pub(crate) fn hold_sandbox(sandbox: &Sandbox) {
    let _in_a_request = CURRENT.try_with(|admission| {
        if !admission.holds_a_key() {
            admission.hold(Right::Sandbox(sandbox.id.clone()), None, mark(sandbox));
        }
    });
}

/// The request was let in with a link that is good until then.
pub(crate) fn hold_link(until: Timestamp) {
    let _in_a_request = CURRENT.try_with(|admission| admission.hold(Right::Link(admission.0.id), Some(until), 0));
}

/// What opens a sandbox without a key: another mark, another right.
fn mark(sandbox: &Sandbox) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&sandbox.access_token, &sandbox.traffic_token, sandbox.public).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test]
    async fn an_admission_ends_with_the_first_of_its_rights_and_leaves_nothing() {
        let rights = Arc::new(Rights::default());
        let (one, other) = (rights.admit(), rights.admit());
        one.clone().within(async { hold_key("k", None) }).await;
        other.clone().within(async { hold_key("l", Some(at(10))) }).await;
        rights.end(&Right::Key("k".into()));
        assert!(one.ended().is_cancelled() && !other.ended().is_cancelled());
        rights.expire(at(9));
        assert!(!other.ended().is_cancelled());
        rights.expire(at(10));
        assert_eq!(other.why(), Some(Ended::Right));
        drop((one, other));
        assert!(rights.held().is_empty());
    }

    #[tokio::test]
    async fn an_upgraded_connection_is_cut_once_its_right_ends_even_if_that_was_before() {
        let rights = Arc::new(Rights::default());
        let cuts = Arc::new(AtomicU64::new(0));
        for before in [true, false] {
            let admission = rights.admit();
            admission.clone().within(async { hold_key("k", None) }).await;
            if before {
                rights.end(&Right::Key("k".into()));
            }
            let count = Arc::clone(&cuts);
            admission.upgraded(Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }));
            if !before {
                rights.end(&Right::Key("k".into()));
            }
        }
        assert_eq!(cuts.load(Ordering::Relaxed), 2);
        assert_eq!(rights.streams(), 0);
    }

    #[tokio::test]
    async fn the_servers_end_is_the_end_of_streams_alone() {
        let rights = Arc::new(Rights::default());
        let (stream, short) = (rights.admit(), rights.admit());
        stream.streams();
        rights.end_streams();
        assert_eq!((stream.why(), short.why()), (Some(Ended::Server), None));
    }
}
