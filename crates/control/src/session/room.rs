//! What an organisation's sessions may keep together: their journals lie in the server's database, their artifacts in its
//! object store, and what fills either fills it for everybody.
//!
//! Where the maximum is reached, sessions that have ended give way, the oldest first. Where none is left, nothing more is
//! kept: a cell is refused before it runs, and what a cell in its middle says or shows is not noted.

use super::Session;
use crate::sandbox::cause::bytes as words;
use crate::{App, Error};

impl App {
    /// Bytes that may still be kept, at least one; or why nothing may.
    pub(super) async fn room_in_sessions(&self, organisation: &str) -> Result<u64, Error> {
        let most = self.quota(organisation).await?.session_bytes;
        loop {
            let room = most.saturating_sub(self.store().session_bytes(organisation).await?);
            if room > 0 {
                return Ok(room);
            }
            match self.store().oldest_closed_session_in(organisation).await? {
                Some(ended) => self.forget_session(&ended).await?,
                None => {
                    let message = format!(
                        "the organisation's sessions keep their maximum of {} of journals and artifacts; delete sessions",
                        words(most)
                    );
                    return Err(Error::Quota { message });
                }
            }
        }
    }

    /// The same for one session, whose artifacts have a maximum of their own. Nothing where there is no room.
    pub(super) async fn room_for_artifacts(&self, session: &Session) -> Result<u64, Error> {
        let room = match self.room_in_sessions(&session.organisation).await {
            Err(Error::Quota { .. }) => return Ok(0),
            room => room?,
        };
        let most = self.quota(&session.organisation).await?.disk_per_sandbox;
        let held: u64 = self.store().artifacts(&session.id).await?.iter().map(|artifact| artifact.size).sum();
        Ok(room.min(most.saturating_sub(held)))
    }
}
