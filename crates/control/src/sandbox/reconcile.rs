//! What a server does that comes back: it asks every provider what is true and brings the store to it.
//!
//! ```text
//!   store says     provider sees     then
//!   running        running           nothing
//!   running        stopped           stopped, cause: vanished
//!   stopping       running           stop again
//!   creating       nothing           gone: nobody was told of it
//!   (nothing)      anything          destroyed: nobody owns it
//! ```

use std::collections::HashMap;

use cove_engine::SandboxId;
use futures::StreamExt as _;

use super::cause::{Cause, Code};
use super::state::{self, Event};
use super::{Sandbox, State};
use crate::provider::Seen;
use crate::{App, Error};

/// Changes made at one time; finding a thousand sandboxes alive makes none.
const AT_ONCE: usize = 16;

/// What a reconcile came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    pub sandboxes: usize,
    pub changed: usize,
    pub orphans: usize,
}

impl App {
    pub async fn reconcile(&self) -> Result<Reconciled, Error> {
        // First the store, then the providers: what is made in between is seen but not missed.
        let known = self.store().sandboxes_of_server(self.server()).await?;
        let mut seen: HashMap<String, HashMap<SandboxId, Seen>> = HashMap::new();
        for provider in self.providers() {
            let sightings = provider.sightings().await?;
            seen.insert(
                provider.name().to_owned(),
                sightings.into_iter().map(|sighting| (sighting.id, sighting.state)).collect(),
            );
        }
        let mut done = Reconciled { sandboxes: known.len(), ..Reconciled::default() };
        let mut work = Vec::new();
        for sandbox in known {
            // A provider that is not configured now: nothing is known, nothing is changed.
            let Some(sightings) = seen.get_mut(&sandbox.provider) else { continue };
            let event = match sightings.remove(&sandbox.id) {
                Some(state) => Event::Seen(state),
                None => Event::Missing,
            };
            if is_settled(&sandbox, event) {
                continue;
            }
            work.push((sandbox, event));
        }
        done.changed = work.len();
        futures::stream::iter(work)
            .for_each_concurrent(AT_ONCE, |(sandbox, event)| async move { self.repair(sandbox, event).await })
            .await;
        for (provider, sightings) in seen {
            for id in sightings.into_keys() {
                done.orphans += usize::from(self.remove_orphan(&provider, &id).await?);
            }
        }
        done.orphans += self.sweep_rests().await?;
        Ok(done)
    }

    /// What is left of sandboxes that were being made or removed when a server died.
    async fn sweep_rests(&self) -> Result<usize, Error> {
        let known = self.store().sandboxes_of_server(self.server()).await?;
        let mut swept = 0;
        for provider in self.providers() {
            let mine =
                known.iter().filter(|sandbox| sandbox.provider == provider.name() && sandbox.state != State::Archived);
            swept += provider.sweep(mine.map(|sandbox| sandbox.id.clone()).collect()).await?;
        }
        Ok(swept)
    }

    async fn repair(&self, sandbox: Sandbox, event: Event) {
        let cause = self.found_cause(&sandbox, event);
        let _lock = self.locks().lock(&sandbox.id).await;
        if let Err(error) = self.change_locked(&sandbox.id, event, cause).await {
            tracing::warn!(sandbox = %sandbox.id, state = %sandbox.state, ?event, %error, detail = error.detail(), "reconcile");
        }
    }

    fn found_cause(&self, sandbox: &Sandbox, event: Event) -> Cause {
        let now = self.now();
        match (sandbox.state, event) {
            (State::Running | State::Paused | State::Pausing | State::Resuming, Event::Seen(Seen::Stopped)) => {
                Cause::ended(&cove_engine::state::Ended::Vanished, now)
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
            Some(sandbox) if sandbox.state != State::Destroyed => return Ok(false),
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
