//! Removes layers that nobody needs.
//!
//! The row first: `going`, in a transaction that looks for users once more, so nobody begins to use it from then on. Then
//! the files, at each provider of each server that has them; then the row. Layers of which this database knows nothing
//! are left alone: they may be another database's.
//!
//! Two rounds may go on at once, and somebody may want a layer that is going: so files are removed by whoever has the
//! layer's turn, and only after another look at its row.

use std::time::Duration;

use super::LayerState;
use crate::provider::images::Removed;
use crate::provider::{LayerId, ProviderError};
use crate::{App, Error};

/// How often it is looked for them at least.
const EVERY: Duration = Duration::from_secs(30);
/// And at most.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// A server that was not heard of for this long holds nothing any more. Should it come back, it finds that out.
const GIVEN_UP_MS: i64 = 10 * 60 * 1000;
/// Layers of one round.
const AT_ONCE: i64 = 256;
const DAY_MS: i64 = 24 * 3600 * 1000;

impl App {
    /// How often: where layers are not kept for long, soon enough for that.
    pub(crate) fn sweep_every(&self) -> Duration {
        Duration::from_secs(self.config().builds.keep_unused_seconds).clamp(AT_MOST_EVERY, EVERY)
    }

    /// One round: rows whose time is over, layers that nobody needs, files of those that are going.
    pub async fn sweep_layers(&self) -> Result<(), Error> {
        let now = self.now().as_millisecond();
        let settings = &self.config().builds;
        if settings.keep_days > 0 {
            let before = now.saturating_sub(DAY_MS.saturating_mul(i64::from(settings.keep_days)));
            self.store().remove_old_steps(None, before).await?;
            self.store().remove_old_images(before).await?;
            self.remove_old_build_files(before).await?;
        }
        self.remove_spent_build_files().await?;
        self.end_work_of_the_dead(now).await?;
        // Whoever was about to use it when it was last needed has its row by then.
        let kept = i64::try_from(settings.keep_unused_seconds).unwrap_or(i64::MAX).saturating_mul(1000);
        let before = now.saturating_sub(kept);
        for layer in self.store().unused_layers(before, AT_ONCE).await? {
            self.store().let_layer_go(layer, before).await?;
        }
        self.remove_going_layers().await?;
        self.store().forget_layers_of_nobody().await?;
        Ok(())
    }

    /// What a server that died has left of images: layers half made, archives half read, rows from before.
    pub(crate) async fn take_up_images(&self) -> Result<(), Error> {
        let drafts = self.store().end_all_work(self.server()).await?;
        if drafts > 0 {
            tracing::info!(drafts, "layers that were never whole");
        }
        self.clear_spool();
        // Nobody is at any of them.
        self.forget_captures(i64::MAX).await?;
        self.adopt_old_sandboxes().await?;
        self.remove_going_layers().await?;
        self.finish_volumes().await
    }

    /// What servers hold and make that do not come back, and drafts that nobody makes.
    async fn end_work_of_the_dead(&self, now: i64) -> Result<(), Error> {
        if self.shares_its_store() {
            for server in self.store().silent_servers_at_work(now - GIVEN_UP_MS).await? {
                if server == self.server() {
                    continue;
                }
                let drafts = self.store().end_all_work(&server).await?;
                tracing::info!(server, drafts, "let go of what a server held that is down");
            }
        }
        self.store().give_up_drafts_of_nobody().await?;
        Ok(())
    }

    /// Removes the files of layers that are going.
    pub(crate) async fn remove_going_layers(&self) -> Result<(), Error> {
        for provider in self.providers() {
            for layer in self.store().going_layers(self.server(), provider.name(), AT_ONCE).await? {
                // Whoever has the turn makes it anew, or removes it.
                if let Some(_turn) = self.layer_turns().try_take(layer) {
                    self.remove_here(layer).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes a layer from this server, if it is going. For those who have its turn.
    pub(super) async fn remove_here(&self, layer: LayerId) -> Result<(), Error> {
        if self.store().layer(layer).await?.is_none_or(|row| row.state != LayerState::Going) {
            return Ok(());
        }
        for (server, name) in self.store().places_of_layer(layer).await? {
            if server != self.server() {
                continue;
            }
            // One that is not configured now keeps what it has.
            let Ok(provider) = self.provider(&name) else { continue };
            match provider.layers().remove_layer(layer).await {
                Ok(Removed::Gone) => {
                    self.store().layer_is_gone(layer, &server, &name).await?;
                    tracing::debug!(%layer, provider = name, "removed a layer that nobody needs");
                }
                // A life that the store does not know, as one of `cove run`. The next round tries again.
                Ok(Removed::InUse) => {}
                // Not this provider's own: whoever made it removes it.
                Err(ProviderError::Unsupported(_)) => {}
                Err(error) => tracing::warn!(%layer, provider = name, %error, "remove a layer that nobody needs"),
            }
        }
        Ok(())
    }
}
