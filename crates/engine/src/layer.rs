//! Layers: read-only trees of files that many sandboxes share.
//!
//! A layer is made as a draft and then sealed: files that do not belong into a layer are refused, everything becomes
//! root's (0-based, whatever range of ids a sandbox gets), and it is named by the digest of its content, so that one
//! name always means the same files. A sealed layer is never written to: sandboxes mount it read-only.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use sha2::{Digest, Sha256};

use crate::error::Error;

/// The time of every file of a layer: 1980, the first that a zip archive can have. The recipe sets it before it
/// compiles Python, whose compiled files contain the time of their source.
pub const TIME: u64 = 315_532_800;

/// A sealed layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The digest of its content.
    pub name: String,
    pub path: PathBuf,
    pub files: u64,
    pub bytes: u64,
}

/// Seals the draft into the directory of layers. The draft is gone afterwards.
pub fn seal(draft: &Path, layers: &Path) -> Result<Sealed, Error> {
    fs::create_dir_all(layers).map_err(Error::file("make", layers))?;
    let mut walk = Walk { root: draft, digest: Sha256::new(), files: 0, bytes: 0 };
    walk.directory(draft)?;
    let name = hex::encode(walk.digest.finalize());
    let path = layers.join(&name);
    let (files, bytes) = (walk.files, walk.bytes);
    if path.exists() {
        fs::remove_dir_all(draft).map_err(Error::file("remove", draft))?;
    } else {
        // The name promises the content: it must be on the disk before the name is.
        let folder = fs::File::open(draft).map_err(Error::file("open", draft))?;
        rustix::fs::syncfs(&folder).map_err(|errno| Error::file("write out", draft)(errno.into()))?;
        fs::rename(draft, &path).map_err(Error::file("name", &path))?;
    }
    Ok(Sealed { name, path, files, bytes })
}

struct Walk<'a> {
    root: &'a Path,
    digest: Sha256,
    files: u64,
    bytes: u64,
}

impl Walk<'_> {
    fn directory(&mut self, path: &Path) -> Result<(), Error> {
        let mut entries: Vec<PathBuf> = fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .map_err(Error::file("read", path))?;
        entries.sort();
        for entry in entries {
            self.entry(&entry)?;
        }
        let metadata = path.symlink_metadata().map_err(Error::file("look at", path))?;
        self.settle(path, b'd', metadata.mode() & 0o1777, Keep::Mode)
    }

    fn entry(&mut self, path: &Path) -> Result<(), Error> {
        let metadata = path.symlink_metadata().map_err(Error::file("look at", path))?;
        if metadata.is_dir() {
            return self.directory(path);
        }
        self.files += 1;
        if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(Error::file("read", path))?;
            self.settle(path, b'l', 0, Keep::Nothing)?;
            self.tell(target.as_os_str().as_bytes());
        } else if metadata.is_file() {
            // A layer has no set-user-id files.
            self.settle(path, b'f', metadata.mode() & 0o777, Keep::Mode)?;
            self.content(path, metadata.size())?;
            self.bytes += metadata.size();
        } else {
            return Err(Error::Invalid(format!("{} is neither file, directory nor link", path.display())));
        }
        Ok(())
    }

    /// Makes it root's and everybody's alike, and takes name and mode into the digest.
    fn settle(&mut self, path: &Path, kind: u8, mode: u32, keep: Keep) -> Result<(), Error> {
        lchown(path, Some(0), Some(0)).map_err(Error::file("own", path))?;
        if keep == Keep::Mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
                .map_err(Error::file("set the mode of", path))?;
        }
        let time = Timespec { tv_sec: TIME.cast_signed(), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| Error::file("set the time of", path)(errno.into()))?;
        let name = path.strip_prefix(self.root).unwrap_or(path).as_os_str().as_bytes().to_vec();
        self.digest.update([kind]);
        self.tell(&name);
        self.digest.update(mode.to_le_bytes());
        Ok(())
    }

    fn content(&mut self, path: &Path, size: u64) -> Result<(), Error> {
        self.digest.update(size.to_le_bytes());
        let mut file = fs::File::open(path).map_err(Error::file("open", path))?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            match file.read(&mut buffer).map_err(Error::file("read", path))? {
                0 => return Ok(()),
                count => self.digest.update(&buffer[..count]),
            }
        }
    }

    /// With its length before it, so that two trees never have the same input.
    fn tell(&mut self, bytes: &[u8]) {
        self.digest.update((bytes.len() as u64).to_le_bytes());
        self.digest.update(bytes);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Mode,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(room: &Path, name: &str, text: &str) -> PathBuf {
        let draft = room.join(name);
        fs::create_dir_all(draft.join("lib")).unwrap();
        fs::write(draft.join("lib/a.py"), text).unwrap();
        std::os::unix::fs::symlink("a.py", draft.join("lib/b.py")).unwrap();
        draft
    }

    #[test]
    fn the_same_files_have_the_same_name_and_others_another() {
        if !cove_testkit::need::root() {
            return;
        }
        let room = tempfile::tempdir().unwrap();
        let layers = room.path().join("layers");
        let one = seal(&draft(room.path(), "one", "x = 1"), &layers).unwrap();
        let two = seal(&draft(room.path(), "two", "x = 1"), &layers).unwrap();
        let three = seal(&draft(room.path(), "three", "x = 2"), &layers).unwrap();
        assert_eq!(one, two);
        assert_ne!(one.name, three.name);
        assert_eq!((one.files, one.bytes), (2, 5));
        assert!(!room.path().join("two").exists());
        assert_eq!(one.path.join("lib/a.py").metadata().unwrap().mtime().cast_unsigned(), TIME);
    }

    #[test]
    fn a_device_or_pipe_is_refused_and_set_user_id_is_taken_off() {
        if !cove_testkit::need::root() {
            return;
        }
        let room = tempfile::tempdir().unwrap();
        let layers = room.path().join("layers");
        let first = draft(room.path(), "one", "");
        fs::set_permissions(first.join("lib/a.py"), fs::Permissions::from_mode(0o4755)).unwrap();
        let sealed = seal(&first, &layers).unwrap();
        assert_eq!(sealed.path.join("lib/a.py").metadata().unwrap().mode() & 0o7777, 0o755);
        let second = draft(room.path(), "two", "");
        rustix::fs::mknodat(CWD, second.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(seal(&second, &layers).unwrap_err().to_string().contains("neither file"));
    }
}
