//! Whether a sandbox works although nobody calls it: an agent in the background, a build, a download.
//!
//! Judged by the host's own account of processor time, network and disk, from one look to the next: a sandbox can
//! neither hide its work nor pretend any without doing some. A daemon that only waits stays far below every threshold.
//! Measured over looks of 5 seconds, in per cent of one processor: a bare sandbox, an interpreter between two cells, a
//! shell at its prompt and a sleeping process 0.00; the http servers of Python (which polls) and of node with a timer of a
//! second at most 0.03; a shell that starts a process every second 0.2; a Python loop that works a twentieth of its time 3.9 to
//! 4.9.

use std::collections::HashMap;
use std::sync::Mutex;

use cove_protocol::SandboxId;

use super::Sandbox;
use super::timers::IdleMeasure;
use crate::clock::Timestamp;
use crate::provider::Usage;
use crate::{App, Error};

/// Per mille of one processor, on average between two looks.
const PROCESSOR: u64 = 10;
/// Bytes a second in and out. Signs of life of an open connection are far less, an answer that a model streams is more.
const NETWORK: u64 = 1 << 10;
/// Bytes a second by which the files grow or shrink. A log that gets a line now and then is no work.
const DISK: u64 = 64 << 10;

/// The shortest time between two looks that says anything: what happens once in a while is not taken for a rate.
pub const SHORTEST_MS: i64 = 1000;

/// What a sandbox had used at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    at_ms: i64,
    processor_ns: u64,
    network: u64,
    disk: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Works,
    Waits,
    /// There was no look yet that says anything.
    TooSoon,
}

impl Look {
    fn new(usage: &Usage, now: Timestamp) -> Look {
        Look {
            at_ms: now.as_millisecond(),
            processor_ns: usage.cpu_ns,
            network: usage.network_received.saturating_add(usage.network_sent),
            disk: usage.disk,
        }
    }

    /// What was done since `before`.
    fn since(&self, before: &Look) -> Verdict {
        let elapsed = self.at_ms.saturating_sub(before.at_ms);
        if elapsed < SHORTEST_MS {
            return Verdict::TooSoon;
        }
        let milliseconds = elapsed.unsigned_abs();
        let is_rate = |done: u64, per_second: u64| done.saturating_mul(1000) >= per_second.saturating_mul(milliseconds);
        // A millisecond has 10^6 ns, of which one per mille is 1000: per second a million for each per mille. Counters begin
        // anew with each start of the sandbox; then nothing is known to have been done.
        let works = is_rate(self.processor_ns.saturating_sub(before.processor_ns), PROCESSOR * 1_000_000)
            || is_rate(self.network.saturating_sub(before.network), NETWORK)
            || is_rate(self.disk.abs_diff(before.disk), DISK);
        if works { Verdict::Works } else { Verdict::Waits }
    }
}

/// The latest look at each sandbox that runs, and what it showed.
#[derive(Default)]
pub struct Looks(Mutex<HashMap<SandboxId, (Look, Verdict)>>);

impl Looks {
    /// Looks again. A look that comes too soon leaves the one before in its place, and its verdict holds.
    fn look(&self, id: &SandboxId, usage: &Usage, now: Timestamp) -> Verdict {
        let look = Look::new(usage, now);
        let mut looks = self.0.lock().expect("no panic while held");
        let Some((before, verdict)) = looks.get_mut(id) else {
            looks.insert(id.clone(), (look, Verdict::TooSoon));
            return Verdict::TooSoon;
        };
        let seen = look.since(before);
        if seen != Verdict::TooSoon {
            (*before, *verdict) = (look, seen);
        }
        *verdict
    }

    pub(super) fn keep_only(&self, running: &[Sandbox]) {
        let ids: std::collections::HashSet<&SandboxId> = running.iter().map(|sandbox| &sandbox.id).collect();
        self.0.lock().expect("no panic while held").retain(|id, _| ids.contains(id));
    }
}

impl App {
    /// Notes work as activity, where it counts.
    pub(super) fn note_work(&self, sandbox: &Sandbox, usage: &Usage) -> Verdict {
        if sandbox.timers.idle_seconds.is_none() || sandbox.timers.idle_measure != IdleMeasure::RequestsAndWork {
            return Verdict::Waits;
        }
        let verdict = self.looks().look(&sandbox.id, usage, self.now());
        if verdict == Verdict::Works {
            self.touch(&sandbox.id);
        }
        verdict
    }

    /// Whether it works at this moment.
    pub(crate) async fn work_of(&self, sandbox: &Sandbox) -> Result<Verdict, Error> {
        let usage = self.provider(&sandbox.provider)?.usage(&sandbox.handle()).await?;
        Ok(self.note_work(sandbox, &usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(milliseconds: i64, used: Usage) -> Verdict {
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        Look::new(&used, at(milliseconds)).since(&Look::new(&Usage::default(), at(0)))
    }

    #[test]
    fn a_rate_counts_and_not_a_moment() {
        let second = |cpu_ns| verdict(1000, Usage { cpu_ns, ..Usage::default() });
        assert_eq!((second(9_999_999), second(10_000_000)), (Verdict::Waits, Verdict::Works));
        let burst = Usage { cpu_ns: 40_000_000, ..Usage::default() };
        assert_eq!(verdict(5000, burst.clone()), Verdict::Waits, "40 ms in 5 s");
        assert_eq!(verdict(999, burst), Verdict::TooSoon);
        let twentieth = Usage { cpu_ns: 250_000_000, ..Usage::default() };
        assert_eq!(verdict(5000, twentieth), Verdict::Works, "5 %");
    }

    #[test]
    fn bytes_in_either_direction_are_work() {
        assert_eq!(verdict(5000, Usage { network_received: 5 << 10, ..Usage::default() }), Verdict::Works);
        assert_eq!(verdict(5000, Usage { network_sent: 5 << 10, ..Usage::default() }), Verdict::Works);
        assert_eq!(verdict(5000, Usage { network_sent: 300, ..Usage::default() }), Verdict::Waits, "a sign of life");
        assert_eq!(verdict(5000, Usage { disk: 1 << 20, ..Usage::default() }), Verdict::Works);
        assert_eq!(verdict(5000, Usage { disk: 4 << 10, ..Usage::default() }), Verdict::Waits, "a line in a log");
    }

    #[test]
    fn looks_in_quick_succession_do_not_take_the_baseline_away() {
        let (looks, id) = (Looks::default(), crate::random::sandbox_id());
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        let used = |cpu_ns| Usage { cpu_ns, ..Usage::default() };
        assert_eq!(looks.look(&id, &used(0), at(0)), Verdict::TooSoon);
        for millisecond in 1..10 {
            assert_eq!(looks.look(&id, &used(0), at(millisecond * 100)), Verdict::TooSoon);
        }
        assert_eq!(looks.look(&id, &used(20_000_000), at(1000)), Verdict::Works);
        assert_eq!(looks.look(&id, &used(20_000_000), at(1001)), Verdict::Works, "as was seen a moment ago");
        assert_eq!(looks.look(&id, &used(0), at(6000)), Verdict::Waits, "counters that began anew");
    }
}
