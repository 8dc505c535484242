//! How much room there is, and how much of it is left to others.

use std::path::Path;

use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use super::Error;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

impl Space {
    pub fn of(path: &Path) -> Result<Space, Error> {
        let told = statvfs(path).map_err(Error::at("ask the size of", path))?;
        Ok(Space { free: told.f_bavail * told.f_frsize, total: told.f_blocks * told.f_frsize })
    }

    /// What the pool leaves to everything else on the host's filesystem: the database, archives, logs.
    pub(super) fn kept(self) -> u64 {
        (self.total / 10).min(4 * GIB)
    }

    /// What the pool has free ahead of its writers, by the size of the filesystem below: a writer must not be faster than
    /// the look that makes more room.
    pub(super) fn headroom(self) -> u64 {
        (self.total / 64).clamp(64 * MIB, GIB)
    }
}

/// Where sandboxes' files are kept, as it is at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The filesystem of the data directory.
    pub host: Space,
    /// The pool's own, where there is one.
    pub pool: Option<Space>,
    /// Why nothing can be written, where that is so.
    pub broken: Option<String>,
    /// Blocks of the pool's image that the filesystem below has not set aside: where it fills up, they cannot be written.
    pub unbacked: u64,
}

impl Health {
    /// Why there is no room for more, if `kept` bytes shall stay free on the host. Of a small disk a twentieth stays free.
    pub fn refusal(&self, kept: u64) -> Option<String> {
        if let Some(reason) = &self.broken {
            return Some(format!("the storage of this server has failed: {reason}"));
        }
        let kept = kept.min(self.host.total / 20);
        let needed = kept + self.unbacked;
        if self.host.free < needed {
            let (free, total) = (words(self.host.free), words(self.host.total));
            return Some(format!(
                "this server's disk is nearly full: {free} of {total} are left, {} are kept free; make room on it",
                words(needed)
            ));
        }
        let pool = self.pool?;
        // Metadata of a filesystem that is full to the brim cannot be written either.
        let least = (pool.total / 32).min(64 * MIB);
        // One that can grow is full for a moment at most.
        if pool.free < least && self.host.free <= self.host.kept() + least {
            let (free, total) = (words(pool.free), words(pool.total));
            return Some(format!(
                "the storage of sandboxes' files is full: {free} of {total} are left and this server's disk has no room \
                 for more; make room on it, or destroy sandboxes"
            ));
        }
        None
    }
}

fn words(bytes: u64) -> String {
    if bytes >= GIB { format!("{:.1} GiB", bytes as f64 / GIB as f64) } else { format!("{} MiB", bytes / MIB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_is_full() {
        let space = |free, total| Space { free, total };
        let mut health = Health { host: space(50 * GIB, 100 * GIB), pool: None, broken: None, unbacked: 0 };
        assert_eq!(health.refusal(2 * GIB), None);
        health.host.free = GIB;
        assert!(
            health.refusal(2 * GIB).unwrap().contains("nearly full: 1.0 GiB of 100.0 GiB are left, 2.0 GiB are kept")
        );
        // A small disk keeps less.
        health.host = space(100 * MIB, GIB);
        assert_eq!(health.refusal(2 * GIB), None);
        health.unbacked = 200 * MIB;
        assert!(health.refusal(2 * GIB).is_some(), "what the pool was promised is not free");
        health.unbacked = 0;
        health.pool = Some(space(MIB, GIB));
        health.host = space(50 * GIB, 100 * GIB);
        assert_eq!(health.refusal(2 * GIB), None, "it grows");
        health.host.free = 4 * GIB;
        assert!(health.refusal(2 * GIB).unwrap().contains("storage of sandboxes' files is full"));
        health.broken = Some("it is read-only".into());
        assert!(health.refusal(0).unwrap().ends_with("has failed: it is read-only"));
    }
}
