//! Settings of namespaces: files below `/proc/sys`, which show those of the process that opens them.
//!
//! The kernel caches a name below `/proc/sys` once for every namespace that opened it, in one chain per mount of
//! `/proc`: with 3,000 sandboxes a quarter of a launch went into walking it. So settings are made through private
//! mounts, which are replaced now and then; the cache goes with the old one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::root;

/// Namespaces that share a mount.
const USES: u32 = 64;

#[derive(Debug)]
pub(crate) struct Settings {
    /// The host's at first: a process that makes few namespaces needs no other.
    proc: Arc<OwnedFd>,
    uses: u32,
}

impl Settings {
    pub(crate) fn new(host: OwnedFd) -> Settings {
        Settings { proc: Arc::new(host), uses: 0 }
    }

    /// A `/proc` for the settings of one more namespace.
    pub(crate) fn proc(&mut self) -> Arc<OwnedFd> {
        if self.uses == USES {
            self.uses = 0;
            // An ordinary user may mount none and stays with what there is.
            if let Ok(new) = root::detached_proc() {
                self.proc = Arc::new(new);
            }
        }
        self.uses += 1;
        Arc::clone(&self.proc)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::fstat;

    use super::*;
    use crate::spawner::empty::open_proc;

    #[test]
    fn a_mount_serves_so_many_namespaces_and_is_replaced() {
        let mut settings = Settings::new(open_proc().expect("the host's /proc"));
        let mut mounts: Vec<u64> =
            (0..3 * USES).map(|_| fstat(settings.proc().as_fd()).expect("stat").st_dev).collect();
        mounts.dedup();
        // Numbers of mounts that are gone are given again.
        let expected = if root::detached_proc().is_ok() { 2..=3 } else { 1..=1 };
        assert!(expected.contains(&mounts.len()), "{mounts:?}");
    }
}
