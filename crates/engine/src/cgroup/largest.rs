//! The process that uses most of a group's memory, from `/proc`.

use std::fs;

use crate::state::LargestProcess;

/// One reading of a group's processes.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// The one with most resident memory.
    pub(super) largest: Option<LargestProcess>,
    /// One that is dying: its memory is gone from the account already, its name is not.
    pub(super) dying: Option<String>,
    /// Of all that live, together.
    pub(super) resident: u64,
}

/// Looks at each process once. Bounded by the group's own limit on processes.
pub(super) fn sample(pids: &[u32]) -> Sample {
    let mut sample = Sample::default();
    for pid in pids {
        // It ended meanwhile: nothing to report.
        let (Some(memory), Some(name)) = (resident(*pid), name(*pid)) else { continue };
        sample.resident += memory;
        if memory == 0 {
            sample.dying = Some(name);
        } else if sample.largest.as_ref().is_none_or(|largest| largest.memory < memory) {
            sample.largest = Some(LargestProcess { name, memory });
        }
    }
    sample
}

/// What is its own and charged to its group: anonymous and shared memory, not the pages of programs and libraries. A
/// process that has freed its memory, or never had any, has no such lines.
fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kilobytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    Some((kilobytes("RssAnon:").unwrap_or(0) + kilobytes("RssShmem:").unwrap_or(0)) * 1024)
}

/// The sandbox chooses this name: up to 15 bytes of anything. Unprintable characters are dropped.
fn name(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(printable(bytes.strip_suffix(b"\n").unwrap_or(&bytes)))
}

pub(super) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_several_is_named_and_the_gone_are_left_out() {
        let own = std::process::id();
        let mut small = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let seen = sample(&[own, small.id(), 0x7fff_fff0]);
        small.kill().unwrap();
        small.wait().unwrap();
        let largest = seen.largest.unwrap();
        assert!(largest.memory > 100 << 10, "{largest:?}");
        assert_eq!(Some(largest.name), name(own));
        assert!(seen.resident > largest.memory);
    }

    #[test]
    fn a_dying_process_still_has_its_name() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        // Not waited for: it stays a zombie.
        while resident(pid) != Some(0) {
            std::thread::yield_now();
        }
        let seen = sample(&[pid]);
        child.wait().unwrap();
        assert_eq!(seen.dying.as_deref(), Some("true"));
        assert!(seen.largest.is_none());
    }
}
