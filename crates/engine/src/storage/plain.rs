//! The last rung: ordinary directories. Nothing holds a limit here, so a limit is refused.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Backing, Error, Kind, Used, copy, make_directory, make_upper, trash};
use crate::spec::Limits;

#[derive(Debug)]
pub(super) struct Plain {
    /// Why nothing better was to be had.
    pub(super) why: String,
}

impl Plain {
    fn refuse_limit(&self, limits: &Limits) -> Result<(), Error> {
        match limits.disk {
            Some(limit) => Err(Error::NoLimits { limit, why: self.why.clone() }),
            None => Ok(()),
        }
    }
}

impl Backing for Plain {
    fn kind(&self) -> Kind {
        Kind::Plain
    }

    fn detail(&self) -> String {
        format!("plain directories without disk limits: {}", self.why)
    }

    fn make(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        self.refuse_limit(limits)?;
        make_directory(path)?;
        make_upper(path).map(|_| ())
    }

    fn set_limit(&self, _path: &Path, limits: &Limits) -> Result<(), Error> {
        self.refuse_limit(limits)
    }

    /// Counted file by file: the time it takes grows with their number.
    fn used(&self, path: &Path) -> Result<Used, Error> {
        let mut used = Used { bytes: 0, inodes: Some(0) };
        let mut pending = vec![path.to_owned()];
        while let Some(directory) = pending.pop() {
            // The sandbox lives: entries come and go while we look.
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                used.bytes += metadata.blocks() * 512;
                used.inodes = used.inodes.map(|count| count + 1);
                if metadata.is_dir() {
                    pending.push(entry.path());
                }
            }
        }
        Ok(used)
    }

    fn erase(&self, path: &Path) -> Result<(), Error> {
        trash::delete(path)
    }

    fn duplicate(&self, from: &Path, to: &Path, limits: &Limits) -> Result<(), Error> {
        self.refuse_limit(limits)?;
        make_directory(to)?;
        copy::tree(from, to)
    }
}
