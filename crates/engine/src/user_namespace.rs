//! A sandbox's own range of 65,536 ids.
//!
//! Ranges begin at 0x7000_0000: nothing else claims ids there (systemd's containers end below). On disk ids stay
//! 0-based, because layers and uppers are mounted with the range mapped away, so these numbers are only ever seen on
//! processes.
//!
//! Each namespace is **owned by the first id of its range**, not by root. The kernel charges what a user namespace
//! uses (inotify instances, pending signals, nested namespaces) to its owner as well; with one owner for all, 128
//! inotify instances would be shared by every sandbox of the host.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Signal, Uid, WaitOptions};
use rustix::thread::CapabilitySets;
use serde::{Deserialize, Serialize};

use cove_sys::clone::SingleThreaded;
use cove_sys::namespace;

use crate::refused::{Refused, Step};

pub const RANGE: u32 = 65_536;
const FIRST: u32 = 0x7000_0000;
pub const COUNT: u32 = 0x8000;

/// No user namespace inside a sandbox: they open most of the kernel's privileged code to unprivileged callers. seccomp
/// refuses them too; this is the second wall.
pub(crate) const CEILING: (&str, &str) = ("sys/user/max_user_namespaces", "0");

/// How many ranges are below 2^31: they are handed out first. Some programs, and older devpts, refuse larger ids.
const USUAL: u32 = 0x1000;

/// Hands out ranges; never one that is in use.
#[derive(Debug)]
pub struct Ranges {
    usual: Part,
    rest: Part,
}

#[derive(Debug)]
struct Part {
    begin: u32,
    count: u32,
    /// Where to look first.
    next: u32,
    taken: BTreeSet<u32>,
}

impl Ranges {
    /// Begins anywhere, so that engines on one host seldom ask for a range that another has.
    pub fn beginning_at(place: u32) -> Ranges {
        let part = |begin: u32, end: u32| Part {
            begin,
            count: end - begin,
            next: place % (end - begin),
            taken: BTreeSet::new(),
        };
        Ranges { usual: part(0, USUAL), rest: part(USUAL, COUNT) }
    }

    /// The first id of a free range; `None` where all are in use.
    pub fn take(&mut self) -> Option<u32> {
        self.usual.take().or_else(|| self.rest.take())
    }

    /// Marks the range of a sandbox that was found running.
    pub fn reserve(&mut self, first: u32) {
        self.part_of(first).taken.insert(first);
    }

    pub fn give_back(&mut self, first: u32) {
        self.part_of(first).taken.remove(&first);
    }

    fn part_of(&mut self, first: u32) -> &mut Part {
        if first < self.rest.first(0) { &mut self.usual } else { &mut self.rest }
    }
}

impl Part {
    fn first(&self, number: u32) -> u32 {
        FIRST + (self.begin + number) * RANGE
    }

    fn take(&mut self) -> Option<u32> {
        if self.taken.len() == self.count as usize {
            return None;
        }
        for _ in 0..self.count {
            let first = self.first(self.next);
            self.next = (self.next + 1) % self.count;
            if self.taken.insert(first) {
                return Some(first);
            }
        }
        None
    }
}

/// A user namespace over one range, and a mount namespace that belongs to it, in which the sandbox's overlays are put
/// together by its own root.
#[derive(Debug)]
pub struct Pair {
    pub user: OwnedFd,
    pub assembly: OwnedFd,
}

/// Which ids a user namespace knows: lines of `uid_map` and `gid_map`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maps {
    /// The host's id that owns the namespace and is charged for it.
    pub owner: u32,
    pub users: String,
    pub groups: String,
}

impl Maps {
    /// A sandbox's own range.
    pub fn range(first: u32) -> Maps {
        let line = format!("0 {first} {RANGE}\n");
        Maps { owner: first, users: line.clone(), groups: line }
    }

    /// For a host folder: its owner and group are one user of the sandbox, and the sandbox's other users, root among
    /// them, are the numbers of its range, which nobody on the host has. So a sandbox can never make a file there that
    /// belongs to another user of the host. Files of others are shown as nobody's.
    pub fn folder(first: u32, inside: u32, owner: u32, group: u32) -> Maps {
        let lines = |id: u32| {
            let (chosen, end) = (first + inside, first + RANGE);
            if (first..end).contains(&id) {
                // What an earlier sandbox's root made, shown by itself: all are who they are.
                return format!("{first} {first} {RANGE}\n");
            }
            let others = [(first, inside), (chosen + 1, end - chosen - 1)];
            let others = others.iter().filter(|(_, count)| *count > 0);
            let others: String = others.map(|(from, count)| format!("{from} {from} {count}\n")).collect();
            format!("{id} {chosen} 1\n{others}")
        };
        Maps { owner: first, users: lines(owner), groups: lines(group) }
    }
}

/// Makes a pair. `proc` is the host's `/proc`; the caller is root and has one thread.
pub fn make(alone: &SingleThreaded, proc: BorrowedFd<'_>, maps: &Maps) -> Result<Pair, Refused> {
    let (ours, theirs) = sockets()?;
    let pid = cove_sys::clone::fork(alone, move || match live_in(proc, maps.owner, theirs.as_fd()) {
        Ok(()) => 0,
        Err(refused) => refused.errno,
    })
    .step("fork for a user namespace")?;
    let made = follow(proc, pid, maps, ours.as_fd());
    // The process is no longer needed; if it has failed, nothing depends on it.
    let _ = say(ours.as_fd());
    let status = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
    match (made, status.ok().flatten().and_then(|(_, status)| status.exit_status())) {
        // The pipe broke because the child failed: report the child's reason.
        (Err(_), Some(errno)) if errno != 0 => {
            Err(Refused::new("set up a user namespace", Errno::from_raw_os_error(errno)))
        }
        (made, _) => made,
    }
}

/// The child: becomes the owner, makes the namespaces, waits for its maps, sets the ceiling, stays until it is
/// released.
fn live_in(proc: BorrowedFd<'_>, owner: u32, parent: BorrowedFd<'_>) -> Result<(), Refused> {
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::thread::set_keep_capabilities(true).step("keep capabilities")?;
    rustix::thread::set_thread_groups(&[]).step("drop groups")?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).step("become the range's owner")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step("become the range's owner")?;
    // Hosts that forbid user namespaces to ordinary users allow them to this capability.
    let held = rustix::thread::capabilities(None).step("read capabilities")?;
    let raised = CapabilitySets { effective: held.permitted, ..held };
    rustix::thread::set_capabilities(None, raised).step("raise capabilities")?;
    namespace::unshare(namespace::Kind::User).step("make a user namespace")?;
    namespace::unshare(namespace::Kind::Mount).step("make a mount namespace")?;
    // Not before: a change of ids clears it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("follow the parent into death")?;
    say(parent)?;
    hear(parent)?;
    write_beneath(proc, CEILING.0, CEILING.1)?;
    say(parent)?;
    hear(parent)
}

fn follow(proc: BorrowedFd<'_>, pid: Pid, maps: &Maps, child: BorrowedFd<'_>) -> Result<Pair, Refused> {
    let number = pid.as_raw_nonzero();
    hear(child)?;
    write_beneath(proc, &format!("{number}/uid_map"), &maps.users)?;
    write_beneath(proc, &format!("{number}/gid_map"), &maps.groups)?;
    say(child)?;
    hear(child)?;
    open_pair(proc, pid)
}

/// The namespaces that a process is in.
pub(crate) fn open_pair(proc: BorrowedFd<'_>, pid: Pid) -> Result<Pair, Refused> {
    let pid = pid.as_raw_nonzero();
    let open = |kind: &str| {
        let path = format!("{pid}/ns/{kind}");
        rustix::fs::openat(proc, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step("open a namespace")
    };
    Ok(Pair { user: open("user")?, assembly: open("mnt")? })
}

pub(crate) fn write_beneath(directory: BorrowedFd<'_>, path: &str, text: &str) -> Result<(), Refused> {
    let file = rustix::fs::openat(directory, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .step(&format!("open /proc/{path}"))?;
    rustix::io::write(&file, text.as_bytes()).map(drop).step(&format!("write /proc/{path}"))
}

pub(crate) fn sockets() -> Result<(OwnedFd, OwnedFd), Refused> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    rustix::net::socketpair(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, flags, None)
        .step("make a pair of sockets")
}

pub(crate) fn say(socket: BorrowedFd<'_>) -> Result<(), Refused> {
    rustix::net::send(socket, b".", rustix::net::SendFlags::NOSIGNAL).map(drop).step("tell the other side")
}

pub(crate) fn hear(socket: BorrowedFd<'_>) -> Result<(), Refused> {
    let mut byte = [0u8];
    match rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut byte)).step("hear the other side")? {
        0 => Err(Refused::new("hear the other side", Errno::PIPE)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folders_owner_is_one_user_and_the_others_stay_themselves() {
        let maps = Maps::folder(FIRST, 1000, 33, 0);
        assert_eq!(maps.users, "33 1879049192 1\n1879048192 1879048192 1000\n1879049193 1879049193 64535\n");
        assert_eq!(maps.groups, "0 1879049192 1\n1879048192 1879048192 1000\n1879049193 1879049193 64535\n");
        let root = Maps::folder(FIRST, 0, 0, 0);
        assert_eq!(root.users, "0 1879048192 1\n1879048193 1879048193 65535\n");
        let own = Maps::folder(FIRST, 0, FIRST + 5, 0);
        assert_eq!(own.users, "1879048192 1879048192 65536\n");
    }

    #[test]
    fn no_range_is_handed_out_twice_until_it_is_given_back() {
        let mut ranges = Ranges::beginning_at(0xffff_ffff);
        let all: Vec<u32> = std::iter::from_fn(|| ranges.take()).collect();
        let (usual, rest) = all.split_at(USUAL as usize);
        assert!(usual.iter().all(|first| first + (RANGE - 1) <= i32::MAX.cast_unsigned()));
        assert!(rest.iter().all(|first| *first > i32::MAX.cast_unsigned()));
        let all: BTreeSet<u32> = all.into_iter().collect();
        assert_eq!(all.len(), COUNT as usize);
        assert!(all.iter().all(|first| first.checked_add(RANGE - 1).is_some_and(|last| last < u32::MAX)));
        ranges.give_back(FIRST + 7 * RANGE);
        assert_eq!(ranges.take(), Some(FIRST + 7 * RANGE));
        assert_eq!(ranges.take(), None);
    }
}
