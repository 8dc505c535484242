//! Project quotas of ext4 and xfs: every sandbox's directory has a project number that all in it inherits, and the
//! filesystem counts bytes and inodes per number.
//!
//! A sandbox cannot leave its project: the number is changed from the initial user namespace only. One exception is the
//! process that mounts the overlay: ext4 lets `CAP_SYS_RESOURCE` of the initial user namespace write past the limit,
//! and an overlay writes with the rights of who mounted it. So the overlay has to be mounted from within the sandbox's
//! user namespace.
//!
//! Numbers are kept nowhere but on the directories; a free one is found by asking.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cove_sys::quota;

use super::{Backing, Error, Kind, Used, copy, drafts, layers, list, make_directory, trash, trash_of, uppers, volumes};
use crate::spec::Limits;

/// Away from what people number by hand in /etc/projects.
const FIRST: u32 = 0x4000_0000;
const EXT4_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

#[derive(Debug)]
pub(super) struct Projects {
    top: PathBuf,
    next: AtomicU32,
}

impl Projects {
    /// Where the data directory's filesystem is mounted with project quotas and enforces them.
    pub(super) fn on(data: &Path, top: &Path) -> Option<Projects> {
        let magic = rustix::fs::statfs(data).ok()?.f_type as u64;
        if !matches!(magic, EXT4_MAGIC | XFS_MAGIC) || !is_enforced(data)? {
            return None;
        }
        quota::get(File::open(data).ok()?, FIRST).ok()?;
        Some(Projects { top: top.to_owned(), next: AtomicU32::new(FIRST) })
    }

    /// A number that nobody has: not counted by the filesystem and not limited.
    fn free_number(&self, directory: &File, path: &Path) -> Result<u32, Error> {
        for _ in 0..1 << 20 {
            let number = self.next.fetch_add(1, Ordering::Relaxed).max(FIRST);
            let told = quota::get(directory, number).map_err(Error::at("ask the quota of", path))?;
            if told == quota::Quota::default() {
                return Ok(number);
            }
        }
        Err(Error::at("find a free project for", path)(std::io::Error::from(std::io::ErrorKind::QuotaExceeded)))
    }

    fn give_project(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        let directory = open(path)?;
        let number = self.free_number(&directory, path)?;
        // The limit first: from the moment the directory has the number it holds.
        set_limit(&directory, number, limits).map_err(Error::at("limit", path))?;
        quota::set_project(&directory, number).map_err(Error::at("give a project to", path))
    }
}

impl Backing for Projects {
    fn kind(&self) -> Kind {
        Kind::Projects
    }

    fn detail(&self) -> String {
        "project quotas of the data directory's filesystem".into()
    }

    fn adopt(&self) -> Result<(), Error> {
        let mut highest = FIRST;
        let top = &self.top;
        for directory in [uppers(top), trash_of(top), layers::folder(top), drafts(top), volumes::folder(top)] {
            for name in list(&directory)? {
                let project = File::open(directory.join(name)).and_then(quota::project_of).unwrap_or(0);
                highest = highest.max(project.saturating_add(1));
            }
        }
        self.next.store(highest, Ordering::Relaxed);
        Ok(())
    }

    fn make_bare(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        make_directory(path)?;
        self.give_project(path, limits).inspect_err(|_| {
            // The first error is the one to report; the sweep finds what stays.
            let _ = self.erase(path);
        })
    }

    fn set_limit(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        let directory = open(path)?;
        let set = || set_limit(&directory, quota::project_of(&directory)?, limits);
        set().map_err(Error::at("limit", path))
    }

    fn used(&self, path: &Path) -> Result<Used, Error> {
        let directory = open(path)?;
        let told = quota::project_of(&directory).and_then(|project| quota::get(&directory, project));
        let told = told.map_err(Error::at("ask the quota of", path))?;
        Ok(Used { bytes: told.bytes, inodes: Some(told.inodes) })
    }

    fn erase(&self, path: &Path) -> Result<(), Error> {
        let project = File::open(path).and_then(quota::project_of).unwrap_or(0);
        trash::delete(path)?;
        if project >= FIRST {
            // Its limit is removed too, so that the number is free again.
            let top = open(&self.top)?;
            quota::set(&top, project, 0, 0).map_err(Error::at("free the project of", path))?;
        }
        Ok(())
    }

    fn duplicate(&self, from: &Path, to: &Path, limits: &Limits) -> Result<(), Error> {
        make_directory(to)?;
        self.give_project(to, limits)?;
        copy::tree(from, to)
    }
}

fn set_limit(directory: &File, project: u32, limits: &Limits) -> std::io::Result<()> {
    let (bytes, inodes) = quotas(limits);
    quota::set(directory, project, bytes, inodes)
}

/// Bytes and inodes; 0 is no limit. An ext4 has one inode for every 16 KiB and an empty file takes no block: who may have
/// bytes only could take the inodes of all. So a limit on bytes brings one on inodes along, wide enough for small files.
fn quotas(limits: &Limits) -> (u64, u64) {
    const BYTES_PER_INODE: u64 = 8192;
    const LEAST_INODES: u64 = 65_536;
    let share = limits.disk.map_or(0, |bytes| (bytes / BYTES_PER_INODE).max(LEAST_INODES));
    (limits.disk.unwrap_or(0), limits.inodes.unwrap_or(share))
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(Error::at("open", path))
}

/// Whether the mount of `data` has the option: without it ext4 counts and does not limit.
fn is_enforced(data: &Path) -> Option<bool> {
    let data = fs::canonicalize(data).ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    options_of(&mounts, &data).map(|options| options.split(',').any(|option| matches!(option, "prjquota" | "pquota")))
}

/// The options of the mount nearest above `path`; of several at one place the last one counts.
fn options_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let parse = |line: &'a str| {
        let mut fields = line.split(' ').skip(1);
        let (at, _kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        path.starts_with(at).then_some((at.len(), options))
    };
    mounts.lines().filter_map(parse).max_by_key(|(length, _)| *length).map(|(_, options)| options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_limit_on_bytes_is_one_on_inodes_too() {
        let of = |disk, inodes| quotas(&Limits { disk, inodes, ..Limits::default() });
        assert_eq!(of(Some(8 << 30), None), (8 << 30, 1 << 20));
        assert_eq!(of(Some(4096), None), (4096, 65_536));
        assert_eq!(of(Some(4096), Some(7)), (4096, 7));
        assert_eq!(of(None, None), (0, 0));
    }

    #[test]
    fn the_nearest_mount_counts() {
        let mounts =
            "/dev/a / ext4 rw,relatime 0 0\n/dev/b /var/lib xfs rw,prjquota 0 0\n/dev/c /var/lib/x ext4 rw 0 0\n";
        assert_eq!(options_of(mounts, Path::new("/var/lib/cove")), Some("rw,prjquota"));
        assert_eq!(options_of(mounts, Path::new("/var/lib/x/cove")), Some("rw"));
        assert_eq!(options_of(mounts, Path::new("/var/library")), Some("rw,relatime"));
    }

    /// On a loop device. Many kernels have no quotas for ext4 (CONFIG_QFMT_V2) or xfs (CONFIG_XFS_QUOTA); an xfs has projects
    /// all the same, so the numbers and their inheritance are shown there, and the limit where there is one.
    #[test]
    fn what_is_made_in_a_project_belongs_to_it() {
        if !cove_testkit::need::root() {
            return;
        }
        let tool = Command::new("mkfs.xfs").arg("-V").output();
        assert!(tool.is_ok(), "mkfs.xfs is missing; `make test` installs it (package xfsprogs)");
        let folder = tempfile::tempdir().unwrap();
        let (image, at) = (folder.path().join("image"), folder.path().join("at"));
        fs::create_dir(&at).unwrap();
        File::create(&image).unwrap().set_len(512 << 20).unwrap();
        assert!(Command::new("mkfs.xfs").arg("-q").arg(&image).status().unwrap().success());
        let mount = |options: &str| {
            Command::new("mount").args(["-o", options]).arg(&image).arg(&at).output().unwrap().status.success()
        };
        let enforced = mount("loop,prjquota");
        assert!(enforced || mount("loop"), "an xfs can be mounted");
        if !enforced {
            eprintln!(
                "not applicable: the limit itself, since this kernel has no CONFIG_XFS_QUOTA; numbers are checked"
            );
        }
        let check = || -> Result<(), Error> {
            let directory = at.join("sandbox");
            make_directory(&directory)?;
            let opened = open(&directory)?;
            quota::set_project(&opened, FIRST + 7).map_err(Error::at("give a project to", &directory))?;
            make_directory(&directory.join("inner"))?;
            let inner = quota::project_of(open(&directory.join("inner"))?).map_err(Error::at("ask", &directory))?;
            assert_eq!(inner, FIRST + 7);
            assert_eq!(Projects::on(&at, &at).is_some(), enforced);
            if let Some(projects) = Projects::on(&at, &at) {
                let limits = Limits { disk: Some(4 << 20), inodes: Some(50), ..Limits::default() };
                let path = at.join("limited");
                projects.make(&path, &limits)?;
                assert!(
                    fs::write(path.join("root/large"), vec![1; 8 << 20]).is_err()
                        || projects.used(&path)?.bytes <= 4 << 20
                );
                projects.erase(&path)?;
            }
            Ok(())
        };
        let result = check();
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
        result.unwrap();
    }
}
