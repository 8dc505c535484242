//! The place of a file: an open directory, and a name in it.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cove_protocol::{Failure, FailureKind};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat, fstatfs, openat, openat2, readlinkat,
    statat,
};
use rustix::io::Errno;

use super::actor::Actor;
use crate::failure::{During, Result, from_errno, invalid};

/// As many symlinks as the kernel follows (path_resolution(7)).
const LINKS: usize = 40;

pub struct Place {
    pub directory: OwnedFd,
    /// One component; `.` for the root and for paths that end in dots.
    pub name: CString,
    /// As it is reported to the host.
    pub path: String,
}

impl Place {
    /// The place a path means, symlinks on the way followed, the last component not.
    pub fn find(actor: &Actor, path: &str) -> Result<Place> {
        let path = tidy(&actor.absolute(path)?);
        let (parent, name) = split(&path);
        let directory = open_directory(CWD, parent).during(format!("open {parent}"))?;
        Ok(Place { directory, name: terminated(name)?, path })
    }

    /// The place that a chain of symlinks at this one ends at, there or not.
    pub fn through_links(mut self) -> Result<Place> {
        for _ in 0..LINKS {
            let target = match readlinkat(&self.directory, &self.name, Vec::new()) {
                Ok(target) => target,
                // Not a symlink, or not there.
                Err(Errno::INVAL | Errno::NOENT) => return Ok(self),
                Err(errno) => return Err(from_errno(errno, format!("follow {}", self.path))),
            };
            let target = tidy(&target.to_string_lossy());
            let (parent, name) = split(&target);
            self.directory = open_directory(&self.directory, parent).during(format!("follow {}", self.path))?;
            self.name = terminated(name)?;
        }
        Err(from_errno(Errno::LOOP, format!("follow {}", self.path)))
    }

    /// What `lstat` sees.
    pub fn stat(&self) -> std::result::Result<Stat, Errno> {
        statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens the file itself; a symlink is followed, within the root.
    pub fn open(&self, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        open_beneath(&self.directory, &self.name, flags, Mode::empty())
    }

    /// The file itself, held without a right to read or write it.
    pub fn hold(&self) -> std::result::Result<OwnedFd, Errno> {
        openat(&self.directory, &self.name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    /// The name, where it is one that can be given or taken.
    pub fn proper_name(&self, step: &str) -> Result<&CString> {
        if self.name.as_bytes() == b"." {
            return Err(invalid(format!("{step} {}: the path does not end in a name", self.path)));
        }
        Ok(&self.name)
    }
}

/// Opens an existing directory, symlinks followed within the root.
pub fn open_directory(from: impl AsFd, path: &str) -> std::result::Result<OwnedFd, Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    open_beneath(from, &path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
}

/// Opens with the kernel's promise not to pass through `/proc/*/fd` and its like, which lead out of every tree.
pub fn open_beneath(from: impl AsFd, path: &CString, flags: OFlags, mode: Mode) -> std::result::Result<OwnedFd, Errno> {
    // The guest leads a session: a terminal that it opens must not become its own. With O_PATH nothing is opened, and the
    // kernel refuses the two together.
    let terminal = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    let flags = flags | OFlags::CLOEXEC | terminal;
    // An absolute path, or an absolute symlink on the way, starts at the process's root, which is the sandbox's.
    // RESOLVE_IN_ROOT would make it start at `from`.
    loop {
        return match openat2(&from, path, flags, mode, ResolveFlags::NO_MAGICLINKS) {
            // Some sandboxes' kernels have no openat2; path_resolution is theirs then.
            Err(Errno::NOSYS) => openat(&from, path, flags, mode),
            Err(Errno::INTR | Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => continue,
            other => other,
        };
    }
}

/// Refuses the guest's own files in `/proc`: to a thread of the guest they are open whatever its rights, and `mem`
/// is the guest itself.
pub fn refuse_own(file: &OwnedFd, path: &str) -> Result<()> {
    if !is_proc(file) {
        return Ok(());
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let real = readlinkat(CWD, link, Vec::new()).during(format!("open {path}"))?;
    let real = real.to_string_lossy().into_owned();
    let process = real.strip_prefix("/proc/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let is_process = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    let task = format!("/proc/self/task/{process}");
    if is_process && statat(CWD, task, AtFlags::empty()).is_ok() {
        let message = format!("open {path}: permission denied: it belongs to the sandbox's guest");
        return Err(Failure::new(FailureKind::PermissionDenied, message));
    }
    Ok(())
}

/// Refuses to write the kernel's tables: some of them ask for the thread's user id, which stays root's, instead of the
/// filesystem's, which is the acting user's.
pub fn refuse_kernels(file: &OwnedFd, path: &str) -> Result<()> {
    if is_proc(file) {
        let message = format!("write {path}: permission denied: files of /proc are not written from outside");
        return Err(Failure::new(FailureKind::PermissionDenied, message));
    }
    Ok(())
}

/// Whether this is one of the kernel's own tables, not of the sandbox's files.
pub fn is_proc(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|stats| stats.f_type == PROC_SUPER_MAGIC)
}

/// A regular file opened for reading; anything else is refused by its kind.
pub fn open_to_read(place: &Place, step: &str) -> Result<(OwnedFd, Stat)> {
    let path = &place.path;
    // Not blocking: the open of a pipe waits for its other side otherwise.
    let file = place.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).during(format!("{step} {path}"))?;
    refuse_own(&file, path)?;
    let stat = rustix::fs::fstat(&file).during(format!("{step} {path}"))?;
    require_regular(&stat, path, step)?;
    Ok((file, stat))
}

pub fn require_regular(stat: &Stat, path: &str, step: &str) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(from_errno(Errno::ISDIR, format!("{step} {path}"))),
        _ => Err(invalid(format!("{step} {path}: not a regular file"))),
    }
}

/// Without slashes that mean nothing; the root stays one slash.
fn tidy(path: &str) -> String {
    let mut tidy = String::with_capacity(path.len());
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if !tidy.is_empty() || path.starts_with('/') {
            tidy.push('/');
        }
        tidy.push_str(part);
    }
    match (tidy.is_empty(), path.starts_with('/')) {
        (true, true) => "/".to_owned(),
        (true, false) => ".".to_owned(),
        (false, _) => tidy,
    }
}

/// The directory and the name in it.
fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        _ if path == "/" || path == "." || path == ".." || path.ends_with("/..") => (path, "."),
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => (".", path),
    }
}

fn terminated(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| invalid(format!("path {name:?} holds a zero byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        let cases = [
            ("/", "/", "/", "."),
            ("//a///b/./c/", "/a/b/c", "/a/b", "c"),
            ("/a", "/a", "/", "a"),
            ("/a/..", "/a/..", "/a/..", "."),
            ("a", "a", ".", "a"),
            ("./", ".", ".", "."),
            ("../x", "../x", "..", "x"),
        ];
        for (path, neat, parent, name) in cases {
            assert_eq!(tidy(path), neat);
            assert_eq!(split(&tidy(path)), (parent, name), "{path}");
        }
    }
}
