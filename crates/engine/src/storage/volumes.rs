//! Volumes: storage that outlives sandboxes and that many of them can have at once.
//!
//! A volume is a directory with a limit of its own. Sandboxes mount it with their range of ids, as they mount layers: on
//! disk ids are 0-based, so all of them see the same owners, and locks and page cache are one.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, fchown, mkdirat, openat2};
use rustix::io::Errno;

use super::layers::name_is_on_disk;
use super::{Error, Kind, Store, UNLIMITED, Used, list, open_directory};
use crate::spec::{Limits, VolumeId};

pub(super) fn folder(top: &Path) -> PathBuf {
    top.join("volumes")
}

impl Store {
    /// An empty volume, writable for every user of the sandboxes that mount it.
    pub fn make_volume(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), Error> {
        let (top, backing) = self.backing()?;
        let path = folder(top).join(id.as_str());
        match backing.make_bare(&path, &Limits { disk: limit, ..UNLIMITED }) {
            Err(error) if error.kind() == Some(std::io::ErrorKind::AlreadyExists) => {
                return Err(Error::VolumeExists(id.clone()));
            }
            other => other?,
        }
        let open = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777));
        // It outlives a power cut from now on.
        open.map_err(Error::at("open up", &path)).and_then(|()| name_is_on_disk(&folder(top))).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = backing.erase(&path);
        })
    }

    pub fn resize_volume(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), Error> {
        let path = self.volume(id)?;
        let backing = &self.backing()?.1;
        if let Some(limit) = limit {
            let used = backing.used(&path)?.bytes;
            if used > limit {
                return Err(Error::InUse { of: format!("volume {id}"), limit, used });
            }
        }
        backing.set_limit(&path, &Limits { disk: limit, ..UNLIMITED })
    }

    /// A rename: fast, whatever its size. Already gone: nothing to do. It stays away after a power cut.
    pub fn remove_volume(&self, id: &VolumeId) -> Result<(), Error> {
        let Some((top, _)) = self.used_backing()? else { return Ok(()) };
        self.throw_away(top, &folder(top).join(id.as_str()), &format!("volume-{id}"))?;
        name_is_on_disk(&folder(top))
    }

    pub fn volume_usage(&self, id: &VolumeId) -> Result<Used, Error> {
        let path = self.volume(id)?;
        self.backing()?.1.used(&path)
    }

    pub fn volumes(&self) -> Result<Vec<VolumeId>, Error> {
        let Some((top, _)) = self.used_backing()? else { return Ok(Vec::new()) };
        Ok(list(&folder(top))?.into_iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Whether a limit on a volume holds here.
    pub fn limits_volumes(&self) -> Result<bool, Error> {
        Ok(self.kind()? != Kind::Plain)
    }

    /// Its directory, for work by descriptors. What is in it was written by sandboxes: follow no link.
    pub fn volume_root(&self, id: &VolumeId) -> Result<OwnedFd, Error> {
        let path = self.volume(id)?;
        open_directory(CWD, &path).map_err(Error::at("open", &path))
    }

    /// A folder of a volume, made where it is missing; what is made belongs to `owner`. A link on the way is refused: a sandbox
    /// that had the volume before could have put it there.
    pub fn volume_folder(&self, id: &VolumeId, subpath: &Path, owner: Option<u32>) -> Result<OwnedFd, Error> {
        let mut at = self.volume_root(id)?;
        let failed = Error::at::<Errno>;
        for part in subpath.components() {
            let Component::Normal(name) = part else { return Err(failed("open in a volume", subpath)(Errno::INVAL)) };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let open = || rustix::io::retry_on_intr(|| openat2(&at, name, flags, Mode::empty(), within));
            let next = match open() {
                Err(Errno::NOENT) => {
                    match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(failed("make in a volume", subpath)(errno)),
                    }
                    let made = open().map_err(failed("open in a volume", subpath))?;
                    if let Some(owner) = owner {
                        fchown(&made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))
                            .map_err(failed("own in a volume", subpath))?;
                    }
                    made
                }
                other => other.map_err(failed("open in a volume", subpath))?,
            };
            at = next;
        }
        Ok(at)
    }

    fn volume(&self, id: &VolumeId) -> Result<PathBuf, Error> {
        let path = self.used_backing()?.map(|(top, _)| folder(top).join(id.as_str()));
        path.filter(|path| path.is_dir()).ok_or_else(|| Error::VolumeMissing(id.clone()))
    }
}
