//! Makes a tree of packages the same whoever installed it, and names it by its content.
//!
//! Files that do not belong into such a layer are refused, everything becomes root's and gets one time. So the same
//! packages are the same layer on every machine, and one name always means the same files.

use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use sha2::{Digest, Sha256};

use super::Error;
use crate::spec::LayerId;

/// The time of every file: 1980, the first that a zip archive can have. The recipe sets it before it compiles Python,
/// whose compiled files contain the time of their source.
pub const TIME: u64 = 315_532_800;

/// Settles all files of a draft; returns the digest of their names, modes and contents. Nobody else writes to it.
pub(super) fn settle(draft: &Path) -> Result<LayerId, Error> {
    let mut walk = Walk { root: draft, digest: Sha256::new() };
    walk.directory(draft)?;
    Ok(LayerId::new(walk.digest.finalize().into()))
}

/// Whether a layer is named by the digest of its content, as `settle` named it. Changes nothing.
pub(super) fn is_named_by(layer: &Path, id: &LayerId) -> Result<bool, Error> {
    let mut walk = Walk { root: layer, digest: Sha256::new() };
    walk.look_into(layer)?;
    let mode = layer.symlink_metadata().map_err(Error::at("look at", layer))?.mode() & 0o1777;
    // The last word is the mode of the layer's own directory. One that came from an earlier version lies in another by now.
    let named = |mode: u32| {
        let mut whole = Walk { root: layer, digest: walk.digest.clone() };
        whole.note(layer, b'd', mode);
        LayerId::new(whole.digest.finalize().into()) == *id
    };
    Ok([mode, 0o755, 0o700].into_iter().any(named))
}

struct Walk<'a> {
    root: &'a Path,
    digest: Sha256,
}

impl Walk<'_> {
    fn directory(&mut self, path: &Path) -> Result<(), Error> {
        for entry in sorted(path)? {
            self.entry(&entry)?;
        }
        let metadata = path.symlink_metadata().map_err(Error::at("look at", path))?;
        self.settle(path, b'd', metadata.mode() & 0o1777, Keep::Mode)
    }

    fn entry(&mut self, path: &Path) -> Result<(), Error> {
        let metadata = path.symlink_metadata().map_err(Error::at("look at", path))?;
        if metadata.is_dir() {
            return self.directory(path);
        }
        if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(Error::at("read", path))?;
            self.settle(path, b'l', 0, Keep::Nothing)?;
            self.tell(target.as_os_str().as_bytes());
            Ok(())
        } else if metadata.is_file() {
            // Such a layer has no set-user-id files.
            self.settle(path, b'f', metadata.mode() & 0o777, Keep::Mode)?;
            self.content(path, metadata.size())
        } else {
            let why = format!("{} is neither file, directory nor link", path.display());
            Err(Error::Draft { why })
        }
    }

    /// Makes it root's and everybody's alike, and takes name and mode into the digest.
    fn settle(&mut self, path: &Path, kind: u8, mode: u32, keep: Keep) -> Result<(), Error> {
        lchown(path, Some(0), Some(0)).map_err(Error::at("own", path))?;
        if keep == Keep::Mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::at("set the mode of", path))?;
        }
        let time = Timespec { tv_sec: TIME.cast_signed(), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Error::at("set the time of", path))?;
        self.note(path, kind, mode);
        Ok(())
    }

    /// Takes name and mode into the digest.
    fn note(&mut self, path: &Path, kind: u8, mode: u32) {
        let name = path.strip_prefix(self.root).unwrap_or(path).as_os_str().as_bytes().to_vec();
        self.digest.update([kind]);
        self.tell(&name);
        self.digest.update(mode.to_le_bytes());
    }

    /// As `directory`, of files that were settled; without the directory itself.
    fn look_into(&mut self, path: &Path) -> Result<(), Error> {
        for entry in sorted(path)? {
            let metadata = entry.symlink_metadata().map_err(Error::at("look at", &entry))?;
            if metadata.is_dir() {
                self.look_into(&entry)?;
                self.note(&entry, b'd', metadata.mode() & 0o1777);
            } else if metadata.is_symlink() {
                let target = fs::read_link(&entry).map_err(Error::at("read", &entry))?;
                self.note(&entry, b'l', 0);
                self.tell(target.as_os_str().as_bytes());
            } else if metadata.is_file() {
                self.note(&entry, b'f', metadata.mode() & 0o7777);
                self.content(&entry, metadata.size())?;
            } else {
                // No such layer has one: the digest is another's from here on.
                self.note(&entry, b'x', 0);
            }
        }
        Ok(())
    }

    fn content(&mut self, path: &Path, size: u64) -> Result<(), Error> {
        self.digest.update(size.to_le_bytes());
        let mut file = fs::File::open(path).map_err(Error::at("open", path))?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let count = file.read(&mut buffer).map_err(Error::at::<io::Error>("read", path))?;
            if count == 0 {
                return Ok(());
            }
            self.digest.update(&buffer[..count]);
        }
    }

    /// With its length before it, so that two trees never have the same input.
    fn tell(&mut self, bytes: &[u8]) {
        self.digest.update((bytes.len() as u64).to_le_bytes());
        self.digest.update(bytes);
    }
}

fn sorted(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut entries: Vec<PathBuf> = fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(Error::at("read", directory))?;
    entries.sort();
    Ok(entries)
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
        let one = draft(room.path(), "one", "x = 1");
        let first = settle(&one).unwrap();
        assert_eq!(settle(&draft(room.path(), "two", "x = 1")).unwrap(), first);
        assert_ne!(settle(&draft(room.path(), "three", "x = 2")).unwrap(), first);
        assert_eq!(one.join("lib/a.py").metadata().unwrap().mtime().cast_unsigned(), TIME);
    }

    #[test]
    fn a_settled_tree_is_known_by_its_name_until_something_changes() {
        if !cove_testkit::need::root() {
            return;
        }
        let room = tempfile::tempdir().unwrap();
        let one = draft(room.path(), "one", "x = 1");
        let name = settle(&one).unwrap();
        assert!(is_named_by(&one, &name).unwrap());
        fs::set_permissions(&one, fs::Permissions::from_mode(0o700)).unwrap();
        fs::rename(&one, room.path().join("elsewhere")).unwrap();
        let moved = room.path().join("elsewhere");
        assert!(is_named_by(&moved, &name).unwrap(), "the mode of its own directory is no part of its content");
        assert!(!is_named_by(&moved, &LayerId::new([0; 32])).unwrap());
        fs::write(moved.join("lib/a.py"), "x = 2").unwrap();
        assert!(!is_named_by(&moved, &name).unwrap());
    }

    #[test]
    fn a_device_or_pipe_is_refused_and_set_user_id_is_taken_off() {
        if !cove_testkit::need::root() {
            return;
        }
        let room = tempfile::tempdir().unwrap();
        let first = draft(room.path(), "one", "");
        fs::set_permissions(first.join("lib/a.py"), fs::Permissions::from_mode(0o4755)).unwrap();
        settle(&first).unwrap();
        assert_eq!(first.join("lib/a.py").metadata().unwrap().mode() & 0o7777, 0o755);
        let second = draft(room.path(), "two", "");
        rustix::fs::mknodat(CWD, second.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(settle(&second).unwrap_err().to_string().contains("neither file"));
    }
}
