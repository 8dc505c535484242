//! What a server does when it comes back: it asks every provider what is true and updates the store.
//!
//! ```text
//!   store says     provider sees     then
//!   running        running           nothing
//!   running        stopped           stopped, cause: host restart, or vanished
//!   running        nothing           failed; archived where the object store has an archive of it
//!   stopping       running           stop again
//!   creating       nothing           gone: nobody was told of it
//!   destroyed      anything          destroyed again: nobody owns it
//!   (nothing)      nothing written   destroyed: nobody was told of it
//!   (nothing)      anything else     stopped and kept aside for the operator, see `orphan`
//! ```

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use cove_protocol::SandboxId;
use futures::StreamExt as _;

use super::cause::{Cause, Code};
use super::orphan::Fate;
use super::state::{self, Event};
use super::{Sandbox, State};
use crate::clock::Timestamp;
use crate::provider::{Ended, Handle, Seen, Sighting};
use crate::store::Written;
use crate::{App, Error};

/// Changes made at one time; finding a thousand sandboxes alive makes none.
const AT_ONCE: usize = 16;

/// Longer than any filesystem waits to write what it was given.
const YOUNG_MS: i64 = 120_000;

/// How long the server waits for repairs before it serves.
const PATIENCE: Duration = Duration::from_secs(1);

/// The result of a reconcile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    pub sandboxes: usize,
    pub changed: usize,
    /// Removed: nobody's.
    pub orphans: usize,
    /// Kept although nobody is known to own them.
    pub aside: usize,
}

impl App {
    pub async fn reconcile(&self) -> Result<Reconciled, Error> {
        self.remove_drafts().await?;
        self.take_up_images().await?;
        // First the store, then the providers: a sandbox that is made in between is found, not missed.
        let known = self.store().sandboxes_of_server(self.server()).await?;
        let mut seen: HashMap<String, HashMap<SandboxId, Sighting>> = HashMap::new();
        for provider in self.providers() {
            let sightings = match provider.sightings().await {
                // A service that does not answer keeps nobody from being served: its sandboxes stay as they were noted.
                Err(error) if provider.may_be_away() => {
                    tracing::warn!(provider = provider.name(), %error, "its sandboxes were not looked for");
                    continue;
                }
                sightings => sightings?,
            };
            let sightings = sightings.into_iter().map(|sighting| (sighting.id.clone(), sighting)).collect();
            seen.insert(provider.name().to_owned(), sightings);
        }
        // The latest that is known of the life before.
        let last_word = known.iter().map(|sandbox| sandbox.state_since).max();
        let mut done = Reconciled { sandboxes: known.len(), ..Reconciled::default() };
        let (mut work, mut absent) = (Vec::new(), Vec::new());
        for sandbox in known {
            // The provider is not configured now: its sandboxes stay unchanged.
            let Some(sightings) = seen.get_mut(&sandbox.provider) else { continue };
            let sighting = sightings.remove(&sandbox.id);
            if let Some(Sighting { handle, aside: Some(_), .. }) = &sighting {
                self.provider(&sandbox.provider)?.take_back(handle).await?;
            }
            let event = match &sighting {
                Some(sighting) => Event::Seen(sighting.state),
                None if self.was_too_young(&sandbox, last_word) => Event::Seen(Seen::Stopped),
                None => {
                    absent.push(sandbox);
                    continue;
                }
            };
            let is_known = sighting.as_ref().is_none_or(|sighting| sighting.handle == sandbox.handle());
            if is_known && is_settled(&sandbox, event) {
                continue;
            }
            work.push((sandbox, event, sighting));
        }
        // The object store may be far away: not one after the other.
        let looked_for = |sandbox: Sandbox| async move {
            let event = self.missing(&sandbox).await;
            (sandbox, event)
        };
        let absent: Vec<(Sandbox, Event)> =
            futures::stream::iter(absent).map(looked_for).buffer_unordered(AT_ONCE).collect().await;
        let unsettled = absent.into_iter().filter(|(sandbox, event)| !is_settled(sandbox, *event));
        work.extend(unsettled.map(|(sandbox, event)| (sandbox, event, None)));
        done.changed = work.len();
        let app = self.clone();
        let repairs = self.tasks().spawn(async move {
            let each = |(sandbox, event, sighting)| app.repair(sandbox, event, sighting);
            futures::stream::iter(work).for_each_concurrent(AT_ONCE, each).await;
        });
        // Most are a write and nothing more. Making an archive again takes time: it continues under the sandbox's lock
        // while the server serves.
        if tokio::time::timeout(PATIENCE, repairs).await.is_err() {
            tracing::info!("some repairs go on in the background");
        }
        let mut kept = HashSet::new();
        for (provider, sightings) in seen {
            for (id, sighting) in sightings {
                // One that cannot be settled now keeps nobody from being served; the next look finds it again.
                match self.settle_orphan(&provider, &sighting).await {
                    Ok(Fate::Removed) => done.orphans += 1,
                    Ok(Fate::KeptAside) => done.aside += 1,
                    Ok(Fate::LeftAlone) => {}
                    Err(error) => {
                        tracing::warn!(sandbox = %id, provider, %error, detail = error.detail(), "settle what nobody owns");
                    }
                }
                // Nothing that has files is swept away.
                kept.insert(id);
            }
        }
        done.orphans += self.sweep_rests(kept).await?;
        Ok(done)
    }

    /// What it means that the provider does not know a sandbox. A database that was restored from a backup may be older than its
    /// archive, and does not know that its files are in the object store.
    pub(super) async fn missing(&self, sandbox: &Sandbox) -> Event {
        // In other states nobody expects files, or their absence is explained.
        if state::apply(sandbox.state, Event::MissingButArchived).is_err() {
            return Event::Missing;
        }
        match self.has_archive(sandbox).await {
            Ok(true) => Event::MissingButArchived,
            Ok(false) => Event::Missing,
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "its files are gone, and whether it has an archive is not known");
                Event::Missing
            }
        }
    }

    /// A power cut takes files that are seconds old, directories and all. One that was made just before it has nothing to
    /// show, and is there all the same: whoever made it was told so.
    fn was_too_young(&self, sandbox: &Sandbox, last_word: Option<Timestamp>) -> bool {
        let restarted = self.provider(&sandbox.provider).is_ok_and(|provider| provider.is_after_a_restart());
        let age = last_word.map_or(0, |last| last.as_millisecond() - sandbox.created_at.as_millisecond());
        restarted && sandbox.state.has_processes() && age < YOUNG_MS
    }

    /// What is left of sandboxes that were being made or removed when a server died: groups and directories without files.
    async fn sweep_rests(&self, kept: HashSet<SandboxId>) -> Result<usize, Error> {
        let known = self.store().sandboxes_of_server(self.server()).await?;
        let others = self.store().sandbox_ids_elsewhere(self.server()).await?;
        let mut swept = 0;
        for provider in self.providers() {
            let mine =
                known.iter().filter(|sandbox| sandbox.provider == provider.name() && sandbox.state != State::Archived);
            let keep = mine.map(|sandbox| &sandbox.id).chain(&others).chain(&kept).cloned().collect();
            swept += provider.sweep(keep).await?;
        }
        Ok(swept)
    }

    async fn repair(&self, sandbox: Sandbox, event: Event, sighting: Option<Sighting>) {
        let _lock = self.locks().lock(&sandbox.id).await;
        if let Err(error) = self.repair_locked(&sandbox, event, sighting).await {
            tracing::warn!(sandbox = %sandbox.id, state = %sandbox.state, ?event, %error, detail = error.detail(), "reconcile");
        }
    }

    async fn repair_locked(&self, sandbox: &Sandbox, event: Event, sighting: Option<Sighting>) -> Result<(), Error> {
        if let (Some(sighting), Some(mut now)) = (&sighting, self.store().sandbox_by_id(&sandbox.id).await?) {
            self.note_handle(&mut now, &sighting.handle).await?;
        }
        let cause = self.found_cause(sandbox, event, sighting.and_then(|sighting| sighting.ended));
        self.change_locked(&sandbox.id, event, cause, None).await.map(drop)
    }

    /// Writes the name by which a provider shows a sandbox, where it is not the one that is stored: the server died
    /// between the launch and the note of it. For those who hold the lock.
    pub(super) async fn note_handle(&self, sandbox: &mut Sandbox, handle: &Handle) -> Result<(), Error> {
        if sandbox.handle() == *handle {
            return Ok(());
        }
        sandbox.handle = Some(handle.clone());
        match self.store().update_sandbox(sandbox, None).await? {
            Written::Done => Ok(()),
            Written::Overtaken => Err(Error::Conflict(format!("sandbox {} was changed meanwhile", sandbox.id))),
        }
    }

    pub(super) fn found_cause(&self, sandbox: &Sandbox, event: Event, ended: Option<Ended>) -> Cause {
        let now = self.now();
        match (sandbox.state, event) {
            (
                State::Running | State::Paused | State::Pausing | State::Resuming | State::Stopping,
                Event::Seen(Seen::Stopped),
            ) if ended.is_none()
                && self.provider(&sandbox.provider).is_ok_and(|provider| provider.is_after_a_restart()) =>
            {
                Cause::ended(&Ended::HostRestarted, now)
            }
            (State::Running | State::Paused | State::Pausing | State::Resuming, Event::Seen(Seen::Stopped)) => {
                Cause::ended(&ended.unwrap_or(Ended::Vanished), now)
            }
            (_, Event::Missing) => Cause::new(Code::Vanished, "its files were gone when the server looked", now),
            (_, Event::MissingButArchived) => Cause::new(
                Code::Vanished,
                "its files were gone when the server looked; its last archive is there and comes back with a start",
                now,
            ),
            _ => Cause::new(
                Code::ServerRestart,
                format!("the server ended while the sandbox was {}", sandbox.state),
                now,
            ),
        }
    }
}

/// Whether what was found is what was expected.
fn is_settled(sandbox: &Sandbox, event: Event) -> bool {
    matches!(state::apply(sandbox.state, event), Ok(step) if step.state == sandbox.state && step.effect.is_none())
}
