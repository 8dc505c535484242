//! An ordinary user's sandbox: its user namespace, and around it another that counts for it.
//!
//! The kernel counts processes and inotify watches per user *and* per user namespace, each in all namespaces above as well.
//! All sandboxes of an ordinary user have one owner, so one more namespace around each keeps their accounts apart:
//! * RLIMIT_NPROC at the making of a namespace is the most its whole population may have, as its parent counts it (Linux
//!   5.14, `set_userns_rlimit_max`). The parent is the fence, in which nobody else is counted: a limit on processes that holds
//!   without control groups, whatever ids the sandbox uses.
//! * `user.max_inotify_instances` and `_watches` of the fence keep one sandbox from using up what the user has.
//!
//! ```text
//!   spawner ──fork──▶ builder: makes the fence        ──fork──▶ dweller: RLIMIT_NPROC, makes the sandbox's namespaces
//!      writes the fence's maps  ◀── say/hear ──▶  writes the dweller's maps  ◀── say/hear ──▶
//! ```
//! The builder must write the inner maps: only the parent namespace may, and the dweller may map one id at most.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use cove_sys::clone::SingleThreaded;
use cove_sys::namespace::{self, Kind};

use crate::kernel::{self, COUNTS_BY_NAMESPACE};
use crate::refused::{Refused, Step};
use crate::user_namespace::{CEILING, Pair, RANGE, hear, open_pair, say, sockets, write_beneath};

/// Which ids a sandbox has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inside {
    /// 0 to 65,535.
    Range,
    /// This one and no other.
    Single(u32),
}

impl Inside {
    /// Who the sandbox's first process is.
    pub fn first(self) -> u32 {
        match self {
            Inside::Range => 0,
            Inside::Single(id) => id,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    pub inside: Inside,
    /// Processes and threads, the guest included; `None` where this kernel does not count them by namespace.
    pub processes: Option<u32>,
    pub inotify_instances: u64,
    pub inotify_watches: u64,
}

impl Fence {
    /// A quarter of what the user may have: a greedy sandbox leaves enough to the others and to the user.
    pub fn around(inside: Inside, processes: u32) -> Fence {
        let quarter = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/max_user_{name}")).unwrap_or_default();
            (text.trim().parse::<u64>().unwrap_or(128) / 4).max(1)
        };
        Fence {
            inside,
            processes: kernel::has(COUNTS_BY_NAMESPACE).then_some(processes),
            inotify_instances: quarter("instances"),
            inotify_watches: quarter("watches"),
        }
    }

    fn outer_map(&self) -> String {
        if self.inside == Inside::Range { all() } else { "0 0 1\n".to_owned() }
    }

    fn inner_map(&self) -> String {
        match self.inside {
            Inside::Range => all(),
            Inside::Single(id) => format!("{id} 0 1\n"),
        }
    }
}

/// Every id as itself. In two pieces, because the home's are: the kernel takes no line that spans two of its parent's.
fn all() -> String {
    format!("0 0 1\n1 1 {}\n", RANGE - 1)
}

/// Makes both. `proc` is the host's `/proc`; the caller is root of its user namespace and has one thread.
pub fn make(alone: &SingleThreaded, proc: BorrowedFd<'_>, fence: &Fence) -> Result<Pair, Refused> {
    let (ours, theirs) = sockets()?;
    let pid = cove_sys::clone::fork(alone, || match build(alone, proc, fence, theirs.as_fd()) {
        Ok(()) => 0,
        Err(refused) => refused.errno,
    })
    .step("fork for a fence")?;
    drop(theirs);
    let made = follow(proc, pid, fence, ours.as_fd());
    // The processes are no longer needed; if they have failed, nothing depends on it.
    let _ = say(ours.as_fd());
    drop(ours);
    collect(pid, made)
}

fn follow(proc: BorrowedFd<'_>, builder: Pid, fence: &Fence, socket: BorrowedFd<'_>) -> Result<Pair, Refused> {
    hear(socket)?;
    write_maps(proc, builder, &fence.outer_map())?;
    say(socket)?;
    let mut number = [0_u8; 4];
    let read =
        rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut number)).step("hear of a sandbox's namespace")?;
    let dweller = Pid::from_raw(i32::from_ne_bytes(number)).filter(|_| read == number.len());
    open_pair(proc, dweller.ok_or_else(|| Refused::new("hear of a sandbox's namespace", Errno::PIPE))?)
}

fn build(alone: &SingleThreaded, proc: BorrowedFd<'_>, fence: &Fence, parent: BorrowedFd<'_>) -> Result<(), Refused> {
    namespace::unshare(Kind::User).step("make a fence")?;
    die_with_parent()?;
    say(parent)?;
    hear(parent)?;
    for (file, most) in [("instances", fence.inotify_instances), ("watches", fence.inotify_watches)] {
        write_beneath(proc, &format!("sys/user/max_inotify_{file}"), &most.to_string())?;
    }
    let (ours, theirs) = sockets()?;
    let pid = cove_sys::clone::fork(alone, || match dwell(proc, fence, theirs.as_fd()) {
        Ok(()) => 0,
        Err(refused) => refused.errno,
    })
    .step("fork for a user namespace")?;
    drop(theirs);
    let made = (|| {
        hear(ours.as_fd())?;
        write_maps(proc, pid, &fence.inner_map())?;
        say(ours.as_fd())?;
        hear(ours.as_fd())?;
        rustix::io::write(parent, &pid.as_raw_nonzero().get().to_ne_bytes()).step("tell of a sandbox's namespace")?;
        hear(parent)
    })();
    let _ = say(ours.as_fd());
    drop(ours);
    collect(pid, made)
}

fn dwell(proc: BorrowedFd<'_>, fence: &Fence, builder: BorrowedFd<'_>) -> Result<(), Refused> {
    if let Some(most) = fence.processes {
        bound_processes(most)?;
    }
    namespace::unshare(Kind::User).step("make a user namespace")?;
    namespace::unshare(Kind::Mount).step("make a mount namespace")?;
    die_with_parent()?;
    say(builder)?;
    hear(builder)?;
    write_beneath(proc, CEILING.0, CEILING.1)?;
    say(builder)?;
    hear(builder)
}

/// The limit of this process and, when it makes a user namespace, of everything in it.
pub fn bound_processes(most: u32) -> Result<(), Refused> {
    let held = getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
    let most = Some(u64::from(most).min(held));
    setrlimit(Resource::Nproc, Rlimit { current: most, maximum: most }).step("limit the sandbox's processes")
}

fn die_with_parent() -> Result<(), Refused> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("follow the parent into death")
}

fn write_maps(proc: BorrowedFd<'_>, pid: Pid, map: &str) -> Result<(), Refused> {
    let pid = pid.as_raw_nonzero();
    write_beneath(proc, &format!("{pid}/uid_map"), map)?;
    write_beneath(proc, &format!("{pid}/gid_map"), map)
}

/// The child's own reason is worth more than the broken line to it.
fn collect<T>(pid: Pid, made: Result<T, Refused>) -> Result<T, Refused> {
    let status = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
    match (made, status.ok().flatten().and_then(|(_, status)| status.exit_status())) {
        (Err(_), Some(errno)) if errno != 0 => {
            Err(Refused::new("set up a user namespace", Errno::from_raw_os_error(errno)))
        }
        (made, _) => made,
    }
}
