//! Watchers that clients fetch from: events wait here between two calls, since such a client holds no connection.
//!
//! A client may vanish silently, so everything is bounded: watchers per sandbox, events per watcher, and the time that
//! a watcher may go unfetched.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message as _;

use super::connect::{Code, RpcError};
use super::message::filesystem::FilesystemEvent;
use crate::random;

const PER_SANDBOX: usize = 256;
const EVENTS: usize = 16 << 10;
const BYTES: usize = 4 << 20;
const UNFETCHED: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct Watchers {
    /// By sandbox and watcher.
    all: Mutex<HashMap<(String, String), Watcher>>,
}

struct Watcher {
    events: Events,
    fetched: Instant,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Events of one watcher that were not fetched; the oldest is dropped when it is full.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Unfetched>>);

#[derive(Default)]
struct Unfetched {
    events: VecDeque<FilesystemEvent>,
    bytes: usize,
}

impl Events {
    pub fn push(&self, event: FilesystemEvent) {
        let mut held = self.0.lock().expect("no holder panics");
        held.bytes += weight(&event);
        held.events.push_back(event);
        while held.events.len() > EVENTS || held.bytes > BYTES {
            let Some(oldest) = held.events.pop_front() else { break };
            held.bytes -= weight(&oldest);
        }
    }

    fn take(&self) -> Vec<FilesystemEvent> {
        std::mem::take(&mut *self.0.lock().expect("no holder panics")).events.into()
    }
}

/// A name is as long as the sandbox likes.
fn weight(event: &FilesystemEvent) -> usize {
    event.encoded_len()
}

impl Watchers {
    /// Runs `watch` until the watcher is removed, gives it up after too long unfetched.
    pub fn add<F>(&self, sandbox: &str, watch: impl FnOnce(Events) -> F) -> Result<String, RpcError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut all = self.all.lock().expect("no holder panics");
        all.retain(|_, watcher| watcher.fetched.elapsed() < UNFETCHED);
        if all.keys().filter(|(of, _)| of == sandbox).count() >= PER_SANDBOX {
            let message = format!("a sandbox has at most {PER_SANDBOX} watchers: remove some");
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        let id = random::token();
        let events = Events::default();
        let task = tokio::spawn(watch(events.clone()));
        all.insert((sandbox.to_owned(), id.clone()), Watcher { events, fetched: Instant::now(), task });
        Ok(id)
    }

    pub fn take(&self, sandbox: &str, id: &str) -> Result<Vec<FilesystemEvent>, RpcError> {
        let mut all = self.all.lock().expect("no holder panics");
        let watcher = all.get_mut(&(sandbox.to_owned(), id.to_owned())).ok_or_else(|| unknown(id))?;
        watcher.fetched = Instant::now();
        Ok(watcher.events.take())
    }

    pub fn remove(&self, sandbox: &str, id: &str) -> Result<(), RpcError> {
        let removed = self.all.lock().expect("no holder panics").remove(&(sandbox.to_owned(), id.to_owned()));
        removed.map(drop).ok_or_else(|| unknown(id))
    }

    /// A sandbox that is gone has nothing to watch.
    pub fn forget(&self, sandbox: &str) {
        self.all.lock().expect("no holder panics").retain(|(of, _), _| of != sandbox);
    }
}

fn unknown(id: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("watcher with id {id} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_sandbox_cannot_fetch_or_remove_a_watcher() {
        let watchers = Watchers::default();
        let id = watchers.add("mine", async |events| events.push(FilesystemEvent::default())).unwrap();
        assert_eq!(watchers.take("theirs", &id).unwrap_err().code, Code::NotFound);
        assert_eq!(watchers.remove("theirs", &id).unwrap_err().code, Code::NotFound);
        watchers.remove("mine", &id).unwrap();
        assert_eq!(watchers.take("mine", &id).unwrap_err().code, Code::NotFound);
    }

    #[tokio::test]
    async fn a_sandbox_has_a_bounded_number_of_watchers() {
        let watchers = Watchers::default();
        for _ in 0..PER_SANDBOX {
            watchers.add("one", async |_| std::future::pending().await).unwrap();
        }
        assert_eq!(watchers.add("one", async |_| ()).unwrap_err().code, Code::ResourceExhausted);
        watchers.add("two", async |_| ()).unwrap();
        watchers.forget("one");
        watchers.add("one", async |_| ()).unwrap();
    }

    #[test]
    fn names_of_any_length_are_held_within_bounds() {
        let events = Events::default();
        for _ in 0..100 {
            events.push(FilesystemEvent { name: "x".repeat(1 << 20), ..FilesystemEvent::default() });
        }
        assert_eq!(events.take().len(), 3);
        events.push(FilesystemEvent::default());
        assert_eq!(events.take().len(), 1);
    }

    #[test]
    fn the_oldest_events_make_room() {
        let events = Events::default();
        for number in 0..EVENTS + 3 {
            events.push(FilesystemEvent { name: number.to_string(), ..FilesystemEvent::default() });
        }
        let kept = events.take();
        assert_eq!((kept.len(), kept[0].name.as_str()), (EVENTS, "3"));
        assert!(events.take().is_empty());
    }
}
