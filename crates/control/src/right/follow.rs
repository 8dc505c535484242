//! Ends rights that expire, and rights that another server of the same database has ended.

use super::{LOOK, Right, mark};
use crate::volume::State;
use crate::{App, Error};

impl App {
    /// Ends rights that have expired, and rights that another server has ended since the last check.
    pub(crate) async fn follow_rights(&self, seen: &std::sync::atomic::AtomicI64) -> Result<(), Error> {
        use std::sync::atomic::Ordering;
        self.rights().expire(self.now());
        if !self.shares_its_store() {
            return Ok(());
        }
        let changes = self.store().changes_of_rights().await?;
        if seen.load(Ordering::Relaxed) == changes {
            return Ok(());
        }
        self.key_cache().forget();
        self.end_rights_that_are_gone().await?;
        // Only now: if the store fails half-way, the next check does everything again.
        seen.store(changes, Ordering::Relaxed);
        Ok(())
    }

    async fn end_rights_that_are_gone(&self) -> Result<(), Error> {
        for (right, noted) in self.rights().held() {
            let stands = match &right {
                Right::Key(id) => self.store().key_is_good(id).await?,
                Right::Sandbox(id) => {
                    self.store().sandbox_by_id(id).await?.is_some_and(|sandbox| mark(&sandbox) == noted)
                }
                Right::Volume(id) => match self.store().volume_by_id(id).await? {
                    Some(volume) if volume.state == State::Ready => {
                        self.store().organisation(&volume.organisation).await?.is_some()
                    }
                    _ => false,
                },
                Right::Link(_) => true,
            };
            if !stands {
                self.rights().end_marked(&right, noted);
            }
        }
        Ok(())
    }

    /// Starts the checks.
    pub(crate) fn begin_to_follow_rights(&self) {
        let app = self.clone();
        self.tasks().spawn(async move {
            let seen = std::sync::atomic::AtomicI64::new(-1);
            loop {
                if let Err(error) = app.follow_rights(&seen).await {
                    tracing::warn!(%error, detail = error.detail(), "look for rights that have ended");
                }
                tokio::select! {
                    () = app.ending().cancelled() => return,
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
        });
    }
}
