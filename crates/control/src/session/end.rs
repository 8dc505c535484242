//! How a session, its journal and its artifacts go: a while after it ended, by itself or with its sandbox, or earlier
//! where its sandbox has too many.

use object_store::ObjectStoreExt as _;

use super::artifact;
use crate::{App, Error};

/// What a session left can be read for so long after its end.
pub const KEPT_DAYS: i64 = 30;
const KEPT_MS: i64 = KEPT_DAYS * 24 * 3_600_000;
/// Sessions of one sandbox. Of those that ended the oldest gives way.
const MOST: i64 = 64;
/// Sessions removed at one time.
const AT_ONCE: i64 = 100;

impl App {
    /// A session ends with its sandbox; what ended long ago is removed.
    pub(crate) async fn forget_ended_sessions(&self) -> Result<(), Error> {
        let now = self.now().as_millisecond();
        self.store().close_sessions_of_destroyed(now).await?;
        for session in self.store().sessions_closed_before(now - KEPT_MS, AT_ONCE).await? {
            self.forget_session(&session).await?;
        }
        Ok(())
    }

    /// One more session of the sandbox, or why there can be none.
    pub(super) async fn make_room_for_session(&self, sandbox: &str) -> Result<(), Error> {
        if self.store().count_sessions_of(sandbox).await? < MOST {
            return Ok(());
        }
        match self.store().oldest_closed_session_of(sandbox).await? {
            Some(ended) => self.forget_session(&ended).await,
            None => Err(Error::Quota { message: format!("a sandbox has at most {MOST} sessions; end some") }),
        }
    }

    /// The row goes last: what fails is found again.
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
