//! Distinguishes a process from a later one with the same pid, and names things after the process that made them.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// A name for something that this process makes ahead and nobody uses yet: a later engine sees from it whether the
/// maker still lives. At most 18 characters of a-z, 0-9 and "-": with a prefix it fits where an id does.
pub fn mark() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let pid = std::process::id();
    let (start, number) = (start_time(pid).unwrap_or(0), MADE.fetch_add(1, Ordering::Relaxed));
    let parts = [(u64::from(pid), 5), (start, 7), (number, 4)].map(|(number, width)| base_36(number, width));
    parts.join("-")
}

/// Whether the process that made the mark is gone; `false` for a name that is not a mark.
pub fn is_of_the_dead(mark: &str) -> bool {
    let maker = || {
        let mut parts = mark.split('-').map(|part| u64::from_str_radix(part, 36));
        let (pid, start) = (parts.next()?.ok()?, parts.next()?.ok()?);
        (parts.next()?.is_ok() && parts.next().is_none()).then_some((u32::try_from(pid).ok()?, start))
    };
    maker().is_some_and(|(pid, start)| start_time(pid) != Some(start))
}

/// The last `width` digits at most.
fn base_36(mut number: u64, width: usize) -> String {
    let mut digits = Vec::new();
    while digits.len() < width && (number > 0 || digits.is_empty()) {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize] as char);
        number /= 36;
    }
    digits.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_living_process_made_is_its_own() {
        let (one, other) = (mark(), mark());
        assert!(one != other && one.len() <= 18, "{one} {other}");
        assert!(!is_of_the_dead(&one));
        let another = format!("{}-1-0", base_36(u64::from(std::process::id()), 5));
        assert!(is_of_the_dead(&another), "another process had the number before");
        assert!(!is_of_the_dead("t0000000010000000000"), "a sandbox");
        assert_eq!(
            (base_36(0, 5), base_36(36 * 36 + 35, 5), base_36(36 * 36, 2)),
            ("0".into(), "10z".into(), "00".into())
        );
    }

    #[test]
    fn our_own_start_time_does_not_change() {
        let first = super::start_time(std::process::id()).unwrap();
        assert_eq!(super::start_time(std::process::id()), Some(first));
        assert!(super::start_time(u32::MAX).is_none());
    }
}
