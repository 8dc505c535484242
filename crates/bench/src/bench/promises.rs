//! What is said of this product, held against the numbers of a run.

use crate::measure::report::{Promise, Report, figure};

/// A run of more suites is about the whole, and tells what it did not measure.
const MANY: usize = 6;

struct Held {
    text: String,
    kept: bool,
}

pub fn hold_against(report: &Report) -> Vec<Promise> {
    let median = |suite: &str, who: &str| Some(report.suite(suite)?.find(who)?.summary.p50);
    let times = |ours: Option<f64>, theirs: Option<f64>| Some(theirs? / ours?);
    let at_least = |value: Option<f64>, least: f64, unit: &str| {
        value.map(|value| Held { text: format!("{}{unit}", figure(value)), kept: value >= least })
    };
    let at_most = |value: Option<f64>, most: f64, unit: &str| {
        value.map(|value| Held { text: format!("{}{unit}", figure(value)), kept: value <= most })
    };
    let over_http = median("cold", "cove over HTTP");
    let best = |who: &str| {
        let rows = report.suite("throughput")?.rows.iter().filter(|row| row.who.starts_with(who));
        rows.map(|row| row.summary.p50).max_by(f64::total_cmp)
    };
    let ratio = |ours: Option<f64>, base: Option<f64>| Some(ours? / base?);
    let found_again = || {
        let seconds = median("restart", "cove, until all are found")? / 1000.0;
        Some(seconds / (median("restart", "sandboxes found")? / 1000.0).max(1.0))
    };
    let found = [
        (
            "create over HTTP to the first output, cold, against bare bubblewrap",
            "no slower",
            at_most(ratio(over_http, median("cold", "bubblewrap")), 1.0, " × bubblewrap"),
        ),
        (
            "the same against `docker run`",
            "at least 50 times faster",
            at_least(times(over_http, median("cold", "docker")), 50.0, " times faster"),
        ),
        (
            "the same from a warm pool, against fork and exec",
            "within 2 times",
            at_most(ratio(median("cold", "cove over HTTP, pool"), median("cold", "no walls")), 2.0, " × fork and exec"),
        ),
        (
            "first Python cell in a fresh sandbox from the pool, against `python3 -c pass`",
            "no slower",
            at_most(
                ratio(median("interpreter", "cove, pool"), median("interpreter", "python3 -c pass")),
                1.0,
                " × python3",
            ),
        ),
        (
            "the same against starting an ipykernel",
            "at least 20 times faster",
            at_least(
                times(median("interpreter", "cove, pool"), median("interpreter", "ipykernel")),
                20.0,
                " times faster",
            ),
        ),
        (
            "creations a second by the engine, the best of 1 to 8 at once, against docker",
            "at least 50 times as many",
            at_least(ratio(best("cove engine"), best("docker")), 50.0, " times as many"),
        ),
        (
            "memory of an idle sandbox, all in",
            "at most 1.5 MiB",
            at_most(median("density", "all in, per sandbox"), 1.5, " MiB"),
        ),
        (
            "server killed and started again: all sandboxes found",
            "within 2 s for each 1,000",
            at_most(found_again(), 2.0, " s"),
        ),
        (
            "a file up through the API, against a plain HTTP copy",
            "at least half as fast",
            at_least(ratio(median("files", "cove, up"), median("files", "plain HTTP, up")), 0.5, " ×"),
        ),
        (
            "a file down through the API, against a plain HTTP copy",
            "at least half as fast",
            at_least(ratio(median("files", "cove, down"), median("files", "plain HTTP, down")), 0.5, " ×"),
        ),
        (
            "create over HTTP to the first output from an image, cold, against `base`",
            "at most 20 % slower",
            at_most(
                ratio(median("image", "cove over HTTP, image"), median("image", "cove over HTTP, base")),
                1.2,
                " × base",
            ),
        ),
        (
            "a snapshot of a sandbox with 1 GiB of files",
            "at most 20 ms",
            at_most(median("copies", "cove, snapshot, 1 GiB"), 20.0, " ms"),
        ),
        (
            "a fork of a sandbox with 1 GiB of files",
            "at most 20 ms",
            at_most(median("copies", "cove, fork, 1 GiB"), 20.0, " ms"),
        ),
        (
            "a snapshot of a sandbox with 100,000 files, against one with none",
            "within 2 times",
            at_most(
                ratio(median("copies", "cove, snapshot, 100,000 files"), median("copies", "cove, snapshot, nothing")),
                2.0,
                " ×",
            ),
        ),
        (
            "200 clients at once: create, exec, file, delete",
            "no error",
            median("clients", "errors").map(|errors| Held { text: format!("{errors} errors"), kept: errors == 0.0 }),
        ),
    ];
    let told = found.into_iter().map(|(what, target, held)| Promise {
        what: what.to_owned(),
        target: target.to_owned(),
        kept: held.as_ref().map(|held| held.kept),
        measured: held.map(|held| held.text),
    });
    told.filter(|promise| promise.measured.is_some() || report.suites.len() > MANY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::machine::Machine;
    use crate::measure::report::{Suite, Unit, VERSION};

    #[test]
    fn a_promise_is_held_against_the_medians_of_a_run() {
        let mut image = Suite::new("image", "", "");
        image.row("cove over HTTP, base", Unit::Milliseconds, &[10.0]);
        image.row("cove over HTTP, image", Unit::Milliseconds, &[11.0]);
        let mut copies = Suite::new("copies", "", "");
        copies.row("cove, snapshot, 1 GiB", Unit::Milliseconds, &[21.0]);
        // Another size is another promise.
        copies.row("cove, fork, 64 MiB", Unit::Milliseconds, &[5.0]);
        let report = Report {
            version: VERSION,
            kind: "bench".into(),
            title: String::new(),
            machine: Machine::look(),
            seconds: 1.0,
            promises: Vec::new(),
            verdict: None,
            mishaps: Vec::new(),
            suites: vec![image, copies],
        };
        let told: Vec<_> =
            hold_against(&report).into_iter().map(|promise| (promise.what, promise.measured, promise.kept)).collect();
        let held = |what: &str, measured: &str, kept| (what.to_owned(), Some(measured.to_owned()), Some(kept));
        assert_eq!(
            told,
            [
                held("create over HTTP to the first output from an image, cold, against `base`", "1.10 × base", true),
                held("a snapshot of a sandbox with 1 GiB of files", "21.0 ms", false),
            ]
        );
    }
}
