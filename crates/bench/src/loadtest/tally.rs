//! What became of every step of every user.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::measure::api::Trouble;
use crate::measure::processors::{Processors, Work};
use crate::measure::report::Mishap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Create,
    Exec,
    Upload,
    Download,
    Preview,
    Cell,
    Delete,
}

impl Step {
    pub const ALL: [Step; 7] =
        [Step::Create, Step::Exec, Step::Upload, Step::Download, Step::Preview, Step::Cell, Step::Delete];

    pub fn name(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Exec => "exec",
            Step::Upload => "upload",
            Step::Download => "download",
            Step::Preview => "preview",
            Step::Cell => "interpreter cell",
            Step::Delete => "delete",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Default)]
pub struct Tally {
    began: Option<Instant>,
    processors: Option<Processors>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    steps: BTreeMap<Step, Record>,
    /// Seconds since the beginning at which a step succeeded.
    done_at: Vec<f64>,
    errors: BTreeMap<(Step, String), (u64, String)>,
    seconds: f64,
    work: Option<Work>,
}

#[derive(Debug, Clone, Default)]
pub struct Record {
    pub milliseconds: Vec<f64>,
    pub errors: u64,
    /// Answers that said: no room now.
    pub busy: u64,
    /// Of those, how many did not say when to come again.
    pub busy_without_time: u64,
}

impl Tally {
    pub fn new() -> Tally {
        Tally { began: Some(Instant::now()), processors: Processors::look(), inner: Mutex::default() }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().expect("no panic while held"))
    }

    pub fn succeeded(&self, step: Step, took: Duration) {
        let at = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        self.with(|inner| {
            inner.steps.entry(step).or_default().milliseconds.push(took.as_secs_f64() * 1000.0);
            inner.done_at.push(at);
        });
    }

    pub fn troubled(&self, step: Step, trouble: &Trouble) {
        self.with(|inner| match trouble {
            Trouble::Busy { retry_after, .. } => {
                let record = inner.steps.entry(step).or_default();
                record.busy += 1;
                record.busy_without_time += u64::from(retry_after.is_none());
            }
            other => {
                inner.steps.entry(step).or_default().errors += 1;
                let example = other.to_string();
                inner.errors.entry((step, other.kind())).or_insert((0, example)).0 += 1;
            }
        });
    }

    pub fn close(&self) {
        let seconds = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let work = self.processors.as_ref().and_then(|before| Some(Processors::look()?.since(before)));
        self.with(|inner| (inner.seconds, inner.work) = (seconds, work));
    }

    /// Whether it was the machine, or this program, that had no more to give.
    pub fn work(&self) -> Option<Work> {
        self.with(|inner| inner.work)
    }

    pub fn seconds(&self) -> f64 {
        self.with(|inner| inner.seconds)
    }

    pub fn record(&self, step: Step) -> Record {
        self.with(|inner| inner.steps.get(&step).cloned().unwrap_or_default())
    }

    pub fn done_at(&self) -> Vec<f64> {
        self.with(|inner| inner.done_at.clone())
    }

    pub fn errors(&self) -> u64 {
        Step::ALL.into_iter().map(|step| self.record(step).errors).sum()
    }

    pub fn busy(&self) -> u64 {
        Step::ALL.into_iter().map(|step| self.record(step).busy).sum()
    }

    pub fn succeeded_in_all(&self) -> usize {
        self.with(|inner| inner.done_at.len())
    }

    /// By cause, the most frequent first.
    pub fn mishaps(&self) -> Vec<Mishap> {
        let mut all: Vec<Mishap> = self.with(|inner| {
            let told = inner.errors.iter().map(|((step, kind), (count, example))| Mishap {
                step: step.name().to_owned(),
                kind: kind.clone(),
                count: *count,
                example: example.clone(),
            });
            told.collect()
        });
        all.sort_by_key(|mishap| std::cmp::Reverse(mishap.count));
        all
    }

    /// For a progress bar.
    pub fn line(&self) -> String {
        format!("{} done, {} errors, {} over capacity", self.succeeded_in_all(), self.errors(), self.busy())
    }
}
