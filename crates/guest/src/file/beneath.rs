//! Places below a directory, and never outside it, whatever symlinks lie on the way.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;

/// Opens the directory that holds the last part of `path`, which is relative and has no dots; missing ones are made.
/// A symlink on the way is followed only where it stays below `top` (openat2(2) `RESOLVE_BENEATH`).
pub fn open_parent(top: &OwnedFd, path: &str) -> Result<(OwnedFd, CString), Errno> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    match open_directory(top, parent) {
        Err(Errno::NOENT) => {}
        other => return Ok((other?, name)),
    }
    let mut made = String::new();
    let mut above = open_directory(top, ".")?;
    for part in parent.split('/') {
        made = if made.is_empty() { part.to_owned() } else { format!("{made}/{part}") };
        match mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        above = open_directory(top, &made)?;
    }
    Ok((above, name))
}

pub fn open_directory(top: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..64 {
        return match openat2(top, path, flags, Mode::empty(), resolve) {
            // A rename elsewhere made the kernel unsure whether the walk stayed below: try again.
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(Errno::NOSYS) => step_by_step(top, path),
            other => other,
        };
    }
    Err(Errno::AGAIN)
}

/// For kernels without openat2: no symlink at all.
fn step_by_step(top: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = openat(top.as_fd(), ".", flags, Mode::empty())?;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(Errno::XDEV);
        }
        directory = openat(&directory, part, flags, Mode::empty())?;
    }
    Ok(directory)
}

/// A path from outside as one that is relative and has no dots; `None` where it has `..` or a zero byte in it.
pub fn plain(path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") || path.contains('\0') {
        return None;
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_up_are_none() {
        assert_eq!(plain("/a//./b/").as_deref(), Some("a/b"));
        assert_eq!(plain("./").as_deref(), Some(""));
        assert_eq!(plain("a/../../b"), None);
        assert_eq!(plain("a\0b"), None);
    }
}
