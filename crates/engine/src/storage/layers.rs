//! Layers: read-only trees of files that many sandboxes share.
//!
//! A layer has the shape of an upper: `root/`, and over the host's files `usr/`. It lies on the filesystem of the uppers,
//! so that either becomes the other by a snapshot. Owners (0-based), modes, attributes, hard links, holes and whiteouts are
//! kept as they are; id-mapped mounts make them harmless.
//!
//! ```text
//!   draft ──fill──▶ seal ───────────────▶ layers/<id>      written out first, then named
//!   upper ──────────capture (snapshot) ─▶ layers/<id>      one act of the kernel's
//!   layers/<id> ──hold── a launch                          flock(2), shared
//!   layers/<id> ──remove──▶ trash                          flock(2), exclusive
//! ```
//! The facts of a layer are in a file beside it, which is written before the layer has its name: a file without a layer is
//! what a crash left ([`sweep`]). A draft has the name of its maker, and goes when that process is gone.
//!
//! Earlier versions kept layers in `<data>/layers`; they are found there until they are moved.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, RenameFlags, flock, fstat, fsync, mkdirat, renameat_with, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{
    Backing, Error, HERITAGE, INHERITED, Kind, NAMES, Rung, Store, UNLIMITED, copy, drafts, exchange, export, import,
    inherited, list, manifest, merge, note, open_directory, packages, plain, trash, trash_of, uppers,
};
use crate::process;
use crate::spec::{LayerId, Limits, Root, SandboxId, Under};

/// The folders of a layer.
pub(super) const PARTS: [&str; 2] = [NAMES[0], NAMES[2]];

/// The ending of a file with facts.
pub(super) const FACTS: &str = "json";

/// A layer of an earlier version whose files are in the pool by now, while sandboxes may still be mounted on it.
const MOVED: &str = "moved-";

/// What is known about a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerInfo {
    pub id: LayerId,
    /// What it takes on disk, if nothing in it is shared with another.
    pub bytes: u64,
    /// Files and directories; `None` where counting them would take longer than making the layer.
    pub files: Option<u64>,
    /// What it was captured over; `None` where it stands on its own.
    pub beneath: Option<Root>,
    pub made: SystemTime,
}

#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    bytes: u64,
    #[serde(default)]
    files: Option<u64>,
    #[serde(default)]
    beneath: Option<Root>,
    /// The process that makes the layer ([`process::mark`]).
    maker: String,
}

/// A layer that stays for as long as this lives.
#[derive(Debug)]
pub struct HeldLayer {
    pub id: LayerId,
    pub path: PathBuf,
    directory: OwnedFd,
}

impl HeldLayer {
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Its directory. The layer stays for as long as the descriptor is open.
    pub fn into_directory(self) -> OwnedFd {
        self.directory
    }

    /// One of its folders, `root` or `usr`; `None` where it has none.
    pub fn part(&self, name: &str) -> Result<Option<OwnedFd>, Error> {
        match open_directory(&self.directory, name) {
            Ok(part) => Ok(Some(part)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::at("open", &self.path.join(name))(errno)),
        }
    }
}

pub(super) fn folder(top: &Path) -> PathBuf {
    top.join("layers")
}

/// Where earlier versions kept them.
fn old_folder(data: &Path) -> PathBuf {
    data.join("layers")
}

/// Whether a layer of a data directory is certainly not there. Opens and mounts nothing: a pool that is not mounted may
/// have it.
pub fn is_missing(data: &Path, id: &LayerId) -> bool {
    let missing = |data: &Path| {
        let name = id.to_string();
        let unseen = data.join("pool.btrfs").exists() && !folder(&data.join("pool")).exists();
        let places = [folder(&data.join("pool")), folder(&data.join("storage")), old_folder(data)];
        !unseen && !places.iter().any(|place| place.join(&name).is_dir())
    };
    missing(data) && linked(data).is_none_or(|other| missing(&other))
}

/// The data directory that this one shares the layers of: a person, or a test, made `layers` a link.
pub(crate) fn linked(data: &Path) -> Option<PathBuf> {
    let link = fs::read_link(old_folder(data)).ok()?;
    let other = data.join(link).parent()?.to_owned();
    other.is_dir().then_some(other)
}

/// What crashes left: drafts of dead processes, and facts without a layer.
pub(super) fn sweep(top: &Path, backing: &dyn Backing) -> Result<(), Error> {
    for name in list(&drafts(top))? {
        if process::is_of_the_dead(&name) {
            let (draft, gone) = (drafts(top).join(&name), trash_of(top).join(format!("draft-{name}")));
            match fs::rename(&draft, &gone) {
                // Another engine was quicker.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(Error::at("move to the trash", &draft))?,
            }
            // A copy may be large: the background deletes it. A subvolume is gone at once.
            if matches!(backing.kind(), Kind::Btrfs | Kind::Pool) {
                backing.erase(&gone)?;
            }
        }
    }
    let folder = folder(top);
    for name in list(&folder)? {
        let Some(id) = name.strip_suffix(".json") else { continue };
        let path = folder.join(&name);
        let orphaned =
            !folder.join(id).exists() && read_facts(&path).is_none_or(|facts| process::is_of_the_dead(&facts.maker));
        if orphaned {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::at("remove", &path)(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn read_facts(path: &Path) -> Option<Facts> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

impl Store {
    /// An empty directory that becomes a layer, with a limit on what is put into it (plain directories hold none).
    pub fn draft(self: &Arc<Self>, limit: Option<u64>) -> Result<Draft, Error> {
        self.begin_draft(limit, |backing, path, limits| backing.make_bare(path, limits))
    }

    /// A draft that begins with all that is in a layer.
    pub fn draft_from(self: &Arc<Self>, id: &LayerId, limit: Option<u64>) -> Result<Draft, Error> {
        let held = self.hold_layer(id)?;
        let draft =
            self.begin_draft(limit, |backing, path, limits| self.duplicate(backing, &held.path, path, limits))?;
        if !self.backing()?.1.counts_what_is_shared() {
            note(&draft.path, INHERITED, self.info(id, &held.path)?.bytes)?;
        }
        Ok(draft)
    }

    fn begin_draft(
        self: &Arc<Self>,
        limit: Option<u64>,
        make: impl FnOnce(&dyn Backing, &Path, &Limits) -> Result<(), Error>,
    ) -> Result<Draft, Error> {
        let (top, backing) = self.backing()?;
        let path = drafts(top).join(process::mark());
        let limit = limit.filter(|_| backing.kind() != Kind::Plain);
        // Half of it would be swept only once this process is gone.
        make(&**backing, &path, &Limits { disk: limit, ..UNLIMITED }).inspect_err(|_| {
            let _ = backing.erase(&path);
        })?;
        let directory = open_directory(CWD, &path).map_err(Error::at("open", &path))?;
        Ok(Draft { store: Arc::clone(self), path, directory })
    }

    /// A copy of a layer or an upper; a snapshot where it lies on the same filesystem.
    fn duplicate(&self, backing: &dyn Backing, from: &Path, to: &Path, limits: &Limits) -> Result<(), Error> {
        // No subvolume, and perhaps not on the pool's filesystem.
        if from.starts_with(old_folder(&self.data)) {
            backing.make_bare(to, limits)?;
            let source = open_directory(CWD, from).map_err(Error::at("open", from))?;
            return copy::parts(source.as_fd(), to, &PARTS);
        }
        backing.duplicate(from, to, limits)
    }

    /// Where it lies.
    fn find_layer(&self, id: &LayerId) -> Result<Option<PathBuf>, Error> {
        let name = id.to_string();
        if let Some((top, _)) = self.used_backing()? {
            let path = folder(top).join(&name);
            if path.is_dir() {
                return Ok(Some(path));
            }
        }
        Ok(Some(old_folder(&self.data).join(name)).filter(|path| path.is_dir()))
    }

    pub fn layer(&self, id: &LayerId) -> Result<Option<LayerInfo>, Error> {
        self.find_layer(id)?.map(|path| self.info(id, &path)).transpose()
    }

    fn info(&self, id: &LayerId, path: &Path) -> Result<LayerInfo, Error> {
        let file = facts_beside(path);
        let dated = |path: &Path| fs::metadata(path).and_then(|told| told.modified());
        if let Some(facts) = read_facts(&file) {
            let made = dated(&file).unwrap_or(SystemTime::UNIX_EPOCH);
            return Ok(LayerInfo { id: *id, bytes: facts.bytes, files: facts.files, beneath: facts.beneath, made });
        }
        // One of an earlier version.
        let counted = plain::count(path)?;
        let made = dated(path).unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(LayerInfo { id: *id, bytes: counted.bytes, files: counted.inodes, beneath: None, made })
    }

    /// All layers of this data directory.
    pub fn layers(&self) -> Result<Vec<LayerId>, Error> {
        let mut names = match self.used_backing()? {
            Some((top, _)) => list(&folder(top))?,
            None => Vec::new(),
        };
        if self.has_old_layers() {
            names.extend(list(&old_folder(&self.data))?);
        }
        let mut ids: Vec<LayerId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Keeps a layer from being removed.
    pub fn hold_layer(&self, id: &LayerId) -> Result<HeldLayer, Error> {
        while let Some(path) = self.find_layer(id)? {
            let directory = match open_directory(CWD, &path) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(Error::at("open", &path))?,
            };
            rustix::io::retry_on_intr(|| flock(&directory, FlockOperation::LockShared))
                .map_err(Error::at("lock", &path))?;
            // It may have been removed between the look and the lock.
            let same = || -> Result<bool, Errno> {
                let (held, named) = (fstat(&directory)?, statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW)?);
                Ok((held.st_dev, held.st_ino) == (named.st_dev, named.st_ino))
            };
            if same().unwrap_or(false) {
                return Ok(HeldLayer { id: *id, path, directory });
            }
        }
        Err(Error::LayerMissing(*id))
    }

    /// Removes a layer: a rename, whatever its size; [`Store::empty_trash`] does the rest. `false` where somebody holds it.
    /// Already gone: nothing to do.
    pub fn remove_layer(&self, id: &LayerId) -> Result<bool, Error> {
        self.remove_layer_unless(id, || Ok::<_, Error>(false))
    }

    /// As [`Store::remove_layer`]; `false` also where `is_needed`. That is asked while nobody can take hold of the layer: whoever
    /// notes a need before it takes hold is never missed.
    pub fn remove_layer_unless<E: From<Error>>(
        &self,
        id: &LayerId,
        is_needed: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Some(path) = self.find_layer(id)? else { return Ok(true) };
        let lock = match open_directory(CWD, &path) {
            Err(Errno::NOENT) => return Ok(true),
            other => other.map_err(Error::at("open", &path))?,
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(false),
            other => other.map_err(Error::at("lock", &path))?,
        }
        if is_needed()? {
            return Ok(false);
        }
        let Some((top, _)) = self.used_backing()?.filter(|(top, _)| path.starts_with(folder(top))) else {
            self.remove_old(&path)?;
            return Ok(true);
        };
        // First: another layer may get the name, and it must not be measured by this one's manifest.
        manifest::forget(top, &id.to_string())?;
        self.throw_away(top, &path, &format!("layer-{id:.12}"))?;
        let facts = facts_beside(&path);
        match fs::remove_file(&facts) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::at("remove", &facts)(error).into()),
            _ => {}
        }
        // Whoever is told forgets it: after a power cut nobody would look for it again.
        name_is_on_disk(&folder(top))?;
        Ok(true)
    }

    /// Writes a layer as a tar archive, for another machine ([`Draft::unpack`]). It stays until this returns.
    pub fn export_layer<W: Write>(&self, id: &LayerId, writer: W) -> Result<W, Error> {
        let held = self.hold_layer(id)?;
        export::write_layer(&held.path, writer)
    }

    /// What a sandbox has written, as it is at this instant, becomes a layer. The caller freezes one that runs. A layer that is
    /// there already is what an earlier call made.
    pub fn capture(self: &Arc<Self>, id: &SandboxId, layer: &LayerId, beneath: &Root) -> Result<LayerInfo, Error> {
        if let Some(made) = self.layer(layer)? {
            return Ok(made);
        }
        let upper = self.existing(id)?;
        let (top, backing) = self.backing()?;
        let path = folder(top).join(layer.to_string());
        let bytes = backing.used(&upper)?.bytes + inherited(&upper);
        // Before the snapshot: a layer is never there without its facts.
        let facts = Facts { bytes, files: None, beneath: Some(beneath.clone()), maker: process::mark() };
        write_facts(&path, &facts)?;
        match backing.snapshot(&upper, &path) {
            Some(Ok(())) => {
                for work in [NAMES[1], NAMES[3]] {
                    trash::delete(&path.join(work))?;
                }
                self.info(layer, &path)
            }
            Some(Err(error)) => {
                // The first error is the one to tell; the sweep finds what stays.
                let _ = fs::remove_file(facts_beside(&path));
                Err(error)
            }
            None => {
                let files = open_directory(CWD, &upper).map_err(Error::at("open", &upper))?;
                self.capture_files(files.as_fd(), layer, beneath)
            }
        }
    }

    /// The same of files that no snapshot can be made of: they are copied.
    pub fn capture_files(
        self: &Arc<Self>,
        files: BorrowedFd<'_>,
        layer: &LayerId,
        beneath: &Root,
    ) -> Result<LayerInfo, Error> {
        let draft = self.draft(None)?;
        copy::parts(files, &draft.path, &PARTS)?;
        draft.name(layer, Some(beneath))
    }

    /// A stopped sandbox's files become those of a layer that was captured from it; what they were is gone unless it was
    /// captured. There is no moment at which the sandbox has neither.
    pub fn roll_back(&self, id: &SandboxId, layer: &LayerId, limits: &Limits) -> Result<(), Error> {
        let upper = self.existing(id)?;
        let held = self.hold_layer(layer)?;
        let (top, backing) = self.backing()?;
        manifest::forget(top, id.as_str())?;
        let draft = drafts(top).join(process::mark());
        let bytes = self.info(layer, &held.path)?.bytes;
        let is_shared = !backing.counts_what_is_shared();
        // Nobody changes a layer: it can be counted where its size on account is too large a guess.
        let heritage = match limits.disk {
            Some(limit) if is_shared && bytes > limit => {
                plain::count_within(&held.path, HERITAGE)?.map_or(bytes, |counted| counted.bytes.min(bytes))
            }
            _ => bytes,
        };
        let made = self
            .duplicate(&**backing, &held.path, &draft, limits)
            .and_then(|()| self.as_upper(&draft, heritage))
            .and_then(|()| if is_shared { self.inherit(id, &draft, heritage, limits) } else { Ok(()) })
            .and_then(|()| write_out(&draft))
            .and_then(|()| exchange(&draft, &upper));
        // What was the sandbox's, or what was to be.
        let gone = self.throw_away(top, &draft, id.as_str());
        made.and(gone)?;
        name_is_on_disk(&uppers(top))
    }

    /// One layer out of several, top first: who starts from it sees what it would see with them in its stack. `beneath` is
    /// what the lowest lies on.
    pub fn flatten(self: &Arc<Self>, layers: &[LayerId], beneath: &Root, new: &LayerId) -> Result<LayerInfo, Error> {
        if let Some(made) = self.layer(new)? {
            return Ok(made);
        }
        let Some((lowest, above)) = layers.split_last() else {
            return Err(Error::Draft { why: "there are no layers to merge".into() });
        };
        let draft = self.draft_from(lowest, None)?;
        let alone = beneath.under == Under::Nothing && beneath.over.is_empty();
        for layer in above.iter().rev() {
            let held = self.hold_layer(layer)?;
            merge::apply(&held, &draft.path)?;
        }
        if alone {
            merge::drop_marks(&draft.path)?;
        }
        draft.name(new, Some(beneath).filter(|_| !alone))
    }

    /// Whether there is a directory of an earlier version. A link's layers are another's.
    pub fn has_old_layers(&self) -> bool {
        old_folder(&self.data).symlink_metadata().is_ok_and(|found| found.is_dir())
    }

    /// Moves the layers of an earlier version into the pool, unless `<data>/layers` is a link. Their files stay where they
    /// were, under another name, while a sandbox may be mounted on them ([`Store::forget_old_layers`]).
    pub fn take_in_old_layers(self: &Arc<Self>) -> Result<(), Error> {
        if !self.has_old_layers() {
            return Ok(());
        }
        let old = old_folder(&self.data);
        for name in list(&old)? {
            let Ok(id) = name.parse::<LayerId>() else { continue };
            let path = old.join(&name);
            let (top, _): &Rung = self.backing()?;
            if !folder(top).join(&name).is_dir() {
                let draft = self.draft(None)?;
                let source = open_directory(CWD, &path).map_err(Error::at("open", &path))?;
                copy::parts(source.as_fd(), &draft.path, &PARTS)?;
                draft.name(&id, None)?;
            }
            let moved = old.join(format!("{MOVED}{name}"));
            fs::rename(&path, &moved).map_err(Error::at("rename", &path))?;
        }
        Ok(())
    }

    /// Deletes what [`Store::take_in_old_layers`] left. No sandbox of this data directory runs.
    pub fn forget_old_layers(&self) -> Result<(), Error> {
        if !self.has_old_layers() {
            return Ok(());
        }
        let old = old_folder(&self.data);
        // "removed-" is what versions before gave to those that were going.
        for name in list(&old)?.iter().filter(|name| name.starts_with(MOVED) || name.starts_with("removed-")) {
            trash::delete(&old.join(name))?;
        }
        // Anything else in it is somebody's.
        let _ = fs::remove_dir(old);
        Ok(())
    }

    fn remove_old(&self, path: &Path) -> Result<(), Error> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let going = path.with_file_name(format!("removed-{name}"));
        fs::rename(path, &going).map_err(Error::at("rename", path))?;
        trash::delete(&going)
    }
}

/// A layer in the making. Dropping it removes what is there.
#[derive(Debug)]
pub struct Draft {
    store: Arc<Store>,
    path: PathBuf,
    directory: OwnedFd,
}

impl Draft {
    /// For programs that need one; its name is nobody's business but this process's.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Its folder `root`, made where it is missing: what is put there is at `/` of a sandbox.
    pub fn root(&self) -> Result<OwnedFd, Error> {
        let name = PARTS[0];
        match mkdirat(&self.directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::at("make", &self.path)(errno)),
        }
        open_directory(&self.directory, name).map_err(Error::at("open", &self.path))
    }

    /// Fills it with what [`Store::export_layer`] wrote. The archive may come from anybody.
    pub fn unpack(&self, reader: impl Read) -> Result<(), Error> {
        import::read_layer(&self.path, reader)
    }

    /// Bytes that are in it so far.
    pub fn used(&self) -> Result<u64, Error> {
        Ok(self.store.backing()?.1.used(&self.path)?.bytes)
    }

    /// Makes it a layer that stands on its own. A layer of that name that is there already stays, and the draft goes.
    pub fn seal(self, id: &LayerId) -> Result<LayerInfo, Error> {
        self.name(id, None)
    }

    /// Makes it a layer with the digest of its content for a name: everything becomes root's, with one time and no
    /// set-user-id, so that the same packages are the same layer on every machine.
    pub fn seal_by_content(self) -> Result<LayerInfo, Error> {
        let id = packages::settle(&self.path)?;
        self.name(&id, None)
    }

    fn name(self, id: &LayerId, beneath: Option<&Root>) -> Result<LayerInfo, Error> {
        let store = Arc::clone(&self.store);
        let (top, _) = store.backing()?;
        let path = folder(top).join(id.to_string());
        if path.is_dir() {
            return store.info(id, &path);
        }
        self.check()?;
        let too_deep = || Error::Draft { why: format!("its folders are more than {} deep", plain::DEEPEST) };
        let counted = plain::count_all(&self.path)?.ok_or_else(too_deep)?;
        let facts =
            Facts { bytes: counted.bytes, files: counted.inodes, beneath: beneath.cloned(), maker: process::mark() };
        write_facts(&path, &facts)?;
        // The name promises the content: it must be on the disk before the name is.
        write_out(&self.path)?;
        match renameat_with(CWD, &self.path, CWD, &path, RenameFlags::NOREPLACE) {
            // Somebody else made the same one at the same time.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::at("name", &path)(errno)),
        }
        name_is_on_disk(&folder(top))?;
        store.info(id, &path)
    }

    /// Whether it has the shape of a layer.
    fn check(&self) -> Result<(), Error> {
        let mut parts = 0;
        for name in list(&self.path)? {
            let is_part = PARTS.contains(&name.as_str()) && open_directory(&self.directory, name.as_str()).is_ok();
            if !is_part {
                return Err(Error::Draft { why: format!("it has the folders root and usr, not {name:?}") });
            }
            parts += 1;
        }
        if parts == 0 {
            return Err(Error::Draft { why: "it is empty".into() });
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Sealed: it has another name. What cannot be removed now is swept when this process is gone.
        if let Ok((top, backing)) = self.store.backing()
            && self.path.exists()
        {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let gone = trash_of(top).join(format!("draft-{name}"));
            let _ = fs::rename(&self.path, &gone).map(|()| backing.erase(&gone));
        }
    }
}

/// `layers/<id>.json`.
fn facts_beside(layer: &Path) -> PathBuf {
    layer.with_extension(FACTS)
}

fn write_facts(layer: &Path, facts: &Facts) -> Result<(), Error> {
    let path = facts_beside(layer);
    let text = serde_json::to_vec(facts).map_err(|error| Error::Draft { why: error.to_string() })?;
    let write = || {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
        file.write_all(&text)?;
        // A commit of the filesystem alone brings the file's name to the disk, not what is in it.
        file.sync_all()
    };
    write().map_err(Error::at("write", &path))
}

fn write_out(directory: &Path) -> Result<(), Error> {
    let opened = File::open(directory).map_err(Error::at("open", directory))?;
    rustix::fs::syncfs(&opened).map_err(Error::at("write out", directory))
}

/// After a rename: the directory that has the name, or has it no more, is on the disk.
pub(super) fn name_is_on_disk(directory: &Path) -> Result<(), Error> {
    let opened = open_directory(CWD, directory).map_err(Error::at("open", directory))?;
    fsync(&opened).map_err(Error::at("write out", directory))
}
