//! What a server does that comes back: it asks every provider what is true and brings the store to it.
//!
//! ```text
//!   store says     provider sees     then
//!   running        running           nothing
//!   running        stopped           stopped, cause: host restart, or vanished
//!   stopping       running           stop again
//!   creating       nothing           gone: nobody was told of it
//!   (nothing)      anything          destroyed: nobody owns it
//! ```

use std::collections::HashMap;
use std::time::Duration;

use cove_engine::SandboxId;
use futures::StreamExt as _;

use super::cause::{Cause, Code};
use super::state::{self, Event};
use super::{Sandbox, State};
use crate::provider::{Ended, Seen, Sighting};
use crate::{App, Error};

/// Changes made at one time; finding a thousand sandboxes alive makes none.
const AT_ONCE: usize = 16;

/// How long the server waits for repairs before it serves.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a reconcile came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    pub sandboxes: usize,
    pub changed: usize,
    pub orphans: usize,
}

impl App {
    pub async fn reconcile(&self) -> Result<Reconciled, Error> {
        self.remove_drafts().await?;
        // First the store, then the providers: what is made in between is seen but not missed.
        let known = self.store().sandboxes_of_server(self.server()).await?;
        let mut seen: HashMap<String, HashMap<SandboxId, Sighting>> = HashMap::new();
        for provider in self.providers() {
            let sightings = provider.sightings().await?;
            let sightings = sightings.into_iter().map(|sighting| (sighting.id.clone(), sighting)).collect();
            seen.insert(provider.name().to_owned(), sightings);
        }
        let mut done = Reconciled { sandboxes: known.len(), ..Reconciled::default() };
        let mut work = Vec::new();
        for sandbox in known {
            // A provider that is not configured now: nothing is known, nothing is changed.
            let Some(sightings) = seen.get_mut(&sandbox.provider) else { continue };
            let sighting = sightings.remove(&sandbox.id);
            let event = sighting.as_ref().map_or(Event::Missing, |sighting| Event::Seen(sighting.state));
            if is_settled(&sandbox, event) {
                continue;
            }
            work.push((sandbox, event, sighting.and_then(|sighting| sighting.ended)));
        }
        done.changed = work.len();
        let app = self.clone();
        let repairs = self.tasks().spawn(async move {
            let each = |(sandbox, event, ended)| app.repair(sandbox, event, ended);
            futures::stream::iter(work).for_each_concurrent(AT_ONCE, each).await;
        });
        // Most are a write and nothing more. An archive that has to be made again takes its time: it goes on behind
        // the locks while the server serves.
        if tokio::time::timeout(PATIENCE, repairs).await.is_err() {
            tracing::info!("some repairs go on in the background");
        }
        for (provider, sightings) in seen {
            for id in sightings.into_keys() {
                // One that cannot be removed now keeps nobody from being served; the next look finds it again.
                match self.remove_orphan(&provider, &id).await {
                    Ok(removed) => done.orphans += usize::from(removed),
                    Err(error) => {
                        tracing::warn!(sandbox = %id, provider, %error, detail = error.detail(), "remove what nobody owns")
                    }
                }
            }
        }
        done.orphans += self.sweep_rests().await?;
        Ok(done)
    }

    /// What is left of sandboxes that were being made or removed when a server died.
    async fn sweep_rests(&self) -> Result<usize, Error> {
        let known = self.store().sandboxes_of_server(self.server()).await?;
        let others = self.store().sandbox_ids_elsewhere(self.server()).await?;
        let mut swept = 0;
        for provider in self.providers() {
            let mine =
                known.iter().filter(|sandbox| sandbox.provider == provider.name() && sandbox.state != State::Archived);
            let keep = mine.map(|sandbox| &sandbox.id).chain(&others).cloned().collect();
            swept += provider.sweep(keep).await?;
        }
        Ok(swept)
    }

    async fn repair(&self, sandbox: Sandbox, event: Event, ended: Option<Ended>) {
        let cause = self.found_cause(&sandbox, event, ended);
        let _lock = self.locks().lock(&sandbox.id).await;
        if let Err(error) = self.change_locked(&sandbox.id, event, cause, None).await {
            tracing::warn!(sandbox = %sandbox.id, state = %sandbox.state, ?event, %error, detail = error.detail(), "reconcile");
        }
    }

    fn found_cause(&self, sandbox: &Sandbox, event: Event, ended: Option<Ended>) -> Cause {
        let now = self.now();
        match (sandbox.state, event) {
            (State::Running | State::Paused | State::Pausing | State::Resuming, Event::Seen(Seen::Stopped)) => {
                Cause::ended(&ended.unwrap_or(Ended::Vanished), now)
            }
            (_, Event::Missing) => Cause::new(Code::Vanished, "its files were gone when the server looked", now),
            _ => Cause::new(
                Code::ServerRestart,
                format!("the server ended while the sandbox was {}", sandbox.state),
                now,
            ),
        }
    }

    /// Removes what the provider has and the store does not. What another server made a moment ago is left alone.
    async fn remove_orphan(&self, provider: &str, id: &SandboxId) -> Result<bool, Error> {
        match self.store().sandbox_by_id(id).await? {
            Some(sandbox) if sandbox.state != State::Destroyed => {
                if self.is_bound_to_host(provider) && sandbox.server != self.server() {
                    tracing::warn!(sandbox = %id, server = sandbox.server, "its files are here, but it is another server's: \
                        the data directory's server-id has changed; put the old name back to have it again");
                }
                return Ok(false);
            }
            Some(_) => {}
            None if !self.is_bound_to_host(provider) && provider != "fake" => return Ok(false),
            None => {}
        }
        tracing::info!(sandbox = %id, provider, "removing a sandbox that nobody owns");
        self.provider(provider)?.destroy(id).await?;
        Ok(true)
    }
}

/// Whether what was found is what was expected.
fn is_settled(sandbox: &Sandbox, event: Event) -> bool {
    matches!(state::apply(sandbox.state, event), Ok(step) if step.state == sandbox.state && step.effect.is_none())
}
