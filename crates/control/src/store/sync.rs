//! What is committed is on the disk before anybody is told: one sync for all who wait at a time.
//!
//! SQLite in WAL mode with `synchronous = NORMAL` appends a commit to its log and does not sync it. Here whoever has to
//! rely on a commit waits for a sync of the log that began after it. Several who wait share one, and nobody holds the
//! connection that writes meanwhile:
//!
//! ```text
//!   commit 1 ─ wait ┐
//!   commit 2 ─ wait ┴ sync ─────── both answered
//!            commit 3 ─ wait ┐
//!            commit 4 ─ wait ┴──── sync ─────── both answered
//! ```
//!
//! The log keeps the order of the commits, so a sync also covers every commit before. A checkpoint syncs the log, then
//! the database, before the log begins anew: a commit that is no longer in the log is in the database. See
//! docs/adr/0011-what-is-acknowledged-is-on-the-disk.md.
//!
//! The kernel reports a write that failed once: the next sync succeeds, without what was lost. After a power cut the log
//! would end there, with all that was acknowledged later behind it. So after a failed sync none counts until the log has
//! begun anew (`Store::sync`).

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Mutex;

#[derive(Debug)]
pub(super) struct Syncer {
    log: PathBuf,
    /// Waiters so far. Each comes after its commit.
    asked: AtomicU64,
    /// Every waiter up to this number has its commit on the disk.
    synced: Mutex<u64>,
    /// A sync failed, and the log has not begun anew since.
    failed: AtomicBool,
}

impl Syncer {
    pub(super) fn new(database: &std::path::Path) -> Self {
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        Syncer { log: log.into(), asked: AtomicU64::new(0), synced: Mutex::new(0), failed: AtomicBool::new(false) }
    }

    /// No sync ends before the value is dropped.
    #[cfg(test)]
    pub(super) async fn hold(&self) -> tokio::sync::MutexGuard<'_, u64> {
        self.synced.lock().await
    }

    #[cfg(test)]
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Everything is in the database: syncs count again if the log is empty.
    pub(super) fn begins_anew(&self) -> io::Result<()> {
        let length = match std::fs::metadata(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            other => other?.len(),
        };
        if length > 0 {
            return Err(io::Error::other("a sync of the database's log failed, and the log is still in use"));
        }
        self.failed.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Returns when everything that was committed before the call is on the disk.
    pub(super) async fn sync(&self) -> io::Result<()> {
        let mine = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut synced = self.synced.lock().await;
        if *synced >= mine {
            return Ok(());
        }
        let all = self.asked.load(Ordering::SeqCst);
        let log = self.log.clone();
        let result = tokio::task::spawn_blocking(move || sync_file(&log)).await.map_err(io::Error::other)?;
        if let Err(error) = result {
            self.failed.store(true, Ordering::SeqCst);
            return Err(error);
        }
        if self.has_failed() {
            return Err(io::Error::other("an earlier sync of the database's log failed"));
        }
        *synced = all;
        Ok(())
    }
}

/// By its name each time: SQLite removes the log with its last connection, after it has synced all into the database.
/// The log bears no locks that closing it could drop.
fn sync_file(log: &std::path::Path) -> io::Result<()> {
    match File::open(log) {
        Ok(log) => log.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
