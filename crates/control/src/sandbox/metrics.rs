//! What a sandbox uses, sampled: the host's account. Every sample is in memory for an hour; one a minute is in the store
//! for as long as the operator keeps them, so that history outlives the server and the sandbox's own stop.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use cove_protocol::SandboxId;
use serde::{Deserialize, Serialize};

use super::{Sandbox, State};
use crate::clock::Timestamp;
use crate::provider::Usage;
use crate::{App, Caller, Error};

/// How often a sandbox is looked at; less often where there are very many.
pub const EVERY: Duration = Duration::from_secs(5);
/// Samples kept of each.
const KEPT: usize = 720;
/// Looks per second at most: a look reads about ten files of the kernel's.
const LOOKS_PER_SECOND: usize = 400;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Sample {
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Per cent of one processor, since the sample before.
    pub cpu_percent: f64,
    /// Nanoseconds of processor time since the start.
    pub cpu_ns: u64,
    pub cpus: f64,
    /// Bytes, without cache that can be dropped.
    pub memory: u64,
    pub memory_cache: u64,
    pub memory_limit: u64,
    pub disk: u64,
    pub disk_limit: Option<u64>,
    pub network_received: u64,
    pub network_sent: u64,
    pub processes: u64,
    /// Processes that the kernel killed for want of memory so far.
    pub memory_kills: u64,
}

#[derive(Default)]
pub struct History {
    samples: Mutex<HashMap<SandboxId, VecDeque<Sample>>>,
    /// When a sample of a sandbox last went to the store.
    stored: Mutex<HashMap<SandboxId, Timestamp>>,
}

impl History {
    fn add(&self, sandbox: &Sandbox, usage: &Usage, now: Timestamp) -> Sample {
        let mut all = self.samples.lock().expect("no panic while held");
        let samples = all.entry(sandbox.id.clone()).or_default();
        let cpu_percent = samples.back().map_or(0.0, |before| {
            let elapsed = (now.as_millisecond() - before.at.as_millisecond()) as f64 * 1e6;
            let used = usage.cpu_ns.saturating_sub(before.cpu_ns) as f64;
            if elapsed > 0.0 { (used / elapsed * 100.0).max(0.0) } else { before.cpu_percent }
        });
        let sample = Sample {
            at: now,
            cpu_percent,
            cpu_ns: usage.cpu_ns,
            cpus: sandbox.limits.cpus,
            memory: usage.memory,
            memory_cache: usage.memory_cache,
            memory_limit: usage.memory_limit,
            disk: usage.disk,
            disk_limit: usage.disk_limit,
            network_received: usage.network_received,
            network_sent: usage.network_sent,
            processes: usage.pids,
            memory_kills: usage.memory_kills,
        };
        if samples.len() == KEPT {
            samples.pop_front();
        }
        samples.push_back(sample.clone());
        sample
    }

    fn of(&self, id: &SandboxId) -> Vec<Sample> {
        let all = self.samples.lock().expect("no panic while held");
        all.get(id).map(|samples| samples.iter().cloned().collect()).unwrap_or_default()
    }

    /// Whether it is time for one in the store; asked once, it is not the next time.
    fn is_due(&self, id: &SandboxId, now: Timestamp, every_seconds: u64) -> bool {
        let mut stored = self.stored.lock().expect("no panic while held");
        let due = stored.get(id).is_none_or(|last| {
            let elapsed = now.as_millisecond() - last.as_millisecond();
            elapsed >= i64::try_from(every_seconds.saturating_mul(1000)).unwrap_or(i64::MAX)
        });
        if due {
            stored.insert(id.clone(), now);
        }
        due
    }

    fn keep_only(&self, running: &[Sandbox]) {
        let ids: std::collections::HashSet<&SandboxId> = running.iter().map(|sandbox| &sandbox.id).collect();
        self.samples.lock().expect("no panic while held").retain(|id, _| ids.contains(id));
        self.stored.lock().expect("no panic while held").retain(|id, _| ids.contains(id));
    }
}

/// The store asks for what is before.
fn after_it(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond() + 1).unwrap_or(at)
}

impl App {
    /// Samples between the two times, oldest first: from the store, then from memory; of a running sandbox with one of
    /// this moment at the end.
    pub async fn metrics(
        &self,
        caller: &Caller,
        id_or_name: &str,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Result<Vec<Sample>, Error> {
        let sandbox = self.sandbox(caller, id_or_name).await?;
        if sandbox.state == State::Running {
            self.sample(&sandbox).await?;
        }
        let within = |sample: &Sample| from.is_none_or(|from| sample.at >= from) && to.is_none_or(|to| sample.at <= to);
        let recent = self.history().of(&sandbox.id);
        // Memory has all that is newer than its oldest.
        let before = match (recent.first(), to) {
            (Some(first), Some(to)) => Some(first.at.min(after_it(to))),
            (Some(first), None) => Some(first.at),
            (None, to) => to.map(after_it),
        };
        let mut samples = self.store().samples(sandbox.id.as_str(), from, before).await?;
        samples.extend(recent.into_iter().filter(within));
        Ok(samples)
    }

    async fn sample(&self, sandbox: &Sandbox) -> Result<Sample, Error> {
        let usage = self.provider(&sandbox.provider)?.usage(&sandbox.handle()).await?;
        self.note_work(sandbox, &usage);
        Ok(self.history().add(sandbox, &usage, self.now()))
    }

    /// Looks at every running sandbox of this server, at a pace that leaves the machine to them.
    pub(crate) async fn sample_all(&self) -> Result<(), Error> {
        let mut running = self.store().sandboxes_of_server(self.server()).await?;
        running.retain(|sandbox| matches!(sandbox.state, State::Running | State::Paused));
        self.history().keep_only(&running);
        self.looks().keep_only(&running);
        let every = self.config().metrics.store_every_seconds;
        let mut lasting = Vec::new();
        for batch in running.chunks(LOOKS_PER_SECOND / 10) {
            if self.ending().is_cancelled() {
                return Ok(());
            }
            for sandbox in batch.iter().filter(|sandbox| sandbox.state == State::Running) {
                // One that ends under our eyes is no error.
                let Ok(sample) = self.sample(sandbox).await else { continue };
                if self.history().is_due(&sandbox.id, sample.at, every) {
                    lasting.push((sandbox.id.to_string(), sample));
                }
            }
            self.store().add_samples(&std::mem::take(&mut lasting)).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}
