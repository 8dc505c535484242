//! Writes a sandbox's files on this machine: below one folder, and never through a link.
//!
//! A sandbox's list of files is not trusted, and may change: a link that an earlier copy left here must not lead the
//! next copy out of the folder. So every name is opened from the folder above it, and a link in the way is refused (for
//! a folder) or replaced (for a file).
//!
//! A file gets its name once it is complete, and so does a new folder: a copy that fails or is interrupted changes
//! nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cove_sys::replacement::{Link, Replacement};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

/// The mode for open(2) of an ordinary file, before the umask.
const NEW_FILE: u32 = 0o666;

pub struct Landing {
    top: OwnedFd,
}

/// A file that is being written.
pub enum Incoming {
    Beside(Replacement),
    /// A device, a pipe, or a file in a folder where nothing can be made: it is written directly.
    InPlace(File),
}

impl Incoming {
    /// For a path that the person wrote: follows a link, as cp does.
    pub fn at(path: &Path) -> io::Result<Incoming> {
        match Replacement::at(path, Link::Follow, NEW_FILE) {
            Ok(beside) => Ok(Incoming::Beside(beside)),
            Err(_) if path.exists() && !path.is_dir() => {
                File::options().write(true).truncate(true).open(path).map(Incoming::InPlace)
            }
            Err(error) => Err(error),
        }
    }

    pub fn file(&self) -> &File {
        match self {
            Incoming::Beside(beside) => beside.file(),
            Incoming::InPlace(file) => file,
        }
    }

    /// The file is complete: gives it its name.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Incoming::Beside(beside) => beside.finish(),
            Incoming::InPlace(_) => Ok(()),
        }
    }
}

impl Write for Incoming {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Writes a whole file at a path that the person wrote.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = Incoming::at(path)?;
    file.write_all(text)?;
    file.finish()
}

/// A folder that gets its name when it is complete.
pub struct Draft {
    path: PathBuf,
    target: PathBuf,
}

impl Draft {
    /// Next to the target, on the same filesystem. `None` where the target already exists: then files are written one
    /// by one.
    pub fn of(target: &Path) -> io::Result<Option<Draft>> {
        if target.symlink_metadata().is_ok() {
            return Ok(None);
        }
        let Some(name) = target.file_name() else { return Ok(None) };
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent)?;
        let mut draft = std::ffi::OsString::from(format!(".cove-draft-{}-", std::process::id()));
        draft.push(name);
        let draft = Draft { path: parent.join(draft), target: target.to_owned() };
        std::fs::create_dir(&draft.path)?;
        Ok(Some(draft))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn finish(self) -> io::Result<()> {
        // Not over what appeared meanwhile.
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(rustix::fs::CWD, &self.path, rustix::fs::CWD, &self.target, flags)?)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After `finish` nothing is left to remove.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl Landing {
    /// The folder that the person named; made if it does not exist. Links on the way to it are followed.
    pub fn at(path: &Path) -> io::Result<Landing> {
        std::fs::create_dir_all(path)?;
        let top = openat(rustix::fs::CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Landing { top })
    }

    /// Makes a folder and those above it.
    pub fn directory(&self, relative: &Path) -> io::Result<OwnedFd> {
        let mut at = self.top.try_clone()?;
        for name in relative {
            match mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = openat(&at, name, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::LOOP | Errno::NOTDIR => io::Error::other(format!(
                    "{} is here already and no folder; nothing is written through it",
                    relative.display()
                )),
                errno => errno.into(),
            })?;
        }
        Ok(at)
    }

    /// A file to write, which gets its name when it is finished. It replaces a link of that name.
    pub fn file(&self, relative: &Path) -> io::Result<Incoming> {
        let (folder, name) = self.place(relative)?;
        match Replacement::below(folder.try_clone()?, name, NEW_FILE) {
            Ok(beside) => Ok(Incoming::Beside(beside)),
            // Another user's file that we may write: we cannot replace it with the same owner.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let opened = openat(&folder, name, flags, Mode::empty());
                opened.map(|file| Incoming::InPlace(File::from(file))).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// A symbolic link, replacing an earlier one. It may lead anywhere: nothing here follows it.
    pub fn link(&self, relative: &Path, target: &str) -> io::Result<()> {
        let (folder, name) = self.place(relative)?;
        let is_link = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|told| FileType::from_raw_mode(told.st_mode) == FileType::Symlink);
        if is_link {
            unlinkat(&folder, name, AtFlags::empty())?;
        }
        Ok(symlinkat(target, &folder, name)?)
    }

    fn place<'a>(&self, relative: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = relative.file_name().ok_or(Errno::INVAL)?;
        Ok((self.directory(relative.parent().unwrap_or(Path::new("")))?, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(landing: &Landing, name: &str, text: &str) {
        let mut file = landing.file(Path::new(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.finish().unwrap();
    }

    #[test]
    fn nothing_is_written_through_a_link_that_an_earlier_copy_left() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let to = folder.path().join("to");
        let landing = Landing::at(&to).unwrap();
        landing.link(Path::new("link"), outside.join("precious").to_str().unwrap()).unwrap();
        landing.link(Path::new("folder"), outside.to_str().unwrap()).unwrap();

        write(&landing, "link", "theirs");
        assert_eq!(std::fs::read_to_string(outside.join("precious")).unwrap(), "x");
        assert_eq!(std::fs::read_to_string(to.join("link")).unwrap(), "theirs");
        let refused = landing.file(Path::new("folder/new")).err().unwrap().to_string();
        assert!(refused.contains("nothing is written through it"), "{refused}");
        assert!(landing.directory(Path::new("folder/deep/er")).is_err());
        assert!(!outside.join("new").exists() && !outside.join("deep").exists());
        landing.link(Path::new("folder"), "elsewhere").unwrap();
        assert_eq!(std::fs::read_link(to.join("folder")).unwrap(), Path::new("elsewhere"));
    }

    #[test]
    fn what_is_there_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        // Links on the way to the folder are followed.
        symlink(folder.path(), folder.path().join("here")).unwrap();
        let landing = Landing::at(&folder.path().join("here")).unwrap();
        for text in ["longer than", "short"] {
            write(&landing, "a/b", text);
        }
        assert_eq!(std::fs::read_to_string(folder.path().join("a/b")).unwrap(), "short");
    }

    #[test]
    fn what_is_not_finished_leaves_what_was_here() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("old");
        std::fs::write(&old, "old").unwrap();
        Incoming::at(&old).unwrap().write_all(b"half").unwrap();
        let draft = Draft::of(&folder.path().join("new/er")).unwrap().unwrap();
        std::fs::write(draft.path().join("file"), "x").unwrap();
        drop(draft);
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
        assert!(Draft::of(folder.path()).unwrap().is_none());
        let left: Vec<_> = std::fs::read_dir(folder.path().join("new")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
