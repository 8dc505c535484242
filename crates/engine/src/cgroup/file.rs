//! Control files: small texts that are written whole and parsed with care.
//!
//! A control file is never created by writing it: the kernel made it with the directory, and one that is not there
//! means a controller that is not there.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use super::Error;

pub(super) fn write(path: &Path, value: &str) -> Result<(), Error> {
    let written = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(Error::at("write", path))
}

pub(super) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::at("read", path))
}

/// A file that holds one number; `max` is the largest there is.
pub(super) fn read_number(path: &Path) -> Result<u64, Error> {
    let text = read(path)?;
    match text.trim() {
        "max" => Ok(u64::MAX),
        digits => digits.parse().map_err(|_| {
            Error::at("parse", path)(std::io::Error::new(ErrorKind::InvalidData, format!("{digits:?} is no number")))
        }),
    }
}

/// The number after `key` in a file of `key value` lines; absent keys count as nothing, since kernels add and drop them.
pub(super) fn keyed(text: &str, key: &str) -> u64 {
    let of_line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        if name == key { value.trim().parse().ok() } else { None }
    };
    text.lines().find_map(of_line).unwrap_or(0)
}

/// Process numbers of a `cgroup.procs` file. Those outside our pid namespace read as 0 and cannot be named.
pub(super) fn read_pids(path: &Path) -> Result<Vec<u32>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect()),
        // The directory was removed meanwhile: nobody is in it.
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(Error::at("read", path)(error)),
    }
}

/// Opened for a child that will write itself into it.
pub(super) fn open_for_writing(path: &Path) -> Result<OwnedFd, Error> {
    let file = OpenOptions::new().write(true).open(path).map_err(Error::at("open", path))?;
    Ok(file.into())
}

/// A directory for `CLONE_INTO_CGROUP`, or a file to be read again and again.
pub(super) fn open_for_reading(path: &Path) -> Result<OwnedFd, Error> {
    let file = File::open(path).map_err(Error::at("open", path))?;
    Ok(file.into())
}

/// Whether this process may make groups below `path`.
pub(super) fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_whole_and_an_absent_one_counts_nothing() {
        let events = "low 0\noom 3\noom_kill 2\noom_group_kill 9\n";
        assert_eq!(keyed(events, "oom_kill"), 2);
        assert_eq!(keyed(events, "oom"), 3);
        assert_eq!(keyed(events, "max"), 0);
    }

    #[test]
    fn a_control_file_is_never_created_by_writing_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pids.max");
        let error = write(&path, "12").unwrap_err();
        assert!(error.to_string().contains("pids.max"), "{error}");
        assert!(!path.exists());
    }
}
