//! How each provider does: measured on every creation, command and change, and by a light call now and then.
//!
//! What was seen is kept in memory, the newest of each kind; [`judge`] makes a verdict of it, and knows no clock. A
//! provider is *ill* when its last creations all failed, or when it does not answer. It is tried again after a while, by
//! the next creation that comes: one success and it is well.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock::{Timestamp, from_millisecond};
use crate::guest::{GuestError, Told};
use crate::provider::ProviderError;
use crate::{App, Error};

/// How often a provider is asked whether it answers.
pub(crate) const EVERY: Duration = Duration::from_secs(15);
/// How long it may take for that.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Samples of one kind that are kept.
const KEPT: usize = 256;
/// What is older says nothing about today.
const WINDOW_MS: i64 = 10 * 60 * 1000;
/// Creations in a row that failed, and checks in a row.
const CREATIONS: usize = 3;
const CHECKS: usize = 2;
/// How long one that failed is left alone.
const REST_MS: i64 = 30 * 1000;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[schema(as = ProviderAct)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// A launch, up to the first answer of what runs inside.
    Create,
    /// The start of a command, up to its first answer.
    Exec,
    /// A stop, pause, resume or removal.
    Change,
    /// The light call.
    Check,
}

impl Act {
    pub const ALL: [Act; 4] = [Act::Create, Act::Exec, Act::Change, Act::Check];

    pub fn as_str(self) -> &'static str {
        match self {
            Act::Create => "create",
            Act::Exec => "exec",
            Act::Change => "change",
            Act::Check => "check",
        }
    }
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub at: i64,
    pub took: Duration,
    pub failed: bool,
}

/// Whether sandboxes should go there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Well,
    /// With a sentence.
    Ill(String),
}

/// The verdict over the newest creations and checks, both oldest first.
pub fn judge(creations: &[Sample], checks: &[Sample], now: i64) -> Condition {
    let recent = |sample: &&Sample| now - sample.at <= WINDOW_MS;
    let failures = |samples: &[Sample]| samples.iter().rev().filter(recent).take_while(|sample| sample.failed).count();
    if failures(checks) >= CHECKS {
        return Condition::Ill("it does not answer".into());
    }
    let in_a_row = failures(creations);
    let rests = creations.last().is_some_and(|last| now - last.at < REST_MS);
    if in_a_row >= CREATIONS && rests {
        return Condition::Ill(format!("the last {in_a_row} creations failed"));
    }
    Condition::Well
}

/// What was measured of one kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = ProviderFigures)]
pub struct Figures {
    pub act: Act,
    /// Calls of the last ten minutes, the newest 256 at most.
    pub calls: u64,
    pub errors: u64,
    /// From 0 to 1.
    pub error_rate: f64,
    /// Half of those that succeeded took no longer.
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
}

/// How a provider does.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = ProviderHealth)]
pub struct Report {
    /// `well` or `ill`.
    pub state: &'static str,
    /// Why it is ill.
    pub why: Option<String>,
    pub acts: Vec<Figures>,
    /// The newest failure, as a sentence.
    pub last_error: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_error_at: Option<Timestamp>,
    /// When it last answered anything.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub answered_at: Option<Timestamp>,
}

/// Since the server began, for counters that only rise.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    pub calls: u64,
    pub errors: u64,
    pub seconds: f64,
}

#[derive(Debug, Default)]
struct Record {
    samples: BTreeMap<Act, VecDeque<Sample>>,
    totals: BTreeMap<Act, Totals>,
    last_error: Option<(i64, String)>,
    answered_at: Option<i64>,
    /// What the log was told last.
    said_ill: bool,
}

impl Record {
    fn of(&self, act: Act) -> Vec<Sample> {
        self.samples.get(&act).into_iter().flatten().copied().collect()
    }

    fn condition(&self, now: i64) -> Condition {
        judge(&self.of(Act::Create), &self.of(Act::Check), now)
    }
}

/// What is known of all of them.
#[derive(Debug, Default)]
pub struct Watch(Mutex<BTreeMap<String, Record>>);

impl Watch {
    fn with<T>(&self, provider: &str, act: impl FnOnce(&mut Record) -> T) -> T {
        let mut all = self.0.lock().expect("no panic while held");
        if !all.contains_key(provider) {
            all.insert(provider.to_owned(), Record::default());
        }
        act(all.get_mut(provider).expect("it was just put there"))
    }

    /// Notes a call; `failure` is what it failed with, where that is the provider's fault.
    pub fn note(&self, provider: &str, act: Act, now: i64, took: Duration, failure: Option<String>) {
        self.with(provider, |record| {
            let samples = record.samples.entry(act).or_default();
            if samples.len() == KEPT {
                samples.pop_front();
            }
            samples.push_back(Sample { at: now, took, failed: failure.is_some() });
            let totals = record.totals.entry(act).or_default();
            totals.calls += 1;
            totals.errors += u64::from(failure.is_some());
            totals.seconds += took.as_secs_f64();
            match failure {
                Some(failure) => record.last_error = Some((now, failure)),
                None => record.answered_at = Some(now),
            }
        });
    }

    pub fn condition(&self, provider: &str, now: i64) -> Condition {
        self.with(provider, |record| record.condition(now))
    }

    pub fn totals(&self, provider: &str, act: Act) -> Totals {
        self.with(provider, |record| record.totals.get(&act).copied().unwrap_or_default())
    }

    pub fn report(&self, provider: &str, now: i64) -> Report {
        self.with(provider, |record| {
            let (state, why) = match record.condition(now) {
                Condition::Well => ("well", None),
                Condition::Ill(why) => ("ill", Some(why)),
            };
            let acts = Act::ALL.into_iter().filter(|act| record.samples.contains_key(act));
            Report {
                state,
                why,
                acts: acts.map(|act| figures(act, &record.of(act), now)).collect(),
                last_error: record.last_error.as_ref().map(|(_, error)| error.clone()),
                last_error_at: record.last_error.as_ref().map(|(at, _)| from_millisecond(*at)),
                answered_at: record.answered_at.map(from_millisecond),
            }
        })
    }

    /// Whether its condition is another than the log was told; it is told now.
    fn has_changed(&self, provider: &str, condition: &Condition) -> bool {
        let ill = matches!(condition, Condition::Ill(_));
        self.with(provider, |record| std::mem::replace(&mut record.said_ill, ill) != ill)
    }
}

fn figures(act: Act, samples: &[Sample], now: i64) -> Figures {
    let recent: Vec<&Sample> = samples.iter().filter(|sample| now - sample.at <= WINDOW_MS).collect();
    let errors = recent.iter().filter(|sample| sample.failed).count();
    let mut times: Vec<Duration> = recent.iter().filter(|sample| !sample.failed).map(|sample| sample.took).collect();
    times.sort_unstable();
    let at = |share: f64| {
        let place = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len().max(1)) - 1;
        times.get(place).map(|time| (time.as_secs_f64() * 1e6).round() / 1e3)
    };
    Figures {
        act,
        calls: recent.len() as u64,
        errors: errors as u64,
        error_rate: if recent.is_empty() { 0.0 } else { errors as f64 / recent.len() as f64 },
        p50_ms: at(0.5),
        p95_ms: at(0.95),
    }
}

/// The sentence of a failure that is the provider's; nothing where the request was wrong, or asked for too much of it.
pub fn fault(error: &ProviderError) -> Option<String> {
    match error {
        ProviderError::Exhausted(why)
        | ProviderError::Full(why)
        | ProviderError::Unfit(why)
        | ProviderError::Failed(why) => Some(why.clone()),
        ProviderError::NotFound(_) | ProviderError::Unsupported(_) | ProviderError::Refused(_) => None,
    }
}

impl App {
    /// Does what a provider is asked, and notes how it went.
    pub(crate) async fn measured<T>(
        &self,
        provider: &str,
        act: Act,
        call: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let begun = Instant::now();
        let done = call.await;
        let failure = done.as_ref().err().and_then(fault);
        self.watch().note(provider, act, self.now().as_millisecond(), begun.elapsed(), failure);
        done
    }

    /// Notes the starts of commands. A command that cannot be started is nobody's fault here.
    pub(crate) fn starts_at(&self, provider: &str) -> Told {
        let (watch, clock, provider) = (Arc::clone(self.watch()), self.clock().clone(), provider.to_owned());
        Arc::new(move |took: Duration, failure: Option<&GuestError>| {
            let failure = failure.filter(|failure| !matches!(failure, GuestError::Failed(_))).map(ToString::to_string);
            watch.note(&provider, Act::Exec, clock.now().as_millisecond(), took, failure);
        })
    }

    /// Whether new sandboxes should go there.
    pub fn is_well(&self, provider: &str) -> bool {
        self.watch().condition(provider, self.now().as_millisecond()) == Condition::Well
    }

    /// How a provider does.
    pub fn provider_health(&self, provider: &str) -> Report {
        self.watch().report(provider, self.now().as_millisecond())
    }

    /// Asks every provider whether it answers, all at once.
    pub async fn check_providers(&self) -> Result<(), Error> {
        let checks = self.providers().map(|provider| async move {
            let name = provider.name();
            let answered = async {
                match tokio::time::timeout(ANSWER_WITHIN, provider.answers()).await {
                    Ok(answered) => answered,
                    Err(_) => {
                        let seconds = ANSWER_WITHIN.as_secs();
                        Err(ProviderError::Failed(format!("it did not answer within {seconds} s")))
                    }
                }
            };
            // Its sentence is in the report, and in the log where it changes the verdict.
            let _noted = self.measured(name, Act::Check, answered).await;
            let condition = self.watch().condition(name, self.now().as_millisecond());
            if self.watch().has_changed(name, &condition) {
                let report = self.provider_health(name);
                match condition {
                    Condition::Well => tracing::info!(provider = name, "the provider is well again"),
                    Condition::Ill(why) => {
                        tracing::warn!(provider = name, why, error = report.last_error, "the provider is ill");
                    }
                }
            }
        });
        futures::future::join_all(checks).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(at: i64, failed: bool) -> Sample {
        Sample { at, took: Duration::from_millis(10), failed }
    }

    #[test]
    fn three_failed_creations_are_an_illness_for_half_a_minute() {
        let creations = [sample(0, false), sample(1000, true), sample(2000, true), sample(3000, true)];
        assert_eq!(judge(&creations, &[], 4000), Condition::Ill("the last 3 creations failed".into()));
        assert_eq!(judge(&creations[..3], &[], 4000), Condition::Well, "two are none yet");
        // Somebody tries: with another failure it is ill again at once, with a success it is well.
        assert_eq!(judge(&creations, &[], 3000 + REST_MS), Condition::Well);
        let again = [&creations[..], &[sample(40_000, true)]].concat();
        assert_eq!(judge(&again, &[], 40_001), Condition::Ill("the last 4 creations failed".into()));
        let well = [&creations[..], &[sample(40_000, false)]].concat();
        assert_eq!(judge(&well, &[], 40_001), Condition::Well);
    }

    #[test]
    fn one_that_does_not_answer_is_ill_until_it_does() {
        let checks = [sample(0, true), sample(15_000, true)];
        assert_eq!(judge(&[], &checks, 300_000), Condition::Ill("it does not answer".into()));
        assert_eq!(judge(&[], &checks[..1], 300_000), Condition::Well);
        let answered = [&checks[..], &[sample(30_000, false)]].concat();
        assert_eq!(judge(&[], &answered, 300_000), Condition::Well);
    }

    #[test]
    fn figures_are_of_the_last_minutes_and_times_of_what_succeeded() {
        let watch = Watch::default();
        let now = 10 * WINDOW_MS;
        watch.note("p", Act::Create, now - WINDOW_MS - 1, Duration::from_secs(9), None);
        for number in 1..=10u64 {
            let failure = (number == 10).then(|| "no room".to_owned());
            watch.note("p", Act::Create, now, Duration::from_millis(number), failure);
        }
        let report = watch.report("p", now);
        assert_eq!((report.state, report.last_error.as_deref()), ("well", Some("no room")));
        let [create] = &report.acts[..] else { panic!("{:?}", report.acts) };
        assert_eq!((create.calls, create.errors, create.error_rate), (10, 1, 0.1));
        assert_eq!((create.p50_ms, create.p95_ms), (Some(5.0), Some(9.0)));
        assert_eq!(watch.totals("p", Act::Create).calls, 11);
        assert_eq!(watch.report("unknown", now).acts, []);
    }

    proptest! {
        #[test]
        fn a_success_is_always_well(mut failures in prop::collection::vec(any::<bool>(), 0..20), now in 0i64..1_000_000) {
            failures.push(false);
            let samples: Vec<Sample> = failures.iter().map(|failed| sample(now, *failed)).collect();
            prop_assert_eq!(judge(&samples, &samples, now), Condition::Well);
        }

        #[test]
        fn nobody_is_ill_for_ever_without_new_failures(count in 1usize..20, now in 0i64..1_000_000) {
            let samples = vec![sample(now, true); count];
            prop_assert_eq!(judge(&samples, &samples, now + WINDOW_MS + 1), Condition::Well);
        }
    }
}
