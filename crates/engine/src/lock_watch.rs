//! Ends processes that hold file locks without end.
//!
//! A lock on a range of a file (fcntl(2)) costs the kernel 192 bytes that no control group counts, and no rlimit bounds
//! their number (RLIMIT_LOCKS means nothing since Linux 2.4.25): a sandbox of 128 MiB could fill the memory of the host
//! with them. They cannot be refused: databases and package managers need them. So the kernel's cache of locks is
//! checked once a second, one small read. Only when it is very large, the locks of each sandbox are counted, and the
//! processes with the most are killed, as with memory.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::cgroup::Group;

/// How many locks there is room for on the whole host, in use or not: two numbers, of which the first is meant.
const CACHE: &str = "/sys/kernel/slab/file_lock_cache/total_objects";

/// Locks of the whole host from which on it is worth looking whose they are: 48 MiB.
const ALARM: u64 = 256 << 10;

/// What one sandbox may hold: 12 MiB. Programs hold a few dozen.
const MOST: usize = 64 << 10;

/// How long the next count waits after a count that found nothing.
const REST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct LockWatch {
    rests_until: Mutex<Option<Instant>>,
}

impl LockWatch {
    /// Whether it is time to count.
    pub fn is_alarmed(&self) -> bool {
        let resting = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        if resting.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let text = fs::read_to_string(CACHE).unwrap_or_default();
        text.split_whitespace().next().and_then(|number| number.parse().ok()).is_some_and(|locks: u64| locks > ALARM)
    }

    /// Brings each sandbox back below its bound.
    pub fn enforce<'a>(&self, groups: impl Iterator<Item = &'a Group>) {
        // All of them: the second may be the worse one.
        let killed = groups.filter(|group| thin_out(group)).count();
        if killed == 0 {
            // Somebody outside of our sandboxes, or many with a few each.
            *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + REST);
        }
    }
}

/// Kills those of the group who hold the most, until the rest is within the bound; whether anybody had to be.
fn thin_out(group: &Group) -> bool {
    // A removed group has no locks.
    let mut holders: Vec<Holder> = group.pids().unwrap_or_default().into_iter().filter_map(Holder::of).collect();
    holders.sort_by_key(|holder| holder.locks);
    let mut left: usize = holders.iter().map(|holder| holder.locks).sum();
    let mut killed = false;
    while left > MOST
        && let Some(worst) = holders.pop()
    {
        // ESRCH: it has ended, and its locks with it.
        let _ = rustix::process::pidfd_send_signal(&worst.process, Signal::KILL);
        left -= worst.locks;
        killed = true;
    }
    killed
}

struct Holder {
    /// Opened before its locks are counted: a number can be another's by then.
    process: OwnedFd,
    locks: usize,
}

impl Holder {
    fn of(pid: u32) -> Option<Holder> {
        let process = rustix::process::pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?.flatten();
        // proc_pid_fdinfo(5): a line for each lock that was taken by way of the descriptor.
        let locks_of = |file: fs::DirEntry| {
            let text = fs::read(file.path()).unwrap_or_default();
            text.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"lock:")).count()
        };
        let locks = files.map(locks_of).sum();
        Some(Holder { process, locks })
    }
}
