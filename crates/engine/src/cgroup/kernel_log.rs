//! Reads from the kernel's log which processes the out-of-memory killer ended.
//!
//! Two lines of `/dev/kmsg` report a kill. The first names the group, but at most ten such reports come in five
//! seconds; the second comes always, and its user id is the host's number for it, by which a sandbox with a range of
//! its own is known:
//! ```text
//!   oom-kill:constraint=CONSTRAINT_MEMCG,…,task_memcg=/cove/k3f…,task=python3,pid=4711,uid=1000000
//!   Memory cgroup out of memory: Killed process 4711 (python3) total-vm:219044kB, anon-rss:64320kB, file-rss:…, UID:1000000 …
//! ```
//! The name in them is the sandbox's own choice, so everything is found from the side that the kernel wrote alone.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::largest::printable;
use crate::state::LargestProcess;

/// Longer than any record: the kernel refuses to read one in parts.
const RECORD: usize = 8 << 10;

/// Whether our pids are those of the kernel's log: not in a pid namespace of our own, as in a container.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kill {
    /// Absent where the log's numbers are not ours.
    pub(super) pid: Option<u32>,
    uid: u32,
    /// From the top of the tree.
    group: Option<String>,
    pub(super) process: LargestProcess,
}

impl Kill {
    /// By its group, if that was reported; otherwise by the ids that only this sandbox has.
    pub(super) fn was_in(&self, directory: &Path, uids: Option<&Range<u32>>) -> bool {
        match &self.group {
            Some(group) => is_tail(directory, Path::new(group)),
            None => uids.is_some_and(|uids| uids.contains(&self.uid)),
        }
    }
}

/// Whether the last two names are the same: a realm's name is unique, wherever its tree is mounted.
fn is_tail(directory: &Path, group: &Path) -> bool {
    let tail = |path: &Path| Some((path.parent()?.file_name()?.to_owned(), path.file_name()?.to_owned()));
    tail(directory).is_some_and(|own| tail(group) == Some(own))
}

#[derive(Debug)]
pub(super) struct KernelLog {
    file: OwnedFd,
    numbers_are_ours: bool,
    /// From the first line of a kill whose second has not come yet.
    announced: Option<Announced>,
}

#[derive(Debug, PartialEq, Eq)]
struct Announced {
    pid: u32,
    group: String,
}

impl KernelLog {
    /// The log from now on; `None` where we may not read it (most hosts require CAP_SYSLOG).
    pub(super) fn open() -> Option<KernelLog> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
        rustix::fs::seek(&file, SeekFrom::End(0)).ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok();
        let numbers_are_ours = namespace.as_deref() == Some(Path::new(FIRST_PID_NAMESPACE));
        Some(KernelLog { file, numbers_are_ours, announced: None })
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The kills since the last read.
    pub(super) fn read(&mut self) -> Vec<Kill> {
        let mut kills = Vec::new();
        let mut record = [0; RECORD];
        loop {
            match rustix::io::read(&self.file, &mut record) {
                Ok(length @ 1..) => kills.extend(self.take(&record[..length])),
                // EPIPE: the next entries were overwritten; the next read continues with what is there.
                Err(Errno::INTR | Errno::PIPE) => {}
                Ok(0) | Err(_) => return kills,
            }
        }
    }

    /// `priority,number,microseconds,flags;text`, then lines that begin with a space.
    fn take(&mut self, record: &[u8]) -> Option<Kill> {
        let text = std::str::from_utf8(record).ok()?.lines().next()?.split_once(';')?.1;
        if let Some(rest) = text.strip_prefix("oom-kill:constraint=") {
            self.announced = announcement(rest);
            return None;
        }
        let mut kill = killed(text)?;
        if let (Some(pid), Some(announced)) = (kill.pid, self.announced.take())
            && announced.pid == pid
        {
            kill.group = Some(announced.group);
        }
        kill.pid = kill.pid.filter(|_| self.numbers_are_ours);
        Some(kill)
    }
}

fn announcement(text: &str) -> Option<Announced> {
    // Up to here the sandbox controls nothing; the process's name follows, and after it numbers again.
    let (group, rest) = text.split_once(",task_memcg=")?.1.split_once(",task=")?;
    let pid = rest.rsplit_once(",pid=")?.1.split(',').next()?.parse().ok()?;
    Some(Announced { pid, group: group.to_owned() })
}

fn killed(text: &str) -> Option<Kill> {
    let rest = ["Memory cgroup out of memory: ", "Out of memory: "].iter().find_map(|why| text.strip_prefix(why))?;
    let (pid, rest) = rest.strip_prefix("Killed process ")?.split_once(" (")?;
    let (name, figures) = rest.rsplit_once(") total-vm:")?;
    let number = |key: &str| -> Option<u64> {
        let value = figures.split_once(key)?.1;
        value[..value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len())].parse().ok()
    };
    // What is its own; the pages of programs and libraries are not.
    let memory = (number("anon-rss:")? + number("shmem-rss:")?) << 10;
    let process = LargestProcess { name: printable(&unescape(name)), memory };
    Some(Kill { pid: Some(pid.parse().ok()?), uid: u32::try_from(number("UID:")?).ok()?, group: None, process })
}

/// The log writes what is no printable ASCII, and the backslash, as `\x0a`.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend(before.as_bytes());
        match after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.extend(b"\\x");
                rest = after;
            }
        }
    }
    bytes.extend(rest.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNOUNCED: &str = "3,9,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cpus-0,mems_allowed=0,\
        oom_memcg=/cove-1/a,task_memcg=/cove-1/a,task=python3,pid=30052,uid=-1383398424\n";
    const KILLED: &str = "3,10,2,-;Memory cgroup out of memory: Killed process 30052 (python3) total-vm:145096kB, \
        anon-rss:130432kB, file-rss:5464kB, shmem-rss:64kB, UID:2911568872 pgtables:320kB oom_score_adj:1000\n SUBSYSTEM=x\n";

    fn log() -> KernelLog {
        let file = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        KernelLog { file, numbers_are_ours: true, announced: None }
    }

    #[test]
    fn a_kill_is_its_groups_and_without_one_told_its_ranges() {
        let mut log = log();
        assert_eq!(log.take(ANNOUNCED.as_bytes()), None);
        let kill = log.take(KILLED.as_bytes()).unwrap();
        assert_eq!(kill.process, LargestProcess { name: "python3".into(), memory: (130_432 + 64) << 10 });
        assert_eq!(kill.pid, Some(30052));
        let range = 2_911_567_872..2_911_633_408;
        assert!(kill.was_in(Path::new("/sys/fs/cgroup/memory/cove-1/a"), None));
        assert!(!kill.was_in(Path::new("/sys/fs/cgroup/memory/cove-1/b"), Some(&range)), "the group is certain");
        let kill = log.take(KILLED.as_bytes()).unwrap();
        assert!(kill.was_in(Path::new("/sys/fs/cgroup/memory/cove-1/b"), Some(&range)));
        assert!(!kill.was_in(Path::new("/sys/fs/cgroup/memory/cove-1/a"), None));
    }

    #[test]
    fn another_processes_announcement_is_not_taken_for_its_own() {
        let mut log = log();
        log.take(ANNOUNCED.replace("30052", "4").as_bytes());
        assert_eq!(log.take(KILLED.as_bytes()).unwrap().group, None);
    }

    #[test]
    fn a_name_that_imitates_the_log_is_only_a_name() {
        let mut log = log();
        let kill = log.take(KILLED.replace("(python3)", "() total-vm:1kB)").as_bytes()).unwrap();
        assert_eq!((kill.process.name.as_str(), kill.uid), (") total-vm:1kB", 2_911_568_872));
        log.take(ANNOUNCED.replace("task=python3", "task=x,pid=1,uid=0").as_bytes());
        assert_eq!(log.announced.as_ref().unwrap().pid, 30052);
        let kill = log.take(KILLED.replace("(python3)", "(a\\x0ab\\x5c)").as_bytes()).unwrap();
        assert_eq!(kill.process.name, "a?b\\");
        assert_eq!(log.take(b"6,1,2,-;x[1]: segfault at 0 Killed process 1 (x) total-vm:"), None);
    }
}
