//! The rights of this process: all, as the host's root, or those of an ordinary user.
//!
//! An ordinary user's engine moves into a user namespace of its own, once, before it has threads, and is root *there*:
//! ```text
//!   host's user namespace         the caller
//!   └─ home                       the engine: root here, the caller outside; its mount namespace belongs here
//!      └─ fence                   one per sandbox: counts its processes and watches, holds nobody
//!         └─ the sandbox's own    as with root: what its capabilities reach ends here
//! ```
//! From then on a launch takes the same way as the host root's. Mount, pid, network, IPC and UTS namespaces of a
//! sandbox belong to the home, as they belong to the host otherwise: capabilities inside have no effect on them.
//! [`Privilege`] decides what differs, in few places: ids ([`crate::user_namespace`]), layers without id maps
//! (`birth`), devices and `/proc` (`spawner::empty`), limits (`hold`).
//!
//! Ids: with `newuidmap` and a range in `/etc/subuid` the home has 65,537 (the caller as 0, the range behind it) and every
//! sandbox the first 65,536 of them. Without, there is one, and a sandbox shows it as `user` or as `root`.
//!
//! A server that comes back moves into the home of the sandboxes that run: another one would have no power over them.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::WaitOptions;
use rustix::thread::CapabilitySet;

use cove_sys::clone::SingleThreaded;
use cove_sys::namespace::{self, Kind};

use crate::error::Error;
use crate::process;
use crate::record::Records;
use crate::refused::{Refused, Step};
use crate::user_namespace::RANGE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Root of the host.
    Root,
    /// Root of a user namespace, and nobody else than the caller outside.
    User(Ids),
}

/// How many ids an ordinary user's sandboxes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// As many as with root, out of `/etc/subuid`.
    Range,
    /// The caller's own.
    Single,
}

/// What this process has now; `None` for an ordinary user's that has not moved home yet.
pub fn held() -> Option<Privilege> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let ids: u64 = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    let root = rustix::process::geteuid().is_root();
    // Only the first user namespace knows all ids.
    if ids >= u64::from(u32::MAX) {
        return root.then_some(Privilege::Root);
    }
    let held = rustix::thread::capabilities(None).ok()?;
    let able = root && held.effective.contains(CapabilitySet::SYS_ADMIN);
    able.then_some(Privilege::User(if ids >= u64::from(RANGE) { Ids::Range } else { Ids::Single }))
}

/// The user who called, by the number outside of the home.
pub(crate) fn caller() -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside(&map, rustix::process::getuid().as_raw())
}

/// What an id of this user namespace is in the one around it, in the form of `/proc/PID/uid_map`.
fn outside(map: &str, id: u32) -> u32 {
    let find = |line: &str| {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u32>().ok());
        let (first, outer, count) = (fields.next()??, fields.next()??, fields.next()??);
        let offset = id.checked_sub(first).filter(|offset| *offset < count)?;
        outer.checked_add(offset)
    };
    map.lines().find_map(find).unwrap_or(id)
}

pub fn is_host_root() -> bool {
    held() == Some(Privilege::Root)
}

/// Moves an ordinary user's process home; does nothing for root and where it is done. The process must have one thread.
/// `data` is the data directory of a server, whose sandboxes may be running.
pub fn enter(data: Option<&Path>) -> Result<Privilege, Error> {
    if let Some(held) = held() {
        return Ok(held);
    }
    let alone = SingleThreaded::claim().step("move into a user namespace, which needs a process with one thread")?;
    match data.map(home_of_the_living).transpose()?.flatten() {
        Some(home) => {
            namespace::enter(home.as_fd(), Kind::User).step("enter the user namespace of the sandboxes that run")?;
        }
        None => make(&alone)?,
    }
    namespace::unshare(Kind::Mount).step("make a mount namespace").map_err(explain)?;
    // What the host mounts later is seen here, never the other way round.
    let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", follow).step("keep mounts from the host")?;
    held().ok_or_else(|| explain(Refused::new("use the rights of a user namespace", Errno::PERM)).into())
}

/// The user namespace, child of ours, in which the sandboxes of a data directory live; `None` where none does.
fn home_of_the_living(data: &Path) -> Result<Option<OwnedFd>, Error> {
    let records = Records::open(data)?;
    for id in records.names()? {
        let Some(life) = records.life(&id)?.filter(|life| process::open(life).is_some()) else { continue };
        let path = format!("/proc/{}/ns/user", life.pid);
        let own =
            identity(&File::open("/proc/self/ns/user").map_err(Error::file("open", "/proc/self/ns/user"))?.into());
        let mut home: OwnedFd = File::open(&path).map_err(Error::file("open", &path))?.into();
        loop {
            let parent = namespace::parent(home.as_fd()).step("find the home of a sandbox that runs")?;
            if identity(&parent) == own {
                return Ok(Some(home));
            }
            home = parent;
        }
    }
    Ok(None)
}

fn identity(namespace: &OwnedFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(namespace).ok().map(|told| (told.st_dev, told.st_ino))
}

fn make(alone: &SingleThreaded) -> Result<(), Error> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mapped = match Subordinate::find(uid) {
        Some(range) => make_with_range(alone, &range, uid, gid)?,
        None => {
            unshare_user()?;
            Mapped::No
        }
    };
    if mapped == Mapped::No {
        for (file, text) in
            [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
        {
            let written = fs::write(format!("/proc/self/{file}"), text);
            written.step(&format!("write /proc/self/{file}")).map_err(explain)?;
        }
    }
    Ok(())
}

fn unshare_user() -> Result<(), Refused> {
    namespace::unshare(Kind::User).step("make a user namespace").map_err(explain)
}

/// What people can do about it, next to the kernel's error.
fn explain(refused: Refused) -> Refused {
    let step = format!("{} as an ordinary user, which this host does not allow", refused.step);
    match Errno::from_raw_os_error(refused.errno) {
        Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::INVAL => Refused { step, ..refused },
        _ => refused,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mapped {
    Yes,
    No,
}

/// `newuidmap` must be called from outside: a child stays there and calls it when we have moved. Where it is refused (no
/// setuid bit, `no_new_privs`) there is still the single id.
fn make_with_range(alone: &SingleThreaded, range: &Subordinate, uid: u32, gid: u32) -> Result<Mapped, Error> {
    const NO_GROUPS: i32 = 2;
    let us = std::process::id().to_string();
    let (moved, told) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("make a pipe")?;
    let child = cove_sys::clone::fork(alone, || {
        // Ours would keep the pipe open when nothing is written to it.
        cove_sys::probe::close_in_child(told.as_fd());
        if !matches!(rustix::io::read(&moved, &mut [0_u8]), Ok(1)) {
            return 1;
        }
        let map = |program: &Path, own: u32, first: u32| {
            let arguments =
                [&us, "0", &own.to_string(), "1", "1", &first.to_string(), &RANGE.to_string()].map(str::to_owned);
            let mut helper = Command::new(program);
            helper.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            helper.status().is_ok_and(|status| status.success())
        };
        if !map(&range.users_program, uid, range.first_user) {
            return 1;
        }
        if map(&range.groups_program, gid, range.first_group) { 0 } else { NO_GROUPS }
    });
    let child = child.step("fork for newuidmap")?;
    let unshared = unshare_user();
    if unshared.is_ok() {
        rustix::io::write(&told, b".").step("call for newuidmap")?;
    }
    drop(told);
    let status = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()));
    unshared?;
    match status.step("wait for newuidmap")?.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(Mapped::Yes),
        Some(NO_GROUPS) => Err(Error::Invalid(
            "newgidmap refuses the range of /etc/subgid that belongs to this user; mend it, or remove the user's line there".into(),
        )),
        _ => Ok(Mapped::No),
    }
}

/// The caller's range of ids, and who maps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subordinate {
    users_program: PathBuf,
    groups_program: PathBuf,
    first_user: u32,
    first_group: u32,
}

impl Subordinate {
    /// Both helpers and both ranges, or nothing.
    pub(crate) fn find(uid: u32) -> Option<Subordinate> {
        let names = user_names(uid);
        let first = |path: &str| first_range(&fs::read_to_string(path).ok()?, &names);
        Some(Subordinate {
            users_program: helper("newuidmap")?,
            groups_program: helper("newgidmap")?,
            first_user: first("/etc/subuid")?,
            first_group: first("/etc/subgid")?,
        })
    }
}

/// Not by `PATH`, which anybody may have set: these programs are trusted.
pub(crate) fn helper(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .map(|place| Path::new(place).join(name))
        .find(|path| path.is_file())
}

/// Where a range large enough begins, in the form of subuid(5).
fn first_range(text: &str, names: &[String]) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse::<u32>().ok()?);
        (names.iter().any(|name| name == owner) && count >= RANGE).then_some(first)
    })
}

/// As /etc/subuid may call a user: by name or by number.
pub(crate) fn user_names(uid: u32) -> Vec<String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name_of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    let mut names: Vec<String> = passwd.lines().filter_map(name_of).collect();
    names.push(uid.to_string());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_known_by_the_number_outside() {
        assert_eq!(outside("         0          0 4294967295\n", 1000), 1000);
        assert_eq!(outside("         0       1000          1\n         1     100000      65536\n", 0), 1000);
        assert_eq!(outside("0 1000 1\n1 100000 65536\n", 5), 100_004);
    }

    #[test]
    fn the_first_range_that_is_large_enough_is_taken() {
        let names = ["ann".to_owned(), "1000".to_owned()];
        let find = |text| first_range(text, &names);
        assert_eq!(find("bob:100000:65536\nann:165536:65536\n"), Some(165_536));
        assert_eq!(find("ann:100000:1000\n1000:200000:131072\n"), Some(200_000));
        assert_eq!(find("anna:100000:65536\nann:x:65536\n\n"), None);
    }
}
