//! Records of a sandbox on disk, for a server that comes back.
//!
//! ```text
//!   <data>/realm                         the name of this directory's cgroups
//!   <data>/boot                          of the host, when an engine last began here
//!   <data>/sandboxes/<id>/spec.json      before anything else happens
//!                         running.json   while its processes live
//!                         guest.sock     where the guest listens
//!                         meminfo        what it sees as /proc/meminfo
//!                         aside.json     while it is kept although nobody is known to own it
//!                         still          while an engine holds its processes still for a moment
//!   <data>/cradles/<mark>/               the same, made ahead and nobody's yet
//!   <data>/gone/<id>/                    removed; deleted as soon as somebody has the time
//! ```

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cradle::{Cradle, Nest};
use crate::error::Error;
use crate::process;
use crate::spec::{SandboxId, Spec};
use crate::state::Aside;

pub const SPEC: &str = "spec.json";
pub const LIFE: &str = "running.json";
pub const SOCKET: &str = "guest.sock";
pub const MEMORY_INFO: &str = "meminfo";
const ASIDE: &str = "aside.json";
const STILL: &str = "still";

/// The processes of a sandbox. A pid may be reused by the time it is read, so its start time and its boot are recorded
/// with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    pub pid: u32,
    pub start_time: u64,
    /// The host's number for the sandbox's user 0.
    pub first_id: u32,
    pub boot: String,
}

/// The directory of all records.
#[derive(Debug, Clone)]
pub struct Records {
    folder: PathBuf,
    cradles: PathBuf,
    gone: PathBuf,
}

impl Records {
    pub fn open(data: &Path) -> Result<Records, Error> {
        let records =
            Records { folder: data.join("sandboxes"), cradles: data.join("cradles"), gone: data.join("gone") };
        for folder in [&records.folder, &records.cradles, &records.gone] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(Error::file("make", folder))?;
        }
        // 108 bytes with the closing zero: sockaddr_un(7).
        let longest = records.folder.as_os_str().len() + 1 + SandboxId::LENGTH + "/guest.sock".len();
        if longest > 107 {
            return Err(Error::Invalid(format!(
                "data directory {} is {} bytes too long for the kernel's limit on socket paths; choose a shorter one",
                data.display(),
                longest - 107
            )));
        }
        Ok(records)
    }

    /// The name of this data directory's cgroups: unique, so that engines on other directories of the host never sweep
    /// them. Written to `<data>/realm` once. An empty file, as a power cut leaves of one that was never synced, is
    /// written anew: no sandbox outlives a power cut.
    pub fn realm(&self) -> Result<String, Error> {
        let path = self.folder.with_file_name("realm");
        if let Some(realm) = read_realm(&path)? {
            return Ok(realm);
        }
        // Of engines that open at the same moment one gives the name. The kernel lets go of the lock with the file.
        let folder = fs::File::open(&self.folder).map_err(Error::file("open", &self.folder))?;
        folder.lock().map_err(Error::file("lock", &self.folder))?;
        if let Some(realm) = read_realm(&path)? {
            return Ok(realm);
        }
        let mut bytes = [0u8; 4];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        filled.map_err(|errno| Error::file("name", &path)(errno.into()))?;
        let realm = format!("cove-{:08x}", u32::from_ne_bytes(bytes));
        cove_sys::replacement::replace(&path, realm.as_bytes(), 0o644).map_err(Error::file("write", &path))?;
        Ok(realm)
    }

    /// Whether the host was started anew since an engine last began here. Notes the present boot.
    pub fn is_another_boot(&self) -> Result<bool, Error> {
        let path = self.folder.with_file_name("boot");
        let now = process::boot();
        let last = match fs::read_to_string(&path) {
            Ok(last) => Some(last.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::file("read", path)(error)),
        };
        if last.as_deref() != Some(&now) {
            cove_sys::replacement::replace(&path, now.as_bytes(), 0o644).map_err(Error::file("write", &path))?;
        }
        Ok(last.is_some_and(|last| !now.is_empty() && last != now))
    }

    pub fn directory(&self, id: &SandboxId) -> PathBuf {
        self.folder.join(id.as_str())
    }

    pub fn socket(&self, id: &SandboxId) -> PathBuf {
        self.directory(id).join(SOCKET)
    }

    /// What the sandbox sees as `/proc/meminfo`.
    pub fn memory_info(&self, id: &SandboxId) -> PathBuf {
        self.directory(id).join(MEMORY_INFO)
    }

    /// Makes the directory if need be. The write is whole or not at all.
    pub fn write_spec(&self, spec: &Spec) -> Result<(), Error> {
        let directory = self.directory(&spec.id);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(Error::file("make", &directory))?;
        replace(&directory.join(SPEC), spec, Reach::Disk)
    }

    /// The same while the sandbox runs, without waiting for the disk: the record has to outlive this process. A power failure
    /// ends the sandbox, and its next life has an order of its own.
    pub fn rewrite_spec(&self, spec: &Spec) -> Result<(), Error> {
        replace(&self.directory(&spec.id).join(SPEC), spec, Reach::Kernel)
    }

    /// A directory for a sandbox of tomorrow.
    pub fn make_cradle(&self) -> Result<Cradle, Error> {
        Cradle::make(self.cradles.join(process::mark()))
    }

    /// Writes a new sandbox down, in a directory made ahead where there is one.
    pub fn begin(&self, spec: &Spec, cradle: Option<Cradle>) -> Result<Nest, Error> {
        let directory = self.directory(&spec.id);
        let cradle = cradle.map_or_else(|| Cradle::make(directory.clone()), Ok)?;
        cradle.name(spec, &directory)
    }

    /// The same for another life of a sandbox that is written down.
    pub fn begin_again(&self, spec: &Spec) -> Result<Nest, Error> {
        self.write_spec(spec)?;
        Nest::make(&self.directory(&spec.id))
    }

    /// Removes what killed engines had made ahead.
    pub fn clear_of_the_dead(&self) {
        for entry in fs::read_dir(&self.cradles).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(process::is_of_the_dead) {
                // The next engine finds what stays.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// `None` where there is none that can be read.
    pub fn spec(&self, id: &SandboxId) -> Result<Option<Spec>, Error> {
        read(&self.directory(id).join(SPEC))
    }

    pub fn life(&self, id: &SandboxId) -> Result<Option<Life>, Error> {
        read(&self.directory(id).join(LIFE))
    }

    pub fn aside(&self, id: &SandboxId) -> Result<Option<Aside>, Error> {
        read(&self.directory(id).join(ASIDE))
    }

    /// On the disk when it returns. Makes the directory where a power cut took it.
    pub fn write_aside(&self, id: &SandboxId, aside: &Aside) -> Result<(), Error> {
        let directory = self.directory(id);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(Error::file("make", &directory))?;
        let path = directory.join(ASIDE);
        cove_sys::replacement::replace(&path, &text(aside, &path)?, 0o600).map_err(Error::file("write", &path))
    }

    /// An engine freezes it, and thaws it in a moment. One that dies in between must be found out.
    pub fn note_still(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.directory(id).join(STILL);
        fs::File::create(&path).map(drop).map_err(Error::file("make", path))
    }

    pub fn is_still(&self, id: &SandboxId) -> bool {
        self.directory(id).join(STILL).exists()
    }

    /// It is thawed. Fine where it was never still.
    pub fn forget_still(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.directory(id).join(STILL);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Somebody owns it again. Fine where it was never kept aside.
    pub fn remove_aside(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.directory(id).join(ASIDE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Its processes are gone.
    pub fn end_life(&self, id: &SandboxId) -> Result<(), Error> {
        for path in [self.directory(id).join(LIFE), self.socket(id)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::file("remove", path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Its name is free at once; [`Records::empty_trash`] does the rest.
    pub fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        let directory = self.directory(id);
        match fs::rename(&directory, self.gone.join(id.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // One of the same name is still there.
            Err(_) => match fs::remove_dir_all(&directory) {
                // Another engine on the same data clears the same away.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other.map_err(Error::file("remove", directory)),
            },
            Ok(()) => Ok(()),
        }
    }

    /// Deletes what was removed.
    pub fn empty_trash(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.gone).map_err(Error::file("list", &self.gone))?.flatten() {
            match fs::remove_dir_all(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::file("remove", entry.path())(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub fn names(&self) -> Result<Vec<SandboxId>, Error> {
        let entries = fs::read_dir(&self.folder).map_err(Error::file("list", &self.folder))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(names.collect())
    }
}

/// `None` where it is absent or empty. Anything else that is no name of ours is somebody's mistake: a new name would lose the
/// sandboxes that run under the old one.
fn read_realm(path: &Path) -> Result<Option<String>, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", path)(error)),
    };
    let realm = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    let fits = |number: &str| number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    match realm.strip_prefix("cove-") {
        _ if realm.is_empty() => Ok(None),
        Some(number) if fits(number) => Ok(Some(realm.to_owned())),
        _ => Err(Error::Invalid(format!(
            "{} does not hold the name of control groups (cove-xxxxxxxx); put its old text back, or remove it once no \
             sandbox of this data directory runs",
            path.display()
        ))),
    }
}

pub fn text<T: Serialize>(value: &T, path: &Path) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::Invalid(format!("{}: {error}", path.display())))
}

/// How far a write has come when it returns.
#[derive(PartialEq)]
enum Reach {
    /// It outlives this process.
    Kernel,
    /// It outlives a power failure.
    Disk,
}

fn replace<T: Serialize>(path: &Path, value: &T, reach: Reach) -> Result<(), Error> {
    let draft = path.with_extension("new");
    let text = text(value, path)?;
    let mut file = fs::File::create(&draft).map_err(Error::file("make", &draft))?;
    file.write_all(&text).map_err(Error::file("write", &draft))?;
    if reach == Reach::Disk {
        // The old one is whole on the disk: the new one has to be too before it takes its place.
        file.sync_data().map_err(Error::file("write out", &draft))?;
    }
    fs::rename(&draft, path).map_err(Error::file("name", path))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", path)(error)),
    };
    // Empty where it was made ahead and nobody came to write it; anything else that is no record was left by a power failure, or is
    // of a version after this one.
    Ok(serde_json::from_slice(&text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_realm_that_a_power_cut_emptied_is_named_anew_and_one_that_is_damaged_is_named() {
        let data = tempfile::tempdir().unwrap();
        let records = Records::open(data.path()).unwrap();
        let path = data.path().join("realm");
        let first = records.realm().unwrap();
        assert_eq!(records.realm().unwrap(), first);
        for left in ["", "\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
            fs::write(&path, left).unwrap();
            let again = records.realm().unwrap();
            assert!(again.starts_with("cove-") && again != first, "{again}");
            assert_eq!(records.realm().unwrap(), again);
        }
        for wrong in ["cove-12", "garbage", "cove-../../x"] {
            fs::write(&path, wrong).unwrap();
            assert!(records.realm().unwrap_err().to_string().contains("put its old text back"));
        }
    }

    #[test]
    fn engines_that_open_at_once_have_one_realm() {
        let data = tempfile::tempdir().unwrap();
        let records = Records::open(data.path()).unwrap();
        let realms = std::thread::scope(|scope| {
            let named: Vec<_> = (0..8).map(|_| scope.spawn(|| records.realm().unwrap())).collect();
            named.into_iter().map(|one| one.join().unwrap()).collect::<std::collections::BTreeSet<_>>()
        });
        assert_eq!(realms.len(), 1);
    }
}
