//! Which ranges of ids are taken on this host, for every engine on it.
//!
//! Engines on different data directories (a server, `cove run` beside it) would otherwise give one range to two
//! sandboxes, whose processes could then signal and inspect each other. Each range in use has a file in a directory of
//! the host, with the process that holds it: the engine while the range is in its pool, then the sandbox's first
//! process, since it outlives its engine. A range of a dead process is free. A reboot removes the directory, as it ends
//! all holders.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::Error;
use crate::process;

/// One for the host, whatever the data directory.
const DIRECTORY: &str = "/run/cove-ids";

#[derive(Debug)]
pub struct Registry {
    directory: PathBuf,
}

impl Registry {
    pub fn of_the_host() -> Registry {
        Registry { directory: DIRECTORY.into() }
    }

    /// Takes a range for this process; whether it was free.
    pub fn take(&self, first: u32) -> Result<bool, Error> {
        let path = self.path(first);
        let _one = self.lock()?;
        if holder(&path).is_some_and(|(pid, start)| process::start_time(pid) == Some(start)) {
            return Ok(false);
        }
        self.write(&path, std::process::id())?;
        Ok(true)
    }

    /// From now on the range is held by this process, as long as it lives.
    pub fn hand_to(&self, first: u32, pid: u32) -> Result<(), Error> {
        let path = self.path(first);
        let _one = self.lock()?;
        self.write(&path, pid)
    }

    /// Nothing of ours uses it any more. Another engine may have it already, from the moment the sandbox was dead: then
    /// it stays recorded for that one.
    pub fn give_back(&self, first: u32) {
        let path = self.path(first);
        // A file that stays belongs to a dead process, so its range is free.
        let Ok(_one) = self.lock() else { return };
        let is_anothers = |(pid, start)| pid != std::process::id() && process::start_time(pid) == Some(start);
        if !holder(&path).is_some_and(is_anothers) {
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, first: u32) -> PathBuf {
        self.directory.join(format!("{first:08x}"))
    }

    fn write(&self, path: &Path, pid: u32) -> Result<(), Error> {
        let start = process::start_time(pid).unwrap_or(0);
        // One width, written over: a file that is cut first costs a disk half a millisecond.
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(Error::file("make", path))?;
        file.write_all_at(format!("{pid:<10} {start:<20}\n").as_bytes(), 0).map_err(Error::file("write", path))
    }

    /// One engine looks and writes at a time.
    fn lock(&self) -> Result<File, Error> {
        let open = || File::open(&self.directory);
        let opened = match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().mode(0o700).create(&self.directory);
                match made {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                    _ => open(),
                }
            }
            other => other,
        };
        let directory = opened.map_err(Error::file("open", &self.directory))?;
        let locked = rustix::io::retry_on_intr(|| rustix::fs::flock(&directory, FlockOperation::LockExclusive));
        locked.map_err(|errno| Error::file("lock", &self.directory)(io::Error::from(errno)))?;
        Ok(directory)
    }
}

fn holder(path: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_holders_until_it_is_given_back_or_the_holder_ends() {
        let folder = tempfile::tempdir().unwrap();
        let registry = || Registry { directory: folder.path().join("ids") };
        let (one, other) = (registry(), registry());
        assert!(one.take(7).unwrap());
        assert!(!other.take(7).unwrap() && other.take(8).unwrap());
        one.give_back(7);
        assert!(other.take(7).unwrap());

        let mut sandbox = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        other.hand_to(7, sandbox.id()).unwrap();
        assert!(!one.take(7).unwrap(), "its engine may be gone, the sandbox is not");
        sandbox.kill().unwrap();
        sandbox.wait().unwrap();
        assert!(one.take(7).unwrap());
    }

    #[test]
    fn a_range_that_another_took_over_is_not_given_back_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry { directory: folder.path().join("ids") };
        assert!(registry.take(7).unwrap());
        // Our sandbox died, and before we noticed another engine, here a stranger's process, took its range.
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        registry.hand_to(7, other.id()).unwrap();
        registry.give_back(7);
        assert!(!registry.take(7).unwrap(), "two sandboxes would have one range");
        other.kill().unwrap();
        other.wait().unwrap();
        registry.give_back(7);
        assert!(!folder.path().join("ids/00000007").exists());
    }
}
