//! How long rows are kept that nobody needs any more: as the operator says, and no longer.
//!
//! Every server of a database does this, a few rows at a time; removing what another has removed does nothing.

use std::time::Duration;

use crate::store::retention::Aging;
use crate::{App, Error};

/// Between two batches: whoever writes comes in between.
const PAUSE: Duration = Duration::from_millis(50);
/// Batches of one round, of each kind. What is left is for the next round.
const BATCHES: u32 = 100;
/// Finished jobs are for whoever looks why something did not happen.
const JOBS_SECONDS: u64 = 24 * 3600;

impl App {
    /// One round over everything that ages.
    pub async fn forget_what_is_old(&self) -> Result<(), Error> {
        let kept = &self.config().retention;
        let aging = [
            (Aging::Audit, kept.audit_seconds),
            (Aging::Events, kept.events_seconds),
            (Aging::FinishedJobs, JOBS_SECONDS),
            (Aging::IdempotencyKeys, kept.idempotency_keys_seconds),
            // Zero keeps none of these.
            (Aging::Samples, self.config().metrics.keep_seconds.max(1)),
            (Aging::Usage, kept.usage_seconds),
        ];
        for (what, seconds) in aging {
            let Some(before) = self.long_ago(seconds) else { continue };
            self.in_batches(|| self.store().remove_aged(what, before)).await?;
        }
        if let Some(before) = self.long_ago(kept.destroyed_sandboxes_seconds) {
            self.in_batches(|| self.store().remove_destroyed(before)).await?;
            // Kept as long: a sandbox's record names what it was started from, and what it had.
            self.in_batches(|| self.store().remove_deleted_templates(before)).await?;
            self.in_batches(|| self.store().remove_deleted_volumes(before)).await?;
        }
        Ok(())
    }

    /// The time before which things are too old; none where they are kept for ever.
    fn long_ago(&self, seconds: u64) -> Option<i64> {
        let milliseconds = i64::try_from(seconds.checked_mul(1000)?).ok()?;
        (seconds > 0).then(|| self.now().as_millisecond().saturating_sub(milliseconds))
    }

    async fn in_batches<F: Future<Output = Result<u64, Error>>>(&self, remove: impl Fn() -> F) -> Result<(), Error> {
        for _ in 0..BATCHES {
            if remove().await? == 0 || self.ending().is_cancelled() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}
