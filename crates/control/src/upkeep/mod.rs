//! Upkeep: one act on many sandboxes, in the background.
//!
//! ```text
//!   POST /upkeep {act, filter, dry_run} ─▶ one job for each server that has sandboxes of the organisation
//!                                              │ page by page, oldest first; how far it is, is in the job
//!   GET /upkeep/{id} ◀── the jobs' own words, put together: what was found, done, left and why
//! ```
//! A job that is broken off goes on where it was: every act is one that can be done again. Nothing is done unless
//! `dry_run` is said to be false, and each act is audited as if its caller had asked for it alone.

mod run;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{Job, JobState, NewJob};
use crate::sandbox::State;
use crate::sandbox::create::check_labels;
use crate::{App, Caller, Error, Scope, random};

/// The kind of its jobs.
pub(crate) const UPKEEP_JOB: &str = "upkeep";

/// Sandboxes that a report lists; those that failed come before the others.
const ITEMS: usize = 1000;
/// A thousand years are as good as for ever.
const DAYS_MAX: u32 = 365_000;

/// What is done with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = UpkeepAct)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Its processes end, its files stay.
    Stop,
    /// Stopped if it runs, and then its files go to the object store.
    Archive,
    /// Nothing of it remains.
    Destroy,
    /// For operators: what providers have and the database does not know. What is kept aside is removed; what lies at a
    /// provider that others use too is only named.
    Orphans,
}

impl Act {
    pub fn as_str(self) -> &'static str {
        match self {
            Act::Stop => "stop",
            Act::Archive => "archive",
            Act::Destroy => "destroy",
            Act::Orphans => "orphans",
        }
    }
}

/// Which sandboxes. All that is given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    pub labels: BTreeMap<String, String>,
    pub owner: Option<String>,
    pub template: Option<String>,
    /// The beginning of the name.
    pub name: Option<String>,
    pub provider: Option<String>,
    pub states: Vec<State>,
    /// Not used for so many days.
    pub idle_days: Option<u32>,
    /// Made so many days ago, or longer.
    pub age_days: Option<u32>,
    /// Said on purpose, where nothing else is said.
    pub all: bool,
}

impl Choice {
    fn says_something(&self) -> bool {
        *self != Choice { all: self.all, ..Choice::default() }
    }
}

/// Whether anything is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// What would be done is reported.
    DryRun,
    Real,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = UpkeepProgress)]
pub struct Progress {
    /// Sandboxes that were looked at.
    pub looked_at: u64,
    /// Those that the choice is about.
    pub found: u64,
    /// Those with which it was done.
    pub done: u64,
    pub failed: u64,
}

/// What became of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = UpkeepItem)]
pub struct Item {
    pub id: String,
    pub name: Option<String>,
    pub provider: String,
    /// `would` in a dry run; then `done`, `failed` or `left`.
    pub outcome: Outcome,
    /// Why it failed, or why it was left; else since when it is idle.
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = UpkeepOutcome)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Failed,
    Left,
    Would,
    Done,
}

/// Upkeep, under way or over.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Upkeep {
    pub id: String,
    pub act: Act,
    pub dry_run: bool,
    pub state: JobState,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    pub progress: Progress,
    /// What failed comes first.
    pub items: Vec<Item>,
    /// Sandboxes that are not listed, because there are so many.
    pub left_out: u64,
    /// Why it did not come to its end.
    pub error: Option<String>,
}

/// What one job is told, and what it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Part {
    act: Act,
    choice: Choice,
    mode: Mode,
    /// Who asked, for the audit.
    key: String,
    scopes: Vec<Scope>,
    /// How many jobs there are; none in all but the first of them.
    parts: usize,
    /// Whether this job is for what any server can do.
    is_first: bool,
    /// Time counts from the moment of the request, however often it is taken up again.
    asked_at: i64,
    /// The next page; absent before the first.
    cursor: Option<String>,
    progress: Progress,
    items: Vec<Item>,
    left_out: u64,
}

impl Part {
    fn read(job: &Job) -> Result<Part, Error> {
        serde_json::from_value(job.payload.clone())
            .map_err(|error| Error::internal(format!("store: what upkeep {} is about: {error}", job.id)))
    }

    fn to_json(&self) -> Result<serde_json::Value, Error> {
        serde_json::to_value(self).map_err(|error| Error::internal(format!("write what upkeep says: {error}")))
    }

    fn add(&mut self, item: Item) {
        self.progress.found += 1;
        match item.outcome {
            Outcome::Done => self.progress.done += 1,
            Outcome::Failed => self.progress.failed += 1,
            Outcome::Left | Outcome::Would => {}
        }
        if self.items.len() < ITEMS {
            self.items.push(item);
            return;
        }
        self.left_out += 1;
        // Those that went well make room for what somebody must read.
        if item.outcome == Outcome::Failed
            && let Some(place) = self.items.iter().position(|other| other.outcome != Outcome::Failed)
        {
            self.items[place] = item;
        }
    }
}

fn part_id(upkeep: &str, number: usize) -> String {
    if number == 0 { upkeep.to_owned() } else { format!("{upkeep}-{number}") }
}

impl App {
    /// Begins, in the background. One at a time for each organisation.
    pub async fn begin_upkeep(&self, caller: &Caller, act: Act, choice: Choice, mode: Mode) -> Result<Upkeep, Error> {
        caller.require(if act == Act::Orphans { Scope::Operator } else { Scope::Write })?;
        check(act, &choice)?;
        let mut servers = self.store().servers_with_files(&caller.organisation).await?;
        // This one is the first: it does what any server can do.
        servers.retain(|server| server != self.server());
        servers.insert(0, self.server().to_owned());
        if act == Act::Orphans {
            // Every server looks at its own machine; the others' are theirs.
            servers.truncate(1);
        }
        let (id, now) = (random::id("upkeep"), self.now());
        self.audit(caller, &format!("upkeep.{}", act.as_str()), &id).await?;
        for (number, server) in servers.iter().enumerate() {
            let is_first = number == 0;
            let part = Part {
                act,
                choice: choice.clone(),
                mode,
                key: caller.key.clone(),
                scopes: caller.scopes.clone(),
                parts: if is_first { servers.len() } else { 0 },
                is_first,
                asked_at: now.as_millisecond(),
                cursor: None,
                progress: Progress::default(),
                items: Vec::new(),
                left_out: 0,
            };
            let job = NewJob {
                kind: UPKEEP_JOB.into(),
                subject: act.as_str().into(),
                organisation: caller.organisation.clone(),
                server: Some(server.clone()),
                unique_key: is_first.then(|| format!("upkeep/{}", caller.organisation)),
                run_at: now,
                payload: part.to_json()?,
            };
            if !self.store().add_job(&part_id(&id, number), &job, now.as_millisecond()).await? {
                let message = "other upkeep of the organisation is under way; wait for it (GET /jobs lists it)";
                return Err(Error::Conflict(message.into()));
            }
        }
        self.upkeep(caller, &id).await
    }

    /// Upkeep of the caller's organisation.
    pub async fn upkeep(&self, caller: &Caller, id: &str) -> Result<Upkeep, Error> {
        let unknown = || Error::not_found("upkeep", id);
        let first = self.upkeep_part(caller, id).await?.filter(|(_, part)| part.parts > 0).ok_or_else(unknown)?;
        let count = first.1.parts;
        let mut parts = vec![Some(first)];
        for number in 1..count {
            parts.push(self.upkeep_part(caller, &part_id(id, number)).await?);
        }
        together(id, parts).ok_or_else(unknown)
    }

    async fn upkeep_part(&self, caller: &Caller, id: &str) -> Result<Option<(Job, Part)>, Error> {
        let job = self.store().job(id).await?;
        let ours = job.filter(|job| job.kind == UPKEEP_JOB && job.organisation == caller.organisation);
        ours.map(|job| Part::read(&job).map(|part| (job, part))).transpose()
    }
}

/// Nothing is done with everything by a slip.
fn check(act: Act, choice: &Choice) -> Result<(), Error> {
    check_labels(&choice.labels)?;
    for (field, days) in [("idle_days", choice.idle_days), ("age_days", choice.age_days)] {
        if days.is_some_and(|days| days > DAYS_MAX) {
            return Err(Error::invalid(field, format!("at most {DAYS_MAX}")));
        }
    }
    match (choice.says_something(), choice.all) {
        (true, true) => Err(Error::invalid("all", "say which sandboxes, or say all")),
        (false, false) if act != Act::Orphans => {
            Err(Error::invalid("filter", "say which sandboxes: idle_days, owner, labels …, or all on purpose"))
        }
        _ => Ok(()),
    }
}

/// One out of its jobs. One that is not there was never written: its server died at it.
fn together(id: &str, parts: Vec<Option<(Job, Part)>>) -> Option<Upkeep> {
    let state_of = |part: &Option<(Job, Part)>| part.as_ref().map_or(JobState::Failed, |(job, _)| job.state);
    let states: Vec<JobState> = parts.iter().map(state_of).collect();
    let all = |state| states.iter().all(|one| *one == state);
    let over = states.iter().all(|state| matches!(state, JobState::Done | JobState::Failed));
    let state = match over {
        true if all(JobState::Done) => JobState::Done,
        true => JobState::Failed,
        false if all(JobState::Queued) => JobState::Queued,
        false => JobState::Running,
    };
    let lost = parts.iter().any(Option::is_none).then(|| "a part of it was lost; begin again".to_owned());
    let (first, told) = parts.first()?.as_ref()?;
    let mut upkeep = Upkeep {
        id: id.to_owned(),
        act: told.act,
        dry_run: told.mode == Mode::DryRun,
        state,
        created_at: first.created_at,
        finished_at: None,
        progress: Progress::default(),
        items: Vec::new(),
        left_out: 0,
        error: lost,
    };
    for (job, part) in parts.into_iter().flatten() {
        upkeep.progress.looked_at += part.progress.looked_at;
        upkeep.progress.found += part.progress.found;
        upkeep.progress.done += part.progress.done;
        upkeep.progress.failed += part.progress.failed;
        upkeep.left_out += part.left_out;
        upkeep.items.extend(part.items);
        if state != JobState::Done {
            upkeep.error = upkeep.error.or(job.error);
        }
        if over {
            upkeep.finished_at = upkeep.finished_at.max(job.finished_at);
        }
    }
    upkeep.items.sort_by_key(|item| item.outcome);
    Some(upkeep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(number: usize, outcome: Outcome) -> Item {
        Item { id: number.to_string(), name: None, provider: "p".into(), outcome, note: String::new() }
    }

    fn part() -> Part {
        Part {
            act: Act::Stop,
            choice: Choice::default(),
            mode: Mode::Real,
            key: "k".into(),
            scopes: vec![Scope::Write],
            parts: 1,
            is_first: true,
            asked_at: 0,
            cursor: None,
            progress: Progress::default(),
            items: Vec::new(),
            left_out: 0,
        }
    }

    #[test]
    fn a_report_stays_small_and_what_failed_is_in_it() {
        let mut part = part();
        (0..ITEMS + 5).for_each(|number| part.add(item(number, Outcome::Done)));
        (0..3).for_each(|number| part.add(item(number, Outcome::Failed)));
        assert_eq!((part.items.len(), part.left_out), (ITEMS, 8));
        assert_eq!((part.progress.done, part.progress.failed), (ITEMS as u64 + 5, 3));
        assert_eq!(part.items.iter().filter(|item| item.outcome == Outcome::Failed).count(), 3);
    }

    #[test]
    fn nothing_is_done_with_everything_by_a_slip() {
        assert!(check(Act::Destroy, &Choice::default()).is_err());
        let all = Choice { all: true, ..Choice::default() };
        check(Act::Destroy, &all).unwrap();
        check(Act::Orphans, &Choice::default()).unwrap();
        let idle = Choice { idle_days: Some(30), ..Choice::default() };
        check(Act::Archive, &idle).unwrap();
        assert!(check(Act::Archive, &Choice { all: true, ..idle }).is_err());
        assert!(check(Act::Stop, &Choice { age_days: Some(u32::MAX), ..Choice::default() }).is_err());
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let job = |payload| Job {
            id: "upkeep_x".into(),
            kind: UPKEEP_JOB.into(),
            subject: "stop".into(),
            organisation: "o".into(),
            state: JobState::Running,
            run_at: crate::clock::from_millisecond(0),
            attempts: 1,
            created_at: crate::clock::from_millisecond(0),
            finished_at: None,
            error: None,
            payload,
        };
        assert_eq!(Part::read(&job(part().to_json().unwrap())).unwrap(), part());
        assert!(Part::read(&job(serde_json::Value::Null)).is_err());
    }
}
