//! A stream ends when the right that opened it ends.
//!
//! Every request has an [`Admission`]. The code that checks a key, or finds a sandbox for a caller without a key, notes
//! the right in it ([`hold`]); doors do nothing. When the right ends, the admission ends, and with it the handler, the
//! body of its answer, or the connection that the request was upgraded to (`connection.rs`).
//!
//! ```text
//!   authenticate ── Right::Key ──┐                       ┌── handler dropped, 401
//!   sandbox_any ─ Right::Sandbox ┼──▶ Admission ── ends ─┼── body breaks off
//!   volume token ─ Right::Volume ┤
//!   signed link ── Right::Link ──┘         ▲             └── socket shut down
//!                                          │
//!   revoked · expired · organisation deleted · tokens rotated · made private · volume deleted · server ends
//! ```
//!
//! On this server a right ends at once. Other servers of the same database read one number every [`LOOK`]. When it has
//! changed, they clear their cache of keys and ask the store about every right that is held. This costs one read of one
//! row per check, with any number of streams. Unlike a notification it needs no connection of its own and misses
//! nothing while the database is away.

pub mod budget;
mod follow;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use cove_protocol::{SandboxId, VolumeId};
use tokio_util::sync::CancellationToken;

use self::budget::Budget;
use crate::Error;
use crate::clock::Timestamp;
use crate::sandbox::Sandbox;

/// How often the server checks for expired rights and for changes by other servers.
pub(crate) const LOOK: Duration = Duration::from_millis(300);

/// When a refused caller should try again: another request may end at any moment.
const AGAIN: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// The admission of the request that this task answers.
    static CURRENT: Admission;
}

/// What allowed a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Right {
    /// An API key, by its id.
    Key(String),
    /// The sandbox's own token, or the fact that it is public.
    Sandbox(SandboxId),
    /// The volume's own token.
    Volume(VolumeId),
    /// A signed link: one use of it.
    Link(u64),
}

/// Why an admission ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The right has ended.
    Right,
    /// The server ends.
    Server,
    /// Too many requests are under way.
    Full,
}

/// Closes the connection that a request was upgraded to.
pub type Cut = Box<dyn Fn() + Send + Sync>;

/// All admissions of this server, their rights, and how many each owner may have.
#[derive(Default)]
pub struct Rights {
    budget: Budget,
    held: Mutex<Held>,
    next: AtomicU64,
    /// Rises whenever a right is ended.
    ends: AtomicU64,
}

#[derive(Default)]
struct Held {
    rights: HashMap<Right, Holders>,
    /// Admissions whose answer has begun and is not finished.
    streams: HashMap<u64, Weak<Inner>>,
    organisations: HashMap<String, Count>,
    /// Requests under way with a key.
    known: usize,
    /// Requests under way at a sandbox, without a key.
    keyless: usize,
}

#[derive(Default)]
struct Count {
    under_way: usize,
    streams: usize,
    /// Bytes of incomplete messages.
    unfinished: Arc<AtomicU64>,
    /// Bytes of bodies that its requests hold.
    held_bytes: Arc<AtomicU64>,
}

impl Count {
    fn is_needed(&self) -> bool {
        self.under_way > 0 || Arc::strong_count(&self.unfinished) > 1 || Arc::strong_count(&self.held_bytes) > 1
    }
}

#[derive(Default)]
struct Holders {
    until: Option<Timestamp>,
    admissions: HashMap<u64, Holder>,
}

struct Holder {
    admission: Weak<Inner>,
    /// The state of the sandbox that the right came from, see [`mark`]. Each has its own: who comes after a change must
    /// not vouch for who came before it.
    mark: u64,
}

/// One request's permission to go on. Cheap to clone; ends for all clones.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    id: u64,
    rights: Arc<Rights>,
    ended: CancellationToken,
    why: OnceLock<Ended>,
    held: Mutex<Mine>,
    cut: OnceLock<Cut>,
    /// Whether its connection assembles WebSocket messages.
    assembles: AtomicBool,
    /// The bytes of its body, counted for its organisation until the request ends.
    body: Mutex<Option<Unfinished>>,
}

/// The state of one admission.
#[derive(Default)]
struct Mine {
    rights: HashSet<Right>,
    /// The organisation of the first key.
    organisation: Option<String>,
    keyless: bool,
    /// The organisation of the sandbox that it came to without a key.
    host: Option<String>,
    /// Counted among its organisation's streams.
    counted_stream: bool,
    full: Option<String>,
}

impl Rights {
    pub fn new(budget: Budget) -> Self {
        Rights { budget, ..Rights::default() }
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A new admission for a request without any right yet.
    pub fn admit(self: &Arc<Self>) -> Admission {
        Admission(Arc::new(Inner {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            rights: Arc::clone(self),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
            held: Mutex::default(),
            cut: OnceLock::new(),
            assembles: AtomicBool::new(false),
            body: Mutex::default(),
        }))
    }

    /// Ends a right, and every request that it allowed.
    pub fn end(&self, right: &Right) {
        // Before the holders are read: who holds it after that sees that it must ask again.
        self.ends.fetch_add(1, Ordering::SeqCst);
        let holders = self.lock().rights.get(right).map(living).unwrap_or_default();
        end_all(holders, Ended::Right);
    }

    /// Ends a right for those who hold it with this mark.
    fn end_marked(&self, right: &Right, mark: u64) {
        self.ends.fetch_add(1, Ordering::SeqCst);
        let held = self.lock();
        let holders = held.rights.get(right).into_iter().flat_map(|holders| holders.admissions.values());
        let holders = holders.filter(|holder| holder.mark == mark).filter_map(|holder| holder.admission.upgrade());
        let holders = holders.collect();
        drop(held);
        end_all(holders, Ended::Right);
    }

    /// A number that rises whenever a right is ended. Whoever reads something, holds a right because of it and finds the
    /// same number afterwards holds no right that was ended in between.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    /// Ends expired rights.
    pub fn expire(&self, now: Timestamp) {
        let held = self.lock();
        let over = held.rights.values().filter(|holders| holders.until.is_some_and(|until| until <= now));
        let holders = over.flat_map(living).collect();
        drop(held);
        end_all(holders, Ended::Right);
    }

    /// Ends every stream, because the server ends.
    pub fn end_streams(&self) {
        let streams = self.lock().streams.values().filter_map(Weak::upgrade).collect();
        end_all(streams, Ended::Server);
    }

    /// The rights that are held now, each with every mark it is held with.
    fn held(&self) -> Vec<(Right, u64)> {
        let held = self.lock();
        let marked = held.rights.iter().flat_map(|(right, holders)| {
            let marks: HashSet<u64> = holders.admissions.values().map(|holder| holder.mark).collect();
            marks.into_iter().map(move |mark| (right.clone(), mark))
        });
        marked.collect()
    }

    /// How many streams there are now.
    pub fn streams(&self) -> usize {
        self.lock().streams.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("no panic while held")
    }
}

/// Never call this while the registry is locked: dropping the last clone of an admission locks it to remove its entry.
fn end_all(admissions: Vec<Arc<Inner>>, why: Ended) {
    for admission in admissions {
        // Keeps the first reason.
        let _first = admission.why.set(why);
        admission.ended.cancel();
        if let Some(cut) = admission.cut.get() {
            cut();
        }
    }
}

fn living(holders: &Holders) -> Vec<Arc<Inner>> {
    holders.admissions.values().filter_map(|holder| holder.admission.upgrade()).collect()
}

impl Admission {
    /// Runs the work of the request; its rights are noted in this admission.
    pub async fn within<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// Waits until it has ended.
    pub fn ended(&self) -> &CancellationToken {
        &self.0.ended
    }

    pub fn why(&self) -> Option<Ended> {
        self.0.why.get().copied()
    }

    /// The answer has begun and continues as a stream.
    pub fn streams(&self) {
        self.0.rights.lock().streams.insert(self.0.id, Arc::downgrade(&self.0));
    }

    /// The request's connection was upgraded; `cut` closes it.
    pub fn upgraded(&self, cut: Cut) {
        // A connection is upgraded once.
        let _first = self.0.cut.set(cut);
        self.streams();
        // The admission may have ended before there was a connection to cut.
        if self.0.ended.is_cancelled()
            && let Some(cut) = self.0.cut.get()
        {
            cut();
        }
    }

    fn mine(&self) -> std::sync::MutexGuard<'_, Mine> {
        self.0.held.lock().expect("no panic while held")
    }

    /// Why it was refused, if there was no room.
    pub fn full(&self) -> Option<String> {
        self.mine().full.clone()
    }

    fn refuse(&self, mut mine: std::sync::MutexGuard<'_, Mine>, message: String) -> Error {
        mine.full = Some(message.clone());
        drop(mine);
        end_all(vec![Arc::clone(&self.0)], Ended::Full);
        Error::Exhausted { message, retry_after: AGAIN }
    }

    /// Counts the request for its organisation.
    fn count_known(&self, organisation: &str) -> Result<(), Error> {
        let mut mine = self.mine();
        if mine.organisation.is_some() {
            return Ok(());
        }
        let budget = &self.0.rights.budget;
        let mut held = self.0.rights.lock();
        let under_way = held.organisations.get(organisation).map_or(0, |count| count.under_way);
        let message = if under_way >= budget.per_organisation {
            format!("the organisation has its maximum of {under_way} requests and streams under way; end some")
        } else if held.known >= budget.known {
            format!("this server has its maximum of {} requests and streams under way; try again later", held.known)
        } else {
            held.known += 1;
            held.organisations.entry(organisation.to_owned()).or_default().under_way += 1;
            drop(held);
            mine.organisation = Some(organisation.to_owned());
            return Ok(());
        };
        drop(held);
        Err(self.refuse(mine, message))
    }

    /// Counts the request for the sandbox, and for all callers without a key.
    fn count_keyless(&self, sandbox: &SandboxId) -> Result<(), Error> {
        let mut mine = self.mine();
        if mine.keyless {
            return Ok(());
        }
        let budget = &self.0.rights.budget;
        let mut held = self.0.rights.lock();
        let right = Right::Sandbox(sandbox.clone());
        let there = held.rights.get(&right).map_or(0, |holders| holders.admissions.len());
        let message = if there >= budget.per_sandbox {
            format!("sandbox {sandbox} has its maximum of {there} connections without a key; try again later")
        } else if held.keyless >= budget.keyless {
            format!("this server has its maximum of {} connections without a key; try again later", held.keyless)
        } else {
            held.keyless += 1;
            mine.keyless = true;
            return Ok(());
        };
        drop(held);
        Err(self.refuse(mine, message))
    }

    /// Counts the answer among the organisation's streams, or refuses it at the maximum.
    pub fn may_stream(&self) -> Result<(), Error> {
        let mut mine = self.mine();
        let Some(organisation) = mine.organisation.clone() else { return Ok(()) };
        let most = self.0.rights.budget.streams_per_organisation;
        let mut held = self.0.rights.lock();
        let Some(count) = held.organisations.get_mut(&organisation) else { return Ok(()) };
        if count.streams < most {
            count.streams += 1;
            mine.counted_stream = true;
            return Ok(());
        }
        drop(held);
        Err(self.refuse(mine, format!("the organisation has its maximum of {most} streams open; end some")))
    }

    /// Its connection assembles WebSocket messages: see [`Unfinished`].
    pub fn assembles(&self) {
        self.0.assembles.store(true, Ordering::Relaxed);
    }

    /// The account for incomplete messages, if the connection assembles messages.
    pub fn unfinished(&self) -> Option<Unfinished> {
        if !self.0.assembles.load(Ordering::Relaxed) {
            return None;
        }
        let account = self.account();
        let mut held = self.0.rights.lock();
        let total = Arc::clone(&held.organisations.entry(account).or_default().unfinished);
        Some(Unfinished { own: 0, total, most: self.0.rights.budget.unfinished_bytes })
    }

    /// Whose resources it uses: its key's organisation, or that of the sandbox it came to.
    fn account(&self) -> String {
        let mine = self.mine();
        mine.organisation.clone().or_else(|| mine.host.clone()).unwrap_or_default()
    }

    /// Counts how many bytes of its body the request makes the server hold. They are counted until the request ends: what
    /// runs for long may hold them as long. Refused where the requests of its organisation hold too many together.
    pub fn holds_body(&self, bytes: usize) -> Result<(), Error> {
        let most = self.0.rights.budget.held_bytes;
        let mut body = self.0.body.lock().expect("no panic while held");
        if bytes == 0 && body.is_none() {
            return Ok(());
        }
        let counted = body.get_or_insert_with(|| {
            let account = self.account();
            let total = Arc::clone(&self.0.rights.lock().organisations.entry(account).or_default().held_bytes);
            Unfinished { own: 0, total, most }
        });
        if counted.set(bytes as u64) {
            return Ok(());
        }
        // It is dropped now.
        let _within = counted.set(0);
        let message = format!("requests of the organisation hold {} MiB together; end some, or send less", most >> 20);
        Err(Error::Exhausted { message, retry_after: AGAIN })
    }

    fn hold(&self, right: Right, until: Option<Timestamp>, mark: u64) {
        self.mine().rights.insert(right.clone());
        let mut held = self.0.rights.lock();
        let holders = held.rights.entry(right).or_default();
        holders.until = until;
        // The mark of the latest look: that is the one which the request's tokens are compared with.
        holders.admissions.insert(self.0.id, Holder { admission: Arc::downgrade(&self.0), mark });
    }

    /// Whether the request has any right: a key, a public sandbox, or the sandbox's token.
    pub fn is_somebodys(&self) -> bool {
        let mine = self.mine();
        mine.organisation.is_some() || mine.keyless
    }

    fn holds_a_key(&self) -> bool {
        self.mine().organisation.is_some()
    }
}

/// Bytes of one connection's incomplete message, or of one request's body, counted for its organisation.
pub struct Unfinished {
    own: u64,
    total: Arc<AtomicU64>,
    most: u64,
}

impl Unfinished {
    /// Sets how many bytes are incomplete now. Returns whether that is still within the budget.
    #[must_use]
    pub fn set(&mut self, bytes: u64) -> bool {
        let before = self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(self.own, Ordering::Relaxed);
        let own = std::mem::replace(&mut self.own, bytes);
        before.saturating_sub(own) + bytes <= self.most
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.total.fetch_sub(self.own, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Before it is asked whether the organisation is still counted.
        drop(self.body.get_mut().map(Option::take));
        let Ok(mut held) = self.rights.held.lock() else { return };
        held.streams.remove(&self.id);
        let mine = self.held.get_mut().map(std::mem::take).unwrap_or_default();
        if mine.keyless {
            held.keyless -= 1;
        }
        if let Some(organisation) = mine.organisation {
            held.known -= 1;
            if let Some(count) = held.organisations.get_mut(&organisation) {
                count.under_way -= 1;
                count.streams -= usize::from(mine.counted_stream);
                if !count.is_needed() {
                    held.organisations.remove(&organisation);
                }
            }
        }
        if let Some(host) = mine.host
            && held.organisations.get(&host).is_some_and(|count| !count.is_needed())
        {
            held.organisations.remove(&host);
        }
        for right in mine.rights {
            if let Some(holders) = held.rights.get_mut(&right) {
                holders.admissions.remove(&self.id);
                if holders.admissions.is_empty() {
                    held.rights.remove(&right);
                }
            }
        }
    }
}

/// The admission of the request that this task answers; `None` in background work.
pub fn current() -> Option<Admission> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Notes that this key allowed the request, if its organisation has room for another.
pub(crate) fn hold_key(id: &str, organisation: &str, until: Option<Timestamp>) -> Result<(), Error> {
    let held = CURRENT.try_with(|admission| {
        admission.count_known(organisation)?;
        admission.hold(Right::Key(id.to_owned()), until, 0);
        Ok(())
    });
    // Outside of a request there is nothing to do.
    held.unwrap_or(Ok(()))
}

/// Notes that the sandbox's own token, or the fact that it is public, allowed the request, unless a key did.
pub(crate) fn hold_sandbox(sandbox: &Sandbox) -> Result<(), Error> {
    let held = CURRENT.try_with(|admission| {
        if !admission.holds_a_key() {
            admission.count_keyless(&sandbox.id)?;
            admission.mine().host = Some(sandbox.organisation.clone());
            admission.hold(Right::Sandbox(sandbox.id.clone()), None, mark(sandbox));
        }
        Ok(())
    });
    held.unwrap_or(Ok(()))
}

/// Notes that a volume's token allowed the request, if the organisation that owns it has room for another.
pub(crate) fn hold_volume(id: &VolumeId, organisation: &str) -> Result<(), Error> {
    let held = CURRENT.try_with(|admission| {
        admission.count_known(organisation)?;
        admission.hold(Right::Volume(id.clone()), None, 0);
        Ok(())
    });
    held.unwrap_or(Ok(()))
}

/// Notes that a signed link, valid until then, allowed the request.
pub(crate) fn hold_link(until: Timestamp) {
    let _in_a_request = CURRENT.try_with(|admission| admission.hold(Right::Link(admission.0.id), Some(until), 0));
}

/// A hash of everything that opens a sandbox without a key. When it changes, the right has ended.
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
        one.clone().within(async { hold_key("k", "o", None).unwrap() }).await;
        other.clone().within(async { hold_key("l", "o", Some(at(10))).unwrap() }).await;
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
            admission.clone().within(async { hold_key("k", "o", None).unwrap() }).await;
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

    fn rights(most: u64) -> Arc<Rights> {
        let config = crate::config::Connections { most, ..Default::default() };
        Arc::new(Rights::new(Budget::new(&config, 1024)))
    }

    #[tokio::test]
    async fn an_organisation_has_its_share_and_an_answer_even_when_all_its_streams_are_open() {
        let rights = rights(32);
        let admit = async |organisation: &str, streams: bool| {
            let admission = rights.admit();
            let held = admission.clone().within(async { hold_key("k", organisation, None) }).await;
            let held = held.and_then(|()| if streams { admission.may_stream() } else { Ok(()) });
            held.map(|()| admission)
        };
        let mut open = Vec::new();
        while let Ok(admission) = admit("greedy", true).await {
            open.push(admission);
        }
        assert_eq!(open.len(), 12, "three quarters of sixteen");
        assert!(admit("greedy", false).await.is_ok(), "a short request is answered");
        assert!(admit("other", true).await.is_ok(), "and so are others");
        for _ in 0..4 {
            open.push(admit("greedy", false).await.unwrap());
        }
        let refused = admit("greedy", false).await.err().expect("refused");
        assert!(refused.retry_after().is_some(), "{refused}");
        drop(open);
        assert!(admit("greedy", true).await.is_ok(), "what ended is given back");
    }

    #[tokio::test]
    async fn unfinished_messages_of_one_organisation_are_counted_together() {
        let config = crate::config::Connections { unfinished_bytes: 100, ..Default::default() };
        let rights = Arc::new(Rights::new(Budget::new(&config, 1024)));
        let account = async |organisation: &str| {
            let admission = rights.admit();
            admission.clone().within(async { hold_key("k", organisation, None) }).await.unwrap();
            admission.assembles();
            (admission.unfinished().unwrap(), admission)
        };
        let (mut one, _a) = account("o").await;
        let (mut two, _b) = account("o").await;
        let (mut other, _c) = account("p").await;
        assert!(one.set(60) && two.set(40) && other.set(100));
        assert!(!two.set(41));
        assert!(two.set(0) && one.set(100));
        drop(one);
        assert!(two.set(100));
    }

    #[tokio::test]
    async fn bodies_of_one_organisation_are_counted_together_until_their_requests_end() {
        let config = crate::config::Connections { unfinished_bytes: 100, ..Default::default() };
        let rights = Arc::new(Rights::new(Budget::new(&config, 1024)));
        let admit = async |organisation: &str| {
            let admission = rights.admit();
            admission.clone().within(async { hold_key("k", organisation, None) }).await.unwrap();
            admission
        };
        let (one, two, other) = (admit("o").await, admit("o").await, admit("p").await);
        assert!(one.holds_body(300).is_ok() && two.holds_body(100).is_ok(), "four times the bytes of messages");
        let refused = two.holds_body(101).unwrap_err();
        assert!(refused.retry_after().is_some(), "{refused}");
        assert!(other.holds_body(400).is_ok(), "another organisation has its own");
        assert!(two.holds_body(100).is_ok(), "a body that was refused is not held");
        drop(one);
        assert!(two.holds_body(400).is_ok(), "a request that ended holds nothing");
        drop((two, other));
        assert!(rights.lock().organisations.is_empty());
    }

    #[tokio::test]
    async fn who_comes_with_new_tokens_does_not_keep_those_who_came_with_old_ones() {
        let rights = Arc::new(Rights::default());
        let sandbox: SandboxId = "abcdefghij0123456789".parse().unwrap();
        let right = Right::Sandbox(sandbox);
        let (old, new) = (rights.admit(), rights.admit());
        old.hold(right.clone(), None, 1);
        new.hold(right.clone(), None, 2);
        let mut held = rights.held();
        held.sort_by_key(|(_, mark)| *mark);
        assert_eq!(held, [(right.clone(), 1), (right.clone(), 2)]);
        // As another server of the database does that finds the tokens of mark 2 in the store.
        let before = rights.ends();
        rights.end_marked(&right, 1);
        assert!(old.ended().is_cancelled() && !new.ended().is_cancelled());
        assert_ne!(rights.ends(), before, "who holds a right meanwhile asks again");
        drop((old, new));
        assert!(rights.held().is_empty());
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
