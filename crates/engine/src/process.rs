//! Telling a process from another that got its number later.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags};

use crate::record::Life;

/// Field 22 of `/proc/PID/stat`: clock ticks since boot when it was started. `None` where it is gone, or dead and not
/// yet reaped: the first process of a pid namespace gets there after all others.
pub fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, field 2, may hold anything; it ends with the last parenthesis.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Changes with every boot of the host; empty where the host hides it.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// A descriptor of the very process that was written down; its number may be another's by now.
pub fn open(life: &Life) -> Option<OwnedFd> {
    if life.boot != boot() || start_time(life.pid) != Some(life.start_time) {
        return None;
    }
    let pid = Pid::from_raw(life.pid.cast_signed())?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Again: it may have changed hands between the look and the open.
    (start_time(life.pid) == Some(life.start_time)).then_some(pidfd)
}

#[cfg(test)]
mod tests {
    #[test]
    fn our_own_start_time_does_not_change() {
        let first = super::start_time(std::process::id()).unwrap();
        assert_eq!(super::start_time(std::process::id()), Some(first));
        assert!(super::start_time(u32::MAX).is_none());
    }
}
