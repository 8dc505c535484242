//! An ordinary user of this machine: an unused uid, without a name, a group or any capability.
//!
//! Tests run as root, so that they can act as such a user. The program is linked into the user's own directory: the
//! build directory may be closed to others.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::program::{Cove, cove_path};
use crate::server::{TestDirectory, TestServer};
use crate::terminal::Terminal;

/// How many ids a user has for sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    Single,
    /// A range in `/etc/subuid`, as the user sees it: in a mount namespace of its own.
    Range,
}

/// How many ids such a range has.
const RANGE: u32 = 65_536;

pub struct OrdinaryUser {
    pub place: TestDirectory,
    pub uid: u32,
    ids: Ids,
}

impl OrdinaryUser {
    #[expect(clippy::new_without_default, reason = "it makes a directory: not a default value")]
    pub fn new() -> OrdinaryUser {
        OrdinaryUser::with(Ids::Single)
    }

    /// # Panics
    /// If the tests do not run as root.
    pub fn with(ids: Ids) -> OrdinaryUser {
        assert!(rustix::process::geteuid().is_root(), "only root can be somebody else");
        let place = TestDirectory::new();
        let uid = 200_000 + std::process::id();
        prepare(place.path(), uid);
        let user = OrdinaryUser { place, uid, ids };
        user.folder("home");
        if ids == Ids::Range {
            user.write_ranges();
        }
        user
    }

    fn write_ranges(&self) {
        let passwd = fs::read_to_string("/etc/passwd").expect("read the users");
        let line = format!("covetest:x:{0}:{0}::{1}:/bin/sh\n", self.uid, self.place.path().display());
        fs::write(self.place.path().join("passwd"), passwd + &line).expect("name the user");
        for file in ["subuid", "subgid"] {
            fs::write(self.place.path().join(file), format!("covetest:{}:{RANGE}\n", self.first()))
                .expect("give a range");
        }
    }

    /// The start of the range: different for every test at the same time, and below those of root's sandboxes.
    fn first(&self) -> u32 {
        3_000_000 + self.uid % 28_000 * RANGE
    }

    /// The arguments before a program that run it as this user.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if self.ids == Ids::Range {
            let bind = "d=$1; shift; for f in passwd subuid subgid; do mount --bind $d/$f /etc/$f || exit 99; done; exec \"$@\"";
            words.extend(["unshare", "--mount", "sh", "-c", bind, "sh"].map(OsString::from));
            words.push(self.place.path().into());
        }
        let id = self.uid.to_string();
        words.extend(
            ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"].map(OsString::from),
        );
        words
    }

    pub fn program(&self) -> PathBuf {
        self.place.path().join("cove")
    }

    pub fn cove<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Cove {
        let words = self.words().into_iter().chain([self.program().into()]);
        Cove::by(words, &self.place.data())
            .env("HOME", self.place.path().join("home"))
            .env_remove("XDG_RUNTIME_DIR")
            .args(arguments)
    }

    pub fn terminal<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Terminal {
        let words = self.words().into_iter().chain([self.program().into()]);
        Terminal::start(&self.place.data(), words.chain(arguments.into_iter().map(OsString::from)))
    }

    /// A folder of the user's.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.place.path().join(name.as_ref());
        fs::create_dir(&path).expect("make a folder");
        chown(&path, Some(self.uid), Some(self.uid)).expect("give it away");
        path
    }
}

/// The command lines of processes of this user or of its range.
impl OrdinaryUser {
    pub fn processes(&self) -> Vec<String> {
        let range = if self.ids == Ids::Range { self.first()..self.first() + RANGE } else { 0..0 };
        let is_theirs = |id: u32| id == self.uid || range.contains(&id);
        let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let uid = |pid: u32| -> Option<u32> {
            let status = status(pid);
            status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
        };
        let ours = crate::leak::numbers_in("/proc").filter(|&pid| uid(pid).is_some_and(is_theirs));
        ours.map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()).collect()
    }

    /// Everything below a folder of the user's.
    pub fn files(&self, folder: &Path) -> Vec<PathBuf> {
        // A link may lead anywhere.
        let is_link = folder.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let entries = if is_link { None } else { fs::read_dir(folder).ok() };
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        paths.flat_map(|path| self.files(&path).into_iter().chain([path])).collect()
    }

    /// A server of this user, in a directory of its own.
    pub fn serve(&self) -> TestServer {
        TestServer::start_by(self.words(), |directory| {
            prepare(directory, self.uid);
            directory.join("cove")
        })
    }
}

/// A server of an ordinary user with a single id.
pub fn serve() -> TestServer {
    let uid = 200_000 + std::process::id();
    let id = uid.to_string();
    let words = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"].map(OsString::from);
    TestServer::start_by(words.to_vec(), |directory| {
        prepare(directory, uid);
        directory.join("cove")
    })
}

/// The directory becomes the user's, with the program in it.
fn prepare(directory: &Path, uid: u32) {
    let program = directory.join("cove");
    if fs::hard_link(cove_path(), &program).is_err() {
        fs::copy(cove_path(), &program).expect("copy the program");
    }
    fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("open the directory");
    chown(directory, Some(uid), Some(uid)).expect("give the directory away");
}
