//! When a sandbox ends by itself: pure rules from a time to a verdict.
//!
//! * **lifetime**: a deadline, whatever happens; then destroy, pause or stop.
//! * **idle**: this long without activity; then stop (or pause, or destroy). A request is activity until it ends, and
//!   so is work ([`super::work`]) unless told otherwise; it never moves the deadline.
//! * **archive**, **delete**: this long after the stop.
//! * **ephemeral**: a stop is a destroy.

use serde::{Deserialize, Serialize};

use super::Sandbox;
use super::state::State;
use crate::Error;
use crate::clock::{Timestamp, after};

/// Sixty years.
pub const LONGEST_SECONDS: u64 = 1_892_160_000;

/// What happens when the timer expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    Destroy,
    Pause,
    #[default]
    Stop,
}

/// What counts as activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdleMeasure {
    /// Requests alone, for as long as each takes.
    Requests,
    /// Also a process that uses the processor or moves data, whoever started it; a daemon that only waits does not count.
    #[default]
    RequestsAndWork,
    /// Also every process that was started through the API and still runs, be it at work or not.
    RequestsAndProcesses,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timers {
    /// The end of its lifetime.
    pub deadline: Option<Timestamp>,
    pub at_deadline: Expiry,
    /// The requested lifetime: a sandbox that wakes by itself gets it again.
    pub lifetime_seconds: Option<u64>,
    pub idle_seconds: Option<u64>,
    pub at_idle: Expiry,
    pub idle_measure: IdleMeasure,
    pub archive_after_seconds: Option<u64>,
    pub delete_after_seconds: Option<u64>,
    /// A stop is a destroy.
    pub ephemeral: bool,
    /// A call or preview request wakes it when it is paused or stopped.
    pub auto_resume: bool,
}

/// Idle sandboxes stop after this by default.
pub const IDLE_DEFAULT: u64 = 15 * 60;

impl Default for Timers {
    fn default() -> Self {
        Timers {
            deadline: None,
            at_deadline: Expiry::Destroy,
            lifetime_seconds: None,
            idle_seconds: Some(IDLE_DEFAULT),
            at_idle: Expiry::Stop,
            idle_measure: IdleMeasure::RequestsAndWork,
            archive_after_seconds: None,
            delete_after_seconds: None,
            ephemeral: false,
            auto_resume: false,
        }
    }
}

/// Parts of [`Timers`] to set; what is `None` stays. The inner `None` switches a timer off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimersChange {
    /// Seconds from now to the deadline.
    pub lifetime_seconds: Option<Option<u64>>,
    /// The deadline itself; wins over `lifetime_seconds`.
    pub deadline: Option<Option<Timestamp>>,
    pub at_deadline: Option<Expiry>,
    pub idle_seconds: Option<Option<u64>>,
    pub at_idle: Option<Expiry>,
    pub idle_measure: Option<IdleMeasure>,
    pub archive_after_seconds: Option<Option<u64>>,
    pub delete_after_seconds: Option<Option<u64>>,
    pub ephemeral: Option<bool>,
    pub auto_resume: Option<bool>,
}

impl TimersChange {
    /// Refuses times outside of the calendar.
    pub fn check(&self) -> Result<(), Error> {
        let times = [
            ("lifetime_seconds", self.lifetime_seconds),
            ("idle_seconds", self.idle_seconds),
            ("archive_after_seconds", self.archive_after_seconds),
            ("delete_after_seconds", self.delete_after_seconds),
        ];
        match times.into_iter().find(|(_, time)| time.flatten().is_some_and(|seconds| seconds > LONGEST_SECONDS)) {
            Some((field, _)) => Err(Error::invalid(field, format!("at most {LONGEST_SECONDS}, which is 60 years"))),
            None => Ok(()),
        }
    }

    pub fn apply(&self, timers: &mut Timers, now: Timestamp) {
        if let Some(lifetime) = self.lifetime_seconds {
            timers.lifetime_seconds = lifetime;
            timers.deadline = lifetime.map(|seconds| after(now, seconds));
        }
        if let Some(deadline) = self.deadline {
            timers.deadline = deadline;
        }
        timers.at_deadline = self.at_deadline.unwrap_or(timers.at_deadline);
        timers.idle_seconds = self.idle_seconds.unwrap_or(timers.idle_seconds);
        timers.at_idle = self.at_idle.unwrap_or(timers.at_idle);
        timers.idle_measure = self.idle_measure.unwrap_or(timers.idle_measure);
        timers.archive_after_seconds = self.archive_after_seconds.unwrap_or(timers.archive_after_seconds);
        timers.delete_after_seconds = self.delete_after_seconds.unwrap_or(timers.delete_after_seconds);
        timers.ephemeral = self.ephemeral.unwrap_or(timers.ephemeral);
        timers.auto_resume = self.auto_resume.unwrap_or(timers.auto_resume);
    }
}

/// Which timer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    Lifetime(Expiry),
    Idle(Expiry),
    Archive,
    Delete,
}

/// The timer that expires next, and when. Of two at the same time, the one that ends more wins.
pub fn next(sandbox: &Sandbox) -> Option<(Timestamp, Timer)> {
    let timers = &sandbox.timers;
    let mut all = Vec::with_capacity(4);
    let lasting = !matches!(sandbox.state, State::Destroying | State::Destroyed);
    if let Some(deadline) = timers.deadline.filter(|_| lasting) {
        // A deadline that pauses or stops does nothing to a paused or stopped sandbox.
        let to_do = match timers.at_deadline {
            Expiry::Destroy => true,
            Expiry::Pause => sandbox.state == State::Running,
            Expiry::Stop => matches!(sandbox.state, State::Running | State::Paused),
        };
        if to_do {
            all.push((deadline, Timer::Lifetime(timers.at_deadline)));
        }
    }
    if let Some(idle) = timers.idle_seconds.filter(|_| sandbox.state == State::Running) {
        all.push((after(sandbox.last_activity_at, idle), Timer::Idle(timers.at_idle)));
    }
    if matches!(sandbox.state, State::Stopped | State::Failed | State::Archived)
        && let Some(delete) = timers.delete_after_seconds
    {
        all.push((after(sandbox.state_since, delete), Timer::Delete));
    }
    if let Some(archive) = timers.archive_after_seconds.filter(|_| sandbox.state == State::Stopped) {
        all.push((after(sandbox.state_since, archive), Timer::Archive));
    }
    all.into_iter().min_by_key(|(at, timer)| (*at, rank(*timer)))
}

fn rank(timer: Timer) -> u8 {
    match timer {
        Timer::Lifetime(_) => 0,
        Timer::Delete => 1,
        Timer::Archive => 2,
        Timer::Idle(_) => 3,
    }
}
