//! Places below a directory, and never outside it, whatever symlinks are on the way.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;

/// Opens the directory that holds the last part of `path`, which is relative and has no dots; missing ones are made.
/// A symlink on the way is followed only where it stays below `top` (openat2(2) `RESOLVE_BENEATH`).
/// Names are bytes: not all of them are text.
pub fn open_parent(top: &OwnedFd, path: &[u8]) -> Result<(OwnedFd, CString), Errno> {
    let end = path.iter().rposition(|byte| *byte == b'/');
    let (parent, name) = end.map_or((&b"."[..], path), |end| (&path[..end], &path[end + 1..]));
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    match open_directory(top, parent) {
        Err(Errno::NOENT) => {}
        other => return Ok((other?, name)),
    }
    let mut made: Vec<u8> = Vec::new();
    let mut above = open_directory(top, b".")?;
    for part in parent.split(|byte| *byte == b'/') {
        if !made.is_empty() {
            made.push(b'/');
        }
        made.extend_from_slice(part);
        match mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        above = open_directory(top, &made)?;
    }
    Ok((above, name))
}

pub fn open_directory(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
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
fn step_by_step(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = openat(top.as_fd(), ".", flags, Mode::empty())?;
    for part in parts(path) {
        if part == b".." {
            return Err(Errno::XDEV);
        }
        directory = openat(&directory, part, flags, Mode::empty())?;
    }
    Ok(directory)
}

/// A path from outside as one that is relative and has no dots; `None` where it has `..` or a zero byte in it.
pub fn plain(path: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<_> = parts(path).collect();
    if parts.contains(&&b".."[..]) || path.contains(&0) {
        return None;
    }
    Some(parts.join(&b'/'))
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_up_are_none() {
        assert_eq!(plain(b"/a//./b\xff/").as_deref(), Some(&b"a/b\xff"[..]));
        assert_eq!(plain(b"./").as_deref(), Some(&b""[..]));
        assert_eq!(plain(b"a/../../b"), None);
        assert_eq!(plain(b"a\0b"), None);
    }
}
