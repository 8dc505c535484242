//! Whose token made a signature that comes without a sandbox's name.
//!
//! Anybody can send any signature, so a lookup must be cheap: the tokens are in memory, and the store is read at most a
//! few times a second, however many signatures are unknown. The result is only a name: the signature is checked again
//! against the sandbox as it is now.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::sandbox::State;
use crate::{App, Error};

/// Between two reads of the store.
const PAUSE: Duration = Duration::from_millis(200);

/// Ids and tokens.
type Tokens = Arc<Vec<(String, String)>>;

#[derive(Default)]
pub struct Signers {
    known: Mutex<Tokens>,
    /// When the store was last read; the reader holds the lock.
    read: tokio::sync::Mutex<Option<Instant>>,
}

impl Signers {
    /// The sandbox whose token fits.
    pub async fn find(&self, app: &App, fits: impl Fn(&str) -> bool) -> Result<Option<String>, Error> {
        let asked = Instant::now();
        if let Some(id) = self.among_known(&fits) {
            return Ok(Some(id));
        }
        // Perhaps made since: those who wait here share one look.
        let mut read = self.read.lock().await;
        if read.is_none_or(|read| read < asked) {
            if let Some(read) = *read {
                tokio::time::sleep_until(read + PAUSE).await;
            }
            *read = Some(Instant::now());
            let sandboxes = app.store().sandboxes_of_server(app.server()).await?;
            let there = sandboxes.into_iter().filter(|sandbox| {
                sandbox.pool.is_none() && !matches!(sandbox.state, State::Destroying | State::Destroyed)
            });
            let tokens = there.map(|sandbox| (sandbox.id.to_string(), sandbox.access_token)).collect();
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
        }
        drop(read);
        Ok(self.among_known(&fits))
    }

    fn among_known(&self, fits: impl Fn(&str) -> bool) -> Option<String> {
        let known = Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner));
        known.iter().find(|(_, token)| fits(token)).map(|(id, _)| id.clone())
    }
}
