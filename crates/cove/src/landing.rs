//! Where a sandbox's files land on this machine: below one folder, and never through a link.
//!
//! What a sandbox says of its files is its own word, and it may say something else the next time: a link that an earlier
//! copy left here must not become the way out of the folder for the next one. So every name is opened from the
//! folder above it, and a link in the way is refused (for a folder) or replaced (for a file).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

pub struct Landing {
    top: OwnedFd,
}

impl Landing {
    /// The folder that somebody here named; made if it is not there. Links on the way to it are theirs.
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

    /// An empty file to be written. A link of that name gives way to it.
    pub fn file(&self, relative: &Path) -> io::Result<File> {
        let (folder, name) = self.place(relative)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let file = match openat(&folder, name, flags | OFlags::TRUNC, mode) {
            Err(Errno::LOOP) => {
                unlinkat(&folder, name, AtFlags::empty())?;
                openat(&folder, name, flags | OFlags::EXCL, mode)?
            }
            other => other?,
        };
        Ok(File::from(file))
    }

    /// A symbolic link, in the place of one that was there. It may lead anywhere: nothing here follows it.
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
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

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

        landing.file(Path::new("link")).unwrap().write_all(b"theirs").unwrap();
        assert_eq!(std::fs::read_to_string(outside.join("precious")).unwrap(), "x");
        assert_eq!(std::fs::read_to_string(to.join("link")).unwrap(), "theirs");
        let refused = landing.file(Path::new("folder/new")).unwrap_err().to_string();
        assert!(refused.contains("nothing is written through it"), "{refused}");
        assert!(landing.directory(Path::new("folder/deep/er")).is_err());
        assert!(!outside.join("new").exists() && !outside.join("deep").exists());
        landing.link(Path::new("folder"), "elsewhere").unwrap();
        assert_eq!(std::fs::read_link(to.join("folder")).unwrap(), Path::new("elsewhere"));
    }

    #[test]
    fn what_is_there_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        // The way to the folder is its owner's.
        symlink(folder.path(), folder.path().join("here")).unwrap();
        let landing = Landing::at(&folder.path().join("here")).unwrap();
        for text in ["longer than", "short"] {
            landing.file(Path::new("a/b")).unwrap().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(folder.path().join("a/b")).unwrap(), "short");
    }
}
