//! Which limits this host can enforce, and what happens to the others.
//!
//! As root all of them are enforced or the launch fails. An ordinary user's engine has control groups only where some
//! were delegated. Without them a requested limit is refused, and a default is dropped and reported.

use std::fmt;

use crate::cgroup::Hierarchy;
use crate::error::Error;
use crate::kernel::{self, COUNTS_BY_NAMESPACE};
use crate::privilege::Privilege;
use crate::spec::{Limits, Storage};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    Cpus,
    Memory,
    Pids,
    Disk,
}

impl Limit {
    pub const ALL: [Limit; 4] = [Limit::Cpus, Limit::Memory, Limit::Pids, Limit::Disk];
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Cpus => "cpus",
            Limit::Memory => "memory",
            Limit::Pids => "pids",
            Limit::Disk => "disk",
        })
    }
}

/// A limit that nothing holds here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    pub limit: Limit,
    pub why: String,
    pub remedy: String,
}

/// What sandboxes of this host lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hold {
    unheld: Vec<Unheld>,
    /// Whether a sandbox's processes can be frozen.
    pub pause: bool,
}

impl Hold {
    pub fn of(privilege: Privilege, hierarchy: &Hierarchy) -> Hold {
        let Privilege::User(_) = privilege else { return Hold { unheld: Vec::new(), pause: true } };
        let missing = hierarchy.missing();
        let of_group = [(Limit::Cpus, "cpu"), (Limit::Memory, "memory"), (Limit::Pids, "pids")];
        let of_group = of_group.into_iter().filter_map(|(limit, controller)| {
            let (_, absent) = missing.iter().find(|(name, _)| *name == controller)?;
            let fenced = limit == Limit::Pids && kernel::has(COUNTS_BY_NAMESPACE);
            (!fenced).then(|| Unheld { limit, why: absent.reason.clone(), remedy: absent.remedy.clone() })
        });
        let disk = Unheld {
            limit: Limit::Disk,
            why: "an ordinary user has no quotas for files that outlive their sandbox".into(),
            remedy: "run as root; `cove run` holds a limit in memory".into(),
        };
        Hold { unheld: of_group.chain([disk]).collect(), pause: hierarchy.absent().is_none() }
    }

    /// What a sandbox with such files lacks.
    pub fn unheld(&self, storage: Storage) -> impl Iterator<Item = &Unheld> {
        self.unheld.iter().filter(move |unheld| unheld.limit != Limit::Disk || storage == Storage::Disk)
    }

    /// Refuses what cannot be held and is not waived.
    pub fn check(&self, storage: Storage, limits: &Limits, waived: &[Limit]) -> Result<(), Error> {
        let asked = |unheld: &&Unheld| {
            let set = unheld.limit != Limit::Disk || limits.disk.is_some();
            set && !waived.contains(&unheld.limit)
        };
        self.unheld(storage).find(asked).map_or(Ok(()), |unheld| Err(Error::Unheld(unheld.clone())))
    }

    /// The limits that really hold: the host's own where nothing narrower does.
    pub fn effective(&self, storage: Storage, limits: &Limits) -> Limits {
        let mut effective = *limits;
        for unheld in self.unheld(storage) {
            match unheld.limit {
                Limit::Cpus => effective.cpus = processors(),
                Limit::Memory => effective.memory = host_memory().unwrap_or(limits.memory),
                // A number that the kernel does not reach by itself.
                Limit::Pids => effective.pids = u32::MAX,
                Limit::Disk => (effective.disk, effective.inodes) = (None, None),
            }
        }
        effective
    }

    pub fn holds_memory(&self) -> bool {
        !self.unheld.iter().any(|unheld| unheld.limit == Limit::Memory)
    }
}

fn processors() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

fn host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes: u64 = text.lines().next()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_groups() -> Hold {
        let unheld = |limit| Unheld { limit, why: "nothing was delegated".into(), remedy: "delegate".into() };
        Hold { unheld: Limit::ALL.map(unheld).to_vec(), pause: false }
    }

    #[test]
    fn what_was_asked_for_is_refused_and_what_was_not_is_dropped() {
        let (hold, limits) = (without_groups(), Limits::default());
        let error = hold.check(Storage::Memory, &limits, &[Limit::Cpus, Limit::Pids]).unwrap_err();
        assert!(error.to_string().starts_with("memory limit"), "{error}");
        let waived = [Limit::Cpus, Limit::Memory, Limit::Pids];
        hold.check(Storage::Memory, &limits, &waived).expect("a tmpfs holds the disk's");
        assert!(hold.check(Storage::Disk, &limits, &waived).is_err());
        hold.check(Storage::Disk, &Limits { disk: None, ..limits }, &waived).expect("no limit was asked for");
    }

    #[test]
    fn what_does_not_hold_is_not_claimed() {
        let limits = Limits { cpus: 0.5, memory: 1 << 20, ..Limits::default() };
        let effective = without_groups().effective(Storage::Disk, &limits);
        assert!(effective.cpus >= 1.0 && effective.memory > 1 << 26 && effective.disk.is_none());
        assert_eq!(Hold::default().effective(Storage::Disk, &limits), limits);
    }
}
