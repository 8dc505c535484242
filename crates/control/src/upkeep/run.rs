//! The job of upkeep: the sandboxes of one server, page by page.

use super::{Act, Choice, Item, Mode, Outcome, Part};
use crate::clock::{Timestamp, from_millisecond};
use crate::job::Job;
use crate::sandbox::{Filter, Order, Page, Sandbox, State};
use crate::store::Lasting;
use crate::{App, Caller, Error};

/// Sandboxes of one page. After each it is written down how far the job is.
const PAGE: u32 = 50;
const DAY_MS: i64 = 24 * 3600 * 1000;

impl App {
    pub(crate) async fn run_upkeep(&self, job: &Job) -> Result<(), Error> {
        let mut part = Part::read(job)?;
        let caller =
            Caller { organisation: job.organisation.clone(), key: part.key.clone(), scopes: part.scopes.clone() };
        // What nobody has flushed yet is activity as well.
        self.flush_activity().await?;
        match part.act {
            Act::Orphans => self.keep_orphans_down(&caller, &mut part).await?,
            _ => self.keep_sandboxes(job, &caller, &mut part).await?,
        }
        self.store().note_job(&job.id, job.attempts, &part.to_json()?, Lasting::Synced).await
    }

    async fn keep_sandboxes(&self, job: &Job, caller: &Caller, part: &mut Part) -> Result<(), Error> {
        let filter = filter(&part.choice, part.asked_at);
        loop {
            let page = Page { limit: PAGE, cursor: part.cursor.clone(), order: Order::OldestFirst };
            let listed = self.store().list_sandboxes(&caller.organisation, &filter, &page).await?;
            for sandbox in listed.items {
                if self.ending().is_cancelled() {
                    return Err(Error::exhausted("the server ends"));
                }
                if !self.is_mine(&sandbox, part.is_first) {
                    continue;
                }
                part.progress.looked_at += 1;
                if is_meant(&part.choice, &sandbox, part.asked_at) && !is_over(part.act, sandbox.state) {
                    let item = self.keep_one(caller, part.act, part.mode, sandbox).await;
                    part.add(item);
                }
            }
            part.cursor = listed.next;
            if part.cursor.is_none() {
                return Ok(());
            }
            self.store().note_job(&job.id, job.attempts, &part.to_json()?, Lasting::Soon).await?;
        }
    }

    /// Whether this job is the one that does it.
    fn is_mine(&self, sandbox: &Sandbox, is_first: bool) -> bool {
        match self.is_bound_to_host(&sandbox.provider) {
            true => sandbox.server == self.server(),
            false => is_first,
        }
    }

    async fn keep_one(&self, caller: &Caller, act: Act, mode: Mode, sandbox: Sandbox) -> Item {
        let idle = format!("last used {}", sandbox.last_activity_at);
        let (outcome, note) = match mode {
            Mode::DryRun => (Outcome::Would, idle),
            Mode::Real => match self.carry_on(caller, act, &sandbox).await {
                Ok(()) => (Outcome::Done, idle),
                // Gone meanwhile, by whoever else.
                Err(Error::NotFound { .. }) => (Outcome::Left, "it is gone by now".to_owned()),
                Err(error @ (Error::Unsupported(_) | Error::Invalid { .. })) => (Outcome::Left, error.to_string()),
                Err(error) => {
                    tracing::warn!(sandbox = %sandbox.id, %error, detail = error.detail(), act = act.as_str(), "upkeep");
                    (Outcome::Failed, error.to_string())
                }
            },
        };
        Item { id: sandbox.id.to_string(), name: sandbox.name, provider: sandbox.provider, outcome, note }
    }

    /// Each is what a caller could ask for, with its audit.
    async fn carry_on(&self, caller: &Caller, act: Act, sandbox: &Sandbox) -> Result<(), Error> {
        let id = sandbox.id.as_str();
        match act {
            Act::Stop => self.stop(caller, id).await.map(drop),
            Act::Archive => {
                if sandbox.state.has_processes() {
                    self.stop(caller, id).await?;
                }
                self.archive(caller, id).await.map(drop)
            }
            Act::Destroy => self.destroy(caller, id).await.map(drop),
            Act::Orphans => Ok(()),
        }
    }

    /// What every provider of this server has and the database does not know.
    async fn keep_orphans_down(&self, caller: &Caller, part: &mut Part) -> Result<(), Error> {
        for provider in self.providers() {
            if part.choice.provider.as_deref().is_some_and(|wanted| wanted != provider.name()) {
                continue;
            }
            let sightings = match provider.sightings().await {
                Ok(sightings) => sightings,
                Err(error) => {
                    part.add(Item {
                        id: "-".into(),
                        name: None,
                        provider: provider.name().to_owned(),
                        outcome: Outcome::Failed,
                        note: format!("it does not say what it has: {error}"),
                    });
                    continue;
                }
            };
            for sighting in sightings {
                part.progress.looked_at += 1;
                let known = self.store().sandbox_by_id(&sighting.id).await?;
                if known.is_some_and(|sandbox| sandbox.state != State::Destroyed) {
                    continue;
                }
                let reason = sighting
                    .aside
                    .as_ref()
                    .map(|aside| format!("kept since {}: {}", from_millisecond(aside.since), aside.reason));
                let (outcome, note) = match (part.mode, reason) {
                    (Mode::DryRun, Some(reason)) => (Outcome::Would, reason),
                    (_, None) if !provider.is_exclusive() => {
                        (Outcome::Left, "others may use the same account; remove it there if it is yours".to_owned())
                    }
                    (_, None) => (Outcome::Left, "it is kept aside at the next start of the server".to_owned()),
                    (Mode::Real, Some(reason)) => match self.remove_orphan(caller, sighting.id.as_str()).await {
                        Ok(()) => (Outcome::Done, reason),
                        Err(error) => (Outcome::Failed, error.to_string()),
                    },
                };
                let (id, provider) = (sighting.id.to_string(), provider.name().to_owned());
                part.add(Item { id, name: None, provider, outcome, note });
            }
        }
        Ok(())
    }
}

/// As much of the choice as the database can decide.
fn filter(choice: &Choice, asked_at: i64) -> Filter {
    let before = |days: u32| from_millisecond(asked_at - i64::from(days) * DAY_MS);
    Filter {
        labels: choice.labels.clone(),
        states: choice.states.clone(),
        template: choice.template.clone(),
        name_prefix: choice.name.clone(),
        owner: choice.owner.clone(),
        created_after: None,
        // Nothing that was made after the request.
        created_before: Some(choice.age_days.map_or_else(|| from_millisecond(asked_at), before)),
    }
}

/// The rest of the choice.
fn is_meant(choice: &Choice, sandbox: &Sandbox, asked_at: i64) -> bool {
    let idle_since: Timestamp = sandbox.last_activity_at;
    let idle = choice.idle_days.is_none_or(|days| asked_at - idle_since.as_millisecond() >= i64::from(days) * DAY_MS);
    idle && choice.provider.as_deref().is_none_or(|provider| provider == sandbox.provider)
}

/// Whether nothing is left to do with it.
fn is_over(act: Act, state: State) -> bool {
    match act {
        Act::Stop => !state.has_processes(),
        Act::Archive => matches!(state, State::Archived | State::Destroying | State::Destroyed),
        Act::Destroy => matches!(state, State::Destroyed),
        Act::Orphans => true,
    }
}
