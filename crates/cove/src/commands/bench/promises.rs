//! What is said of this product, held against the numbers of a run.

use crate::measure::report::{Promise, Report, figure};

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
    told.filter(|promise| promise.measured.is_some() || report.suites.len() > 3).collect()
}
