//! A load's tally as a report.

use std::fmt::Write as _;
use std::time::Duration;

use cove_terminal::quantity::show_duration;
use serde_json::{Value, json};

use super::{Step, Tally};
use crate::measure::machine::Machine;
use crate::measure::processors::Work;
use crate::measure::report::{Report, Series, Suite, Unit, VERSION};
use crate::measure::summary::Summary;

/// A course in time needs some.
const FEWEST_SECONDS: usize = 5;

/// `machine` as it was before.
pub fn make(machine: Machine, users: u32, think: Duration, tally: &Tally, whom: &str) -> Report {
    let mut suite = suite(tally, users, think);
    suite.name = "load".into();
    suite.title = "What they waited for".into();
    Report {
        version: VERSION,
        kind: "loadtest".into(),
        title: format!("{users} users at once against {whom}"),
        machine,
        seconds: tally.seconds(),
        promises: Vec::new(),
        verdict: Some(sentence(tally)),
        mishaps: tally.mishaps(),
        suites: vec![suite],
    }
}

/// Also a part of `cove bench`.
pub fn suite(tally: &Tally, users: u32, think: Duration) -> Suite {
    let thinking = if think.is_zero() {
        "without a pause".to_owned()
    } else {
        format!("thinking {} on average between two steps", show_duration(think))
    };
    let method = format!(
        "{users} users at once, each with a sandbox of its own, {thinking}; a refusal for want of room (429, 503) is \
         waited out as the server asks and counted apart. {}",
        sentence(tally)
    );
    let mut suite = Suite::new("clients", &format!("{users} clients at once"), &method);
    let mut samples = Vec::new();
    for step in Step::ALL {
        let record = tally.record(step);
        suite.row(step.name(), Unit::Milliseconds, &record.milliseconds);
        if let Some(row) = suite.rows.last_mut().filter(|row| row.who == step.name()) {
            let mut told = Vec::new();
            match record.errors {
                0 => {}
                1 => told.push("1 error".to_owned()),
                errors => told.push(format!("{errors} errors")),
            }
            if record.busy > 0 {
                told.push(format!("{} over capacity", record.busy));
            }
            row.note = (!told.is_empty()).then(|| told.join(", "));
        }
        samples.push((step.name().to_owned(), record.milliseconds));
    }
    suite.distribution("How long each step took", &samples);
    let rate = rate(tally);
    if rate.points.len() >= FEWEST_SECONDS {
        suite.lines("Steps done", "seconds", "per second", vec![rate]);
    }
    suite
}

/// In each whole second; what was done after the last of them is in no point.
fn rate(tally: &Tally) -> Series {
    let mut counts = vec![0u32; tally.seconds() as usize];
    for at in tally.done_at() {
        if let Some(count) = counts.get_mut(at as usize) {
            *count += 1;
        }
    }
    let points = counts.iter().enumerate().map(|(second, count)| (second as f64, f64::from(*count)));
    Series { name: "steps".into(), points: points.collect() }
}

pub fn sentence(tally: &Tally) -> String {
    let (done, seconds) = (tally.succeeded_in_all(), tally.seconds());
    let mut text = format!(
        "{done} steps in {seconds:.1} s ({:.0} a second), {} errors, {} times over capacity.",
        done as f64 / seconds.max(0.001),
        tally.errors(),
        tally.busy()
    );
    if let Some(Work { machine, own }) = tally.work() {
        let (machine, own) = (machine * 100.0, own * 100.0);
        let _ =
            write!(text, " This machine's processors were {machine:.0} % at work, {own:.0} % with this client alone.");
    }
    text
}

pub fn csv(tally: &Tally) -> String {
    let mut text = String::from("step,n,errors,over_capacity,p50_ms,p95_ms,p99_ms,max_ms,per_second\n");
    for step in Step::ALL {
        let record = tally.record(step);
        let summary = Summary::of(&record.milliseconds);
        let figures = summary.map_or_else(
            || ",,,".to_owned(),
            |summary| format!("{:.3},{:.3},{:.3},{:.3}", summary.p50, summary.p95, summary.p99, summary.max),
        );
        let n = record.milliseconds.len();
        let rate = n as f64 / tally.seconds().max(0.001);
        let _ = writeln!(text, "{},{n},{},{},{figures},{rate:.2}", step.name(), record.errors, record.busy);
    }
    text
}

/// The report, and what only a load has.
pub fn json(report: &Report, tally: &Tally) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    let silent: u64 = Step::ALL.into_iter().map(|step| tally.record(step).busy_without_time).sum();
    value["errors"] = json!(tally.errors());
    value["errors_by_kind"] = json!(report.mishaps);
    value["over_capacity"] = json!(tally.busy());
    value["over_capacity_without_retry_after"] = json!(silent);
    value
}
