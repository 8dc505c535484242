//! What a container uses, and how it ended, as its host sees it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bollard::models::ContainerStatsResponse;
use bollard::query_parameters::{InspectContainerOptionsBuilder, StatsOptionsBuilder};
use cove_protocol::SandboxId;
use futures::TryStreamExt as _;

use super::Inner;
use super::client::{during, unless_absent};
use super::container::{Found, handle_of, name_of};
use crate::provider::{Ended, ProviderError, Seen, Usage};

/// How long a number of written bytes is taken for the present one: a daemon walks through all files for it.
const FRESH: Duration = Duration::from_secs(60);

/// An exit code of Docker's for a container whose process it has lost.
const LOST: i64 = 255;
/// As a shell tells of SIGKILL.
const KILLED: i64 = 128 + 9;

/// What is counted here because the daemon does not.
#[derive(Default)]
pub struct Accounts(Mutex<HashMap<SandboxId, Account>>);

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    written: Option<(Instant, u64)>,
    /// Processes that were ended for want of memory, as far as this server has seen.
    kills: u64,
}

impl Accounts {
    fn get(&self, id: &SandboxId) -> Account {
        self.0.lock().expect("no panic while held").get(id).copied().unwrap_or_default()
    }

    fn change(&self, id: &SandboxId, act: impl FnOnce(&mut Account)) {
        act(self.0.lock().expect("no panic while held").entry(id.clone()).or_default());
    }

    /// The kernel ended a process of it for want of memory.
    pub fn note_kill(&self, id: &SandboxId) {
        self.change(id, |account| account.kills += 1);
    }

    pub fn kills(&self, id: &SandboxId) -> u64 {
        self.get(id).kills
    }

    /// A new life begins at nothing.
    pub fn begin(&self, id: &SandboxId) {
        self.change(id, |account| account.kills = 0);
    }

    pub fn forget(&self, id: &SandboxId) {
        self.0.lock().expect("no panic while held").remove(id);
    }
}

impl Inner {
    pub async fn usage(&self, id: &SandboxId) -> Result<Usage, ProviderError> {
        let docker = self.client.docker().await?;
        let found = self.found(id).await?.ok_or_else(|| ProviderError::NotFound(handle_of(id)))?;
        let told = match found.state {
            Seen::Stopped => ContainerStatsResponse::default(),
            Seen::Running | Seen::Paused => {
                let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
                let told = docker.stats(&name_of(id), Some(options)).try_next().await;
                told.map_err(during(format!("measure sandbox {id}")))?.unwrap_or_default()
            }
        };
        let mut usage = measured(&told);
        usage.memory_limit = found.memory_limit;
        usage.memory_kills = self.accounts.kills(id);
        usage.disk = self.written(id).await?;
        usage.disk_limit = found.disk_limit.as_deref().and_then(|size| size.parse().ok());
        if let Some(counters) = self.gate.counters(id) {
            (usage.network_received, usage.network_sent) = (counters.received, counters.sent);
        }
        Ok(usage)
    }

    /// Bytes that it has written.
    pub async fn written(&self, id: &SandboxId) -> Result<u64, ProviderError> {
        if let Some((at, bytes)) = self.accounts.get(id).written
            && at.elapsed() < FRESH
        {
            return Ok(bytes);
        }
        let docker = self.client.docker().await?;
        let options = InspectContainerOptionsBuilder::new().size(true).build();
        let told = unless_absent(docker.inspect_container(&name_of(id), Some(options)).await);
        let told = told.map_err(during(format!("measure the files of sandbox {id}")))?;
        let bytes = told.and_then(Found::of).and_then(|found| found.written).unwrap_or(0);
        self.accounts.change(id, |account| account.written = Some((Instant::now(), bytes)));
        Ok(bytes)
    }
}

/// The cgroups of both versions, with the names that each has.
fn measured(told: &ContainerStatsResponse) -> Usage {
    let memory = told.memory_stats.clone().unwrap_or_default();
    let detail = memory.stats.unwrap_or_default();
    let cache = ["inactive_file", "total_inactive_file"].into_iter().find_map(|name| detail.get(name)).copied();
    let (used, cache) = (memory.usage.unwrap_or(0), cache.unwrap_or(0));
    let networks = told.networks.iter().flatten().map(|(_, network)| network);
    let (received, sent) = networks.fold((0u64, 0u64), |(received, sent), network| {
        (received + network.rx_bytes.unwrap_or(0), sent + network.tx_bytes.unwrap_or(0))
    });
    let processor = told.cpu_stats.as_ref().and_then(|stats| stats.cpu_usage.as_ref());
    Usage {
        cpu_ns: processor.and_then(|usage| usage.total_usage).unwrap_or(0),
        memory: used.saturating_sub(cache),
        memory_cache: cache,
        memory_peak: memory.max_usage.unwrap_or(used),
        memory_limit: memory.limit.unwrap_or(0),
        pids: told.pids_stats.as_ref().and_then(|stats| stats.current).unwrap_or(0),
        network_received: received,
        network_sent: sent,
        ..Usage::default()
    }
}

/// How a container that does not run came to its end. `booted`: when the daemon's machine was started, in seconds since 1970.
pub fn ended(found: &Found, booted: Option<i64>) -> Ended {
    let began = found.started.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second);
    match found.exit {
        // A daemon keeps the mark of any process that was ended for it. The limit is what memory ran out at; nobody has noted
        // the peak of a group that is gone.
        KILLED if found.out_of_memory => {
            Ended::OutOfMemory { limit: found.memory_limit, peak: found.memory_limit, largest: None }
        }
        LOST if began.is_some_and(|began| booted.is_some_and(|booted| began < booted)) => Ended::HostRestarted,
        LOST => Ended::Vanished,
        code @ 129..=192 => Ended::Killed { signal: (code - 128) as i32 },
        code => Ended::GuestExited { code: i32::try_from(code).unwrap_or(i32::MAX) },
    }
}

/// When this machine was started: proc_stat(5).
pub fn boot_time() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerConfig, ContainerInspectResponse, ContainerMemoryStats, ContainerState};

    use super::super::container::SANDBOX;
    use super::*;

    fn found(exit: i64, out_of_memory: bool, started: &str) -> Found {
        let labels = HashMap::from([(SANDBOX.to_owned(), "a".repeat(20))]);
        Found::of(ContainerInspectResponse {
            config: Some(ContainerConfig { labels: Some(labels), ..ContainerConfig::default() }),
            state: Some(ContainerState {
                running: Some(false),
                exit_code: Some(exit),
                oom_killed: Some(out_of_memory),
                started_at: Some(started.into()),
                ..ContainerState::default()
            }),
            ..ContainerInspectResponse::default()
        })
        .unwrap()
    }

    #[test]
    fn an_end_is_told_with_its_cause() {
        let then = "2026-11-18T02:20:18.380024616Z";
        let at: i64 = then.parse::<jiff::Timestamp>().unwrap().as_second();
        assert_eq!(ended(&found(0, false, then), None), Ended::GuestExited { code: 0 });
        assert_eq!(ended(&found(1, false, then), None), Ended::GuestExited { code: 1 });
        assert_eq!(ended(&found(137, false, then), None), Ended::Killed { signal: 9 });
        assert!(matches!(ended(&found(137, true, then), None), Ended::OutOfMemory { .. }));
        assert_eq!(ended(&found(0, true, then), None), Ended::GuestExited { code: 0 }, "that was one of its children");
        assert_eq!(ended(&found(255, false, then), Some(at + 1)), Ended::HostRestarted);
        assert_eq!(ended(&found(255, false, then), Some(at - 1)), Ended::Vanished);
        assert_eq!(ended(&found(255, false, "never"), Some(at)), Ended::Vanished);
    }

    #[test]
    fn memory_is_counted_without_what_could_be_given_back() {
        let stats = HashMap::from([("total_inactive_file".to_owned(), 30)]);
        let memory = ContainerMemoryStats { usage: Some(100), stats: Some(stats), ..ContainerMemoryStats::default() };
        let told = ContainerStatsResponse { memory_stats: Some(memory), ..ContainerStatsResponse::default() };
        let usage = measured(&told);
        assert_eq!((usage.memory, usage.memory_cache, usage.memory_peak), (70, 30, 100));
        assert_eq!(measured(&ContainerStatsResponse::default()), Usage::default());
    }

    #[test]
    fn this_machine_was_started_in_the_past() {
        assert!(boot_time().is_some_and(|at| at > 1_000_000_000));
    }
}
