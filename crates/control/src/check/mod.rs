//! Checks: whether the files that the database speaks of are there, and whether they are what was written down.
//!
//! ```text
//!   POST /checks ─▶ one job for each server that has files of the organisation ─▶ sandboxes ─▶ layers ─▶ volumes
//!                                        │ once a second: how far it is                (an operator's: what nobody owns)
//!   GET /checks/{id} ◀── the jobs' own words, put together
//! ```
//! A check reads and changes nothing, and keeps nobody from starting a sandbox: what was started meanwhile is not judged. Of a
//! sandbox with a manifest everything is compared, of the layers below too. What has none is read, so that a filesystem with
//! checksums finds what its disk has lost. A job that is broken off begins again.

mod run;

use std::collections::BTreeMap;

use cove_protocol::SandboxId;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{Job, JobState, NewJob};
use crate::provider::manifest::{Checked, How, Problem, ProblemKind};
use crate::{App, Caller, Error, Scope, random};

/// The kind of its jobs.
pub(crate) const CHECK_JOB: &str = "check";

/// Things that a report lists; more that are sound are counted.
const ITEMS: usize = 1000;
/// Problems of one thing that are told, and of all together.
const PROBLEMS: usize = 50;
const PROBLEMS_OF_ALL: usize = 500;

/// What is to be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Of {
    /// All that the organisation has.
    All,
    /// These sandboxes, by id or name, with their layers and volumes.
    Sandboxes(Vec<String>),
}

/// How far a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = CheckProgress)]
pub struct Progress {
    /// Sandboxes, layers and volumes to look at, as far as they are known yet.
    pub things: u64,
    /// How many of them are done.
    pub done: u64,
    /// Names that were looked at.
    pub files: u64,
    /// Bytes of data that were read.
    pub bytes: u64,
}

/// A check, under way or done.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Check {
    pub id: String,
    pub state: JobState,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    pub progress: Progress,
    /// Whether nothing is damaged; absent until it is done.
    pub sound: Option<bool>,
    /// What was looked at, damaged things first.
    pub items: Vec<Item>,
    /// Sound things that are not listed, because there are so many.
    pub left_out: u64,
    /// Why it did not come to its end.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CheckedKind)]
pub enum ItemKind {
    Sandbox,
    Layer,
    Volume,
    /// What lies on a server and is nobody's.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CheckVerdict)]
pub enum Verdict {
    Damaged,
    NotChecked,
    Sound,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = CheckedThing)]
pub struct Item {
    pub kind: ItemKind,
    pub id: String,
    pub name: Option<String>,
    pub verdict: Verdict,
    /// What it was compared with.
    pub checked_by: Option<How>,
    /// What that means, in words.
    pub note: String,
    /// Names that were looked at.
    pub files: u64,
    /// Bytes of data that were read.
    pub bytes: u64,
    pub missing: u64,
    pub added: u64,
    pub changed: u64,
    pub unreadable: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

impl Item {
    fn new(kind: ItemKind, id: impl ToString, name: Option<String>, verdict: Verdict, note: impl Into<String>) -> Item {
        Item {
            kind,
            id: id.to_string(),
            name,
            verdict,
            checked_by: None,
            note: note.into(),
            files: 0,
            bytes: 0,
            missing: 0,
            added: 0,
            changed: 0,
            unreadable: 0,
            problems: Vec::new(),
        }
    }

    /// The database speaks of it, and it is not there.
    fn absent(kind: ItemKind, id: impl ToString, name: Option<String>, note: &str) -> Item {
        let mut item = Item::new(kind, id, name, Verdict::Damaged, note);
        item.missing = 1;
        item.problems.push(Problem { kind: ProblemKind::Missing, path: String::new(), detail: note.to_owned() });
        item
    }

    /// What a provider found; `sound` is the note where nothing is wrong.
    fn of(kind: ItemKind, id: impl ToString, name: Option<String>, checked: Checked, sound: String) -> Item {
        let (verdict, note) =
            if checked.is_sound() { (Verdict::Sound, sound) } else { (Verdict::Damaged, findings(&checked)) };
        Item {
            checked_by: Some(checked.how),
            files: checked.files,
            bytes: checked.bytes,
            missing: checked.missing,
            added: checked.added,
            changed: checked.changed,
            unreadable: checked.unreadable,
            problems: checked.problems,
            ..Item::new(kind, id, name, verdict, note)
        }
    }
}

/// `2 missing, 1 changed`, or the trouble with the manifest.
fn findings(checked: &Checked) -> String {
    let counts = [
        (checked.missing, "missing"),
        (checked.added, "added"),
        (checked.changed, "changed"),
        (checked.unreadable, "unreadable"),
    ];
    let words: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    match checked.problems.iter().find(|problem| problem.kind == ProblemKind::Manifest) {
        Some(problem) if words.is_empty() => problem.detail.clone(),
        _ => words.join(", "),
    }
}

/// What a job of a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Report {
    items: Vec<Item>,
    left_out: u64,
    damaged: u64,
}

impl Report {
    fn add(&mut self, mut item: Item) {
        self.damaged += u64::from(item.verdict == Verdict::Damaged);
        if self.items.len() >= ITEMS {
            // Sound ones make room for what somebody must read.
            let place = match item.verdict {
                Verdict::Damaged => self.items.iter().position(|item| item.verdict != Verdict::Damaged),
                Verdict::NotChecked | Verdict::Sound => None,
            };
            self.left_out += 1;
            let Some(place) = place else { return };
            self.items.remove(place);
        }
        let told: usize = self.items.iter().map(|item| item.problems.len()).sum();
        item.problems.truncate(PROBLEMS.min(PROBLEMS_OF_ALL.saturating_sub(told)));
        self.items.push(item);
    }
}

/// What one job is told, and what it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Part {
    of: Which,
    reach: Reach,
    /// How many jobs the check has; none in all but the first of them.
    parts: usize,
    progress: Progress,
    report: Option<Report>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    All,
    Sandboxes(Vec<SandboxId>),
}

/// Whether what nobody owns is looked for as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reach {
    Organisation,
    /// For operators.
    Server,
}

impl Part {
    fn read(job: &Job) -> Result<Part, Error> {
        serde_json::from_value(job.payload.clone())
            .map_err(|error| Error::internal(format!("store: what check {} is about: {error}", job.id)))
    }

    fn to_json(&self) -> Result<serde_json::Value, Error> {
        serde_json::to_value(self).map_err(|error| Error::internal(format!("write what a check says: {error}")))
    }
}

/// The job of a part; the first one's id is the check's.
fn part_id(check: &str, number: usize) -> String {
    if number == 0 { check.to_owned() } else { format!("{check}-{number}") }
}

impl App {
    /// Begins to check, in the background. One at a time for each organisation: it reads all that there is.
    pub async fn begin_check(&self, caller: &Caller, of: Of) -> Result<Check, Error> {
        caller.require(Scope::Write)?;
        let parts = self.parts_of(caller, of).await?;
        let reach = if caller.may(Scope::Operator) { Reach::Server } else { Reach::Organisation };
        let (id, now) = (random::id("check"), self.now());
        self.audit(caller, "check.begin", &id).await?;
        for (number, (server, of)) in parts.iter().enumerate() {
            let first = number == 0;
            let part = Part {
                of: of.clone(),
                reach,
                parts: if first { parts.len() } else { 0 },
                progress: Progress::default(),
                report: None,
            };
            let job = NewJob {
                kind: CHECK_JOB.into(),
                subject: subject(of),
                organisation: caller.organisation.clone(),
                server: Some(server.clone()),
                unique_key: first.then(|| format!("check/{}", caller.organisation)),
                run_at: now,
                payload: part.to_json()?,
            };
            if !self.store().add_job(&part_id(&id, number), &job, now.as_millisecond()).await? {
                let message = "another check of the organisation is under way; wait for it (GET /jobs lists it)";
                return Err(Error::Conflict(message.into()));
            }
        }
        self.check(caller, &id).await
    }

    /// What each server is to look at.
    async fn parts_of(&self, caller: &Caller, of: Of) -> Result<Vec<(String, Which)>, Error> {
        let names = match of {
            Of::Sandboxes(names) => names,
            Of::All => {
                let mut servers = self.store().servers_with_files(&caller.organisation).await?;
                if !servers.iter().any(|server| server == self.server()) {
                    servers.push(self.server().to_owned());
                }
                return Ok(servers.into_iter().map(|server| (server, Which::All)).collect());
            }
        };
        if names.is_empty() {
            return Err(Error::invalid("sandboxes", "name at least one, or ask for all"));
        }
        let mut by_server: BTreeMap<String, Vec<SandboxId>> = BTreeMap::new();
        for name in &names {
            let sandbox = self.sandbox(caller, name).await?;
            let server = if self.is_here(&sandbox) { self.server().to_owned() } else { sandbox.server };
            let ids = by_server.entry(server).or_default();
            if !ids.contains(&sandbox.id) {
                ids.push(sandbox.id);
            }
        }
        Ok(by_server.into_iter().map(|(server, ids)| (server, Which::Sandboxes(ids))).collect())
    }

    /// A check of the caller's organisation.
    pub async fn check(&self, caller: &Caller, id: &str) -> Result<Check, Error> {
        let unknown = || Error::not_found("check", id);
        let first = self.part(caller, id).await?.filter(|(_, part)| part.parts > 0).ok_or_else(unknown)?;
        let (created_at, count) = (first.0.created_at, first.1.parts);
        let mut parts = vec![Some(first)];
        for number in 1..count {
            parts.push(self.part(caller, &part_id(id, number)).await?);
        }
        Ok(together(id, created_at, parts))
    }

    /// One job of a check of the caller's organisation.
    async fn part(&self, caller: &Caller, id: &str) -> Result<Option<(Job, Part)>, Error> {
        let job = self.store().job(id).await?;
        let ours = job.filter(|job| job.kind == CHECK_JOB && job.organisation == caller.organisation);
        ours.map(|job| Part::read(&job).map(|part| (job, part))).transpose()
    }
}

fn subject(of: &Which) -> String {
    match of {
        Which::All => "all".into(),
        Which::Sandboxes(ids) if ids.len() == 1 => ids[0].to_string(),
        Which::Sandboxes(ids) => format!("{} sandboxes", ids.len()),
    }
}

/// One check out of its jobs. One that is not there was never written: its server died at it.
fn together(id: &str, created_at: Timestamp, parts: Vec<Option<(Job, Part)>>) -> Check {
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
    let lost = parts.iter().any(Option::is_none).then(|| "a part of it was lost; check again".to_owned());
    let mut check = Check {
        id: id.to_owned(),
        state,
        created_at,
        finished_at: None,
        progress: Progress::default(),
        sound: None,
        items: Vec::new(),
        left_out: 0,
        error: lost,
    };
    let mut damaged = 0;
    for (job, part) in parts.into_iter().flatten() {
        check.progress.things += part.progress.things;
        check.progress.done += part.progress.done;
        check.progress.files += part.progress.files;
        check.progress.bytes += part.progress.bytes;
        check.error = check.error.or(job.error);
        if over {
            check.finished_at = check.finished_at.max(job.finished_at);
        }
        let report = part.report.unwrap_or_default();
        damaged += report.damaged;
        check.left_out += report.left_out;
        check.items.extend(report.items);
    }
    check.items.sort_by_key(|item| item.verdict);
    if state == JobState::Done {
        check.sound = Some(damaged == 0);
        check.error = None;
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(number: usize, verdict: Verdict) -> Item {
        let mut item = Item::new(ItemKind::Layer, number, None, verdict, "");
        let problem = Problem { kind: ProblemKind::Changed, path: "/x".into(), detail: "content".into() };
        item.problems = if verdict == Verdict::Damaged { vec![problem; 100] } else { Vec::new() };
        item
    }

    #[test]
    fn a_report_stays_small_and_damaged_things_are_in_it() {
        let mut report = Report::default();
        for number in 0..ITEMS + 10 {
            report.add(item(number, Verdict::Sound));
        }
        for number in 0..20 {
            report.add(item(number, Verdict::Damaged));
        }
        assert_eq!((report.items.len(), report.left_out, report.damaged), (ITEMS, 30, 20));
        let damaged = report.items.iter().filter(|item| item.verdict == Verdict::Damaged);
        let told: Vec<usize> = damaged.map(|item| item.problems.len()).collect();
        assert_eq!((told.len(), told.iter().sum::<usize>(), told[0]), (20, PROBLEMS_OF_ALL, PROBLEMS));
    }

    fn part(state: JobState, report: Option<Report>) -> Option<(Job, Part)> {
        let at = crate::clock::from_millisecond(1000);
        let job = Job {
            id: "check_x".into(),
            kind: CHECK_JOB.into(),
            subject: "all".into(),
            organisation: "o".into(),
            state,
            run_at: at,
            attempts: 1,
            created_at: at,
            finished_at: (state == JobState::Done).then_some(at),
            error: None,
            payload: serde_json::Value::Null,
        };
        let progress = Progress { things: 2, done: 1, files: 10, bytes: 100 };
        let part = Part { of: Which::All, reach: Reach::Organisation, parts: 2, progress, report };
        Some((job, part))
    }

    #[test]
    fn a_check_of_several_servers_is_done_when_all_are() {
        let at = crate::clock::from_millisecond(0);
        let report = |verdict| {
            let mut report = Report::default();
            report.add(item(1, verdict));
            Some(report)
        };
        let under_way = vec![part(JobState::Done, report(Verdict::Sound)), part(JobState::Queued, None)];
        let check = together("check_x", at, under_way);
        assert_eq!((check.state, check.sound, check.progress.files), (JobState::Running, None, 20));
        let done = vec![part(JobState::Done, report(Verdict::Sound)), part(JobState::Done, report(Verdict::Damaged))];
        let check = together("check_x", at, done);
        assert_eq!((check.state, check.sound, check.items.len()), (JobState::Done, Some(false), 2));
        assert_eq!(check.items[0].verdict, Verdict::Damaged, "what must be read comes first");
        let lost = together("check_x", at, vec![part(JobState::Done, None), None]);
        assert_eq!((lost.state, lost.sound), (JobState::Failed, None));
        assert!(lost.error.unwrap().contains("lost"));
    }
}
