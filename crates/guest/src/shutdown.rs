//! The end of the sandbox: SIGTERM to all, a grace, SIGKILL, and out.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

use crate::guest::Guest;

/// How long the kernel may take to end what was killed; a process in an uninterruptible wait may outlast it and ends
/// with the namespace.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// How long connections have to report the last exits.
const LAST_WORDS: Duration = Duration::from_millis(50);

pub struct Shutdown {
    pub deadline: Instant,
    /// No child is left.
    pub all_gone: bool,
    killed: bool,
}

impl Shutdown {
    pub fn begin(guest: &Guest, grace: Duration) -> Self {
        if !grace.is_zero() {
            signal_all(guest, Signal::TERM);
            // A stopped process handles SIGTERM only once it runs again.
            signal_all(guest, Signal::CONT);
        }
        let now = Instant::now();
        let deadline = now.checked_add(grace).unwrap_or(now + KILLED_WITHIN);
        Shutdown { deadline, all_gone: false, killed: false }
    }

    /// True once everything has ended, or can be left to the kernel.
    pub fn advance(&mut self, guest: &Guest) -> bool {
        let over = Instant::now() >= self.deadline;
        if !self.all_gone && over && !self.killed {
            signal_all(guest, Signal::KILL);
            self.killed = true;
            self.deadline = Instant::now() + KILLED_WITHIN;
            return false;
        }
        if !self.all_gone && !over {
            return false;
        }
        let end = Instant::now() + LAST_WORDS;
        while guest.connections.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// As PID 1: every process of the namespace but the guest itself, kill(2) with -1. Elsewhere that would be the whole
/// machine, so the groups of what was started here, and the children that were left to us.
fn signal_all(guest: &Guest, signal: Signal) {
    if getpid().is_init() {
        let _ = kill_process_group(Pid::INIT, signal);
        return;
    }
    for process in guest.table().alive() {
        if let Some(group) = Pid::from_raw(process.group.cast_signed()) {
            let _ = kill_process_group(group, signal);
        }
    }
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", getpid().as_raw_pid()));
    for child in children.unwrap_or_default().split_whitespace() {
        if let Some(pid) = child.parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}
