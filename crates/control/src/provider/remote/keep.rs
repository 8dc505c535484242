//! What must be done for a service's sandboxes while nobody asks.
//!
//! A service ends, or puts away, what nobody renews: so that a server that is gone for good leaves nothing that costs. This
//! server gives every sandbox that shall run its time again, long before it is over. In the same round it looks which of
//! them do not run any more although nobody here ended them.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use cove_protocol::SandboxId;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::Service;
use crate::provider::{Departure, Ended, Seen};

/// How often is looked, at most and at least.
const SELDOM: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_secs(1);

/// Calls at one time.
const AT_ONCE: usize = 8;

pub struct Keep {
    lease: Duration,
    /// Those that shall run, by the service's name.
    running: Mutex<HashMap<String, Running>>,
    departed: Mutex<VecDeque<Departure>>,
    /// When to look next.
    next: Mutex<Instant>,
}

#[derive(Clone)]
struct Running {
    id: SandboxId,
    /// When its time was last given.
    renewed: Instant,
    /// When it came to be here: a list that was asked for earlier does not know it.
    since: Instant,
}

impl Keep {
    pub fn new(lease: Duration) -> Keep {
        // Not `Instant::now()`: a provider is opened before there is a runtime, whose clock tests can stop.
        Keep {
            lease,
            running: Mutex::default(),
            departed: Mutex::default(),
            next: Mutex::new(Instant::from_std(std::time::Instant::now())),
        }
    }

    /// From now on it shall run.
    pub fn add(&self, name: &str, id: &SandboxId) {
        let now = Instant::now();
        let running = Running { id: id.clone(), renewed: now, since: now };
        self.running.lock().expect("no panic while held").entry(name.to_owned()).or_insert(running);
    }

    /// From now on it may end.
    pub fn remove(&self, name: &str) {
        self.running.lock().expect("no panic while held").remove(name);
    }

    /// How long between two looks: a third of the lease, within reason.
    fn every(&self) -> Duration {
        (self.lease / 3).clamp(OFTEN, SELDOM)
    }

    /// The next end that nobody asked for and that was not told yet.
    pub fn told(&self) -> Option<Departure> {
        self.departed.lock().expect("no panic while held").pop_front()
    }

    /// Until it is time to look again and there is something to look at. Can be dropped and called again at any moment.
    pub async fn wait(&self) {
        loop {
            let next = *self.next.lock().expect("no panic while held");
            tokio::time::sleep_until(next).await;
            *self.next.lock().expect("no panic while held") = Instant::now() + self.every();
            if !self.running.lock().expect("no panic while held").is_empty() {
                return;
            }
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.running.lock().expect("no panic while held").keys().cloned().collect()
    }

    /// Its end is to be told; false where somebody here has ended it meanwhile.
    pub fn depart(&self, name: &str, ended: &Ended) -> bool {
        let Some(known) = self.running.lock().expect("no panic while held").remove(name) else { return false };
        let departure = Departure { id: known.id, ended: ended.clone() };
        self.departed.lock().expect("no panic while held").push_back(departure);
        true
    }

    /// Who does not run any more, by the service's word.
    pub async fn look(&self, service: &dyn Service) {
        let asked = Instant::now();
        let found = match service.list(None).await {
            Ok(found) => found,
            Err(error) => {
                // Whoever is not heard of may well run.
                tracing::warn!(service = service.kind().name, %error, "see what runs there");
                return;
            }
        };
        let seen: HashMap<&str, Seen> = found.iter().map(|found| (found.name.as_str(), found.state)).collect();
        let gone: Vec<String> = {
            let running = self.running.lock().expect("no panic while held");
            let gone = running
                .iter()
                .filter(|(name, known)| known.since < asked && seen.get(name.as_str()) != Some(&Seen::Running));
            gone.map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            self.depart(&name, &Ended::Vanished);
        }
    }

    /// Gives time to all whose time was given a while ago.
    pub async fn renew(&self, service: &dyn Service) {
        let now = Instant::now();
        let due: Vec<String> = {
            let running = self.running.lock().expect("no panic while held");
            let due = running.iter().filter(|(_, known)| now.duration_since(known.renewed) >= self.lease / 3);
            due.map(|(name, _)| name.clone()).collect()
        };
        futures::stream::iter(due)
            .for_each_concurrent(AT_ONCE, |name| async move {
                match service.renew(&name).await {
                    Ok(()) => {
                        if let Some(known) = self.running.lock().expect("no panic while held").get_mut(&name) {
                            known.renewed = now;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(sandbox = name, service = service.kind().name, %error, "give it more time");
                    }
                }
            })
            .await;
    }
}
