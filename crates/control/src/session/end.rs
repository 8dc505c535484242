//! Removes a session, its journal and its artifacts: a while after the session or its sandbox ended, or earlier where
//! the sandbox has too many sessions.

use object_store::ObjectStoreExt as _;

use super::artifact;
use crate::{App, Error};

/// How long a session's journal and artifacts can be read after its end.
pub const KEPT_DAYS: i64 = 30;
const KEPT_MS: i64 = KEPT_DAYS * 24 * 3_600_000;
/// The most sessions of one sandbox. The oldest one that has ended is removed for a new one.
const MOST: i64 = 64;
/// Sessions removed at one time.
const AT_ONCE: i64 = 100;

impl App {
    /// Ends sessions whose sandbox is gone, and removes those that ended long ago.
    pub(crate) async fn forget_ended_sessions(&self) -> Result<(), Error> {
        let now = self.now().as_millisecond();
        self.store().close_sessions_of_destroyed(now).await?;
        for session in self.store().sessions_closed_before(now - KEPT_MS, AT_ONCE).await? {
            self.forget_session(&session).await?;
        }
        Ok(())
    }

    /// Makes room for one more session of the sandbox, or refuses it.
    pub(super) async fn make_room_for_session(&self, sandbox: &str) -> Result<(), Error> {
        if self.store().count_sessions_of(sandbox).await? < MOST {
            return Ok(());
        }
        match self.store().oldest_closed_session_of(sandbox).await? {
            Some(ended) => self.forget_session(&ended).await,
            None => Err(Error::Quota { message: format!("a sandbox has at most {MOST} sessions; end some") }),
        }
    }

    /// The row is removed last: if something fails, the next round finds it again.
    pub(super) async fn forget_session(&self, session: &str) -> Result<(), Error> {
        for artifact in self.store().artifacts(session).await? {
            match self.objects().delete(&artifact::key(session, &artifact.name)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(artifact::trouble(error)),
            }
        }
        self.store().remove_session(session).await
    }
}
