//! Replaces a file once the new one is complete.
//!
//! The new text is written to a file without a name (`O_TMPFILE`), so nothing is left behind, however the writer ends.
//! Where the filesystem has no such files, the draft has a name of its own and is removed when the writer fails.
//! Readers see the old text or the new one, never a part of either.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, fchmod, fchown, fstat, linkat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

/// The name of a draft where it needs one; it ends with the process id and a number.
const DRAFT: &str = ".cove-draft-";

pub struct Replacement {
    folder: OwnedFd,
    name: OsString,
    file: File,
    /// The draft's own name, where it has one.
    draft: Option<OsString>,
}

/// What happens to a link with the file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Replaces the file that it leads to: a person named the path.
    Follow,
    /// Replaces the link itself: somebody else may have put it there.
    Replace,
}

impl Replacement {
    /// For a file at `path`. A file that is there keeps its mode and owner; a new one gets `mode`, less the umask.
    pub fn at(path: &Path, link: Link, mode: u32) -> io::Result<Replacement> {
        let path = match link {
            Link::Follow if path.is_symlink() => &resolve(path)?,
            _ => path,
        };
        let name = path.file_name().ok_or(Errno::ISDIR)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Replacement::below(folder, name, mode)
    }

    /// For a name in an open folder. A link of that name is replaced, never followed.
    pub fn below(folder: OwnedFd, name: &OsStr, mode: u32) -> io::Result<Replacement> {
        let old = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(old) => Some(old),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let kind = old.as_ref().map(|old| FileType::from_raw_mode(old.st_mode));
        match kind {
            None | Some(FileType::RegularFile | FileType::Symlink) => {}
            Some(FileType::Directory) => return Err(Errno::ISDIR.into()),
            // A device or a pipe cannot be replaced.
            Some(_) => return Err(Errno::INVAL.into()),
        }
        let mode = Mode::from_raw_mode(mode);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        // An empty name would be refused: the folder itself is meant.
        let (file, draft) = match openat(&folder, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => (file, None),
            // EISDIR: a kernel or filesystem that does not know the flag.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let (name, file) = fresh(|name| openat(&folder, name, flags | OFlags::CREATE | OFlags::EXCL, mode))?;
                (file, Some(name))
            }
            Err(errno) => return Err(errno.into()),
        };
        let replacement = Replacement { folder, name: name.to_owned(), file: File::from(file), draft };
        if let Some(old) = old.filter(|_| kind == Some(FileType::RegularFile)) {
            let ours = fstat(&replacement.file)?;
            if (ours.st_uid, ours.st_gid) != (old.st_uid, old.st_gid) {
                fchown(&replacement.file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)))?;
            }
            // After the change of owner, which clears setuid and setgid.
            fchmod(&replacement.file, Mode::from_raw_mode(old.st_mode & 0o7777))?;
        }
        Ok(replacement)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name. Before this nothing has changed.
    pub fn finish(mut self) -> io::Result<()> {
        if self.draft.is_none() {
            // procfs: linkat with AT_EMPTY_PATH needs CAP_DAC_READ_SEARCH before Linux 6.10.
            let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            match linkat(CWD, &unnamed, &self.folder, &self.name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let named = fresh(|name| linkat(CWD, &unnamed, &self.folder, name, AtFlags::SYMLINK_FOLLOW));
            self.draft = Some(named?.0);
        }
        if let Some(draft) = &self.draft {
            renameat(&self.folder, draft, &self.folder, &self.name)?;
        }
        self.draft = None;
        Ok(())
    }

    /// As [`Replacement::finish`], and on the disk when it returns.
    pub fn finish_durably(self) -> io::Result<()> {
        self.file.sync_all()?;
        let folder = openat(&self.folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.finish()?;
        Ok(rustix::fs::fsync(folder)?)
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            // It is already gone, or its folder is: nothing to remove.
            let _ = unlinkat(&self.folder, draft, AtFlags::empty());
        }
    }
}

/// Replaces a file; the new one is on the disk when this returns. For files of our own: a link of that name is
/// replaced, and the mode is the one given.
pub fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let mut file = Replacement::at(path, Link::Replace, mode)?;
    fchmod(&file.file, Mode::from_raw_mode(mode))?;
    file.write_all(text)?;
    file.finish_durably()
}

/// A name that nobody has taken.
fn fresh<T>(make: impl Fn(&OsStr) -> Result<T, Errno>) -> io::Result<(OsString, T)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!("{DRAFT}{}-{number}", std::process::id()));
        match make(&name) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
            Ok(made) => return Ok((name, made)),
        }
    }
}

/// Where a link leads, also to what is not there yet.
fn resolve(path: &Path) -> io::Result<std::path::PathBuf> {
    // MAXSYMLINKS of Linux.
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        if !path.is_symlink() {
            return Ok(path);
        }
        let target = std::fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn place() -> (std::path::PathBuf, impl Drop) {
        struct Removed(std::path::PathBuf);
        impl Drop for Removed {
            fn drop(&mut self) {
                let _ = fs::remove_dir_all(&self.0);
            }
        }
        let (name, ()) = fresh(|name| {
            let made = fs::create_dir(std::env::temp_dir().join(name));
            made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })
        .unwrap();
        let path = std::env::temp_dir().join(name);
        (path.clone(), Removed(path))
    }

    #[test]
    fn what_is_given_up_changes_nothing_and_leaves_nothing() {
        let (folder, _removed) = place();
        let path = folder.join("precious");
        fs::write(&path, "old").unwrap();
        let mut begun = Replacement::at(&path, Link::Follow, 0o666).unwrap();
        begun.write_all(b"half").unwrap();
        drop(begun);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(&folder), ["precious"]);
    }

    #[test]
    fn the_new_text_has_the_old_ones_mode() {
        let (folder, _removed) = place();
        let path = folder.join("program");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let mut begun = Replacement::at(&path, Link::Follow, 0o600).unwrap();
        begun.write_all(b"new").unwrap();
        begun.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
        replace(&folder.join("secret"), b"s", 0o600).unwrap();
        assert_eq!(fs::metadata(folder.join("secret")).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(names(&folder), ["program", "secret"]);
    }

    #[test]
    fn a_link_is_followed_or_replaced_as_asked() {
        let (folder, _removed) = place();
        let (target, link) = (folder.join("target"), folder.join("link"));
        fs::write(&target, "old").unwrap();
        symlink("target", &link).unwrap();
        let mut begun = Replacement::at(&link, Link::Follow, 0o666).unwrap();
        begun.write_all(b"followed").unwrap();
        begun.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "followed");
        replace(&link, b"own", 0o644).unwrap();
        assert!(!link.is_symlink());
        assert_eq!(
            (fs::read_to_string(&target).unwrap(), fs::read_to_string(&link).unwrap()),
            ("followed".into(), "own".into())
        );
        let device = Replacement::at(Path::new("/dev/null"), Link::Follow, 0o666);
        assert_eq!(device.err().and_then(|error| error.raw_os_error()), Some(Errno::INVAL.raw_os_error()));
    }
}
