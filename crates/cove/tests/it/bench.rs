//! `cove bench`: what it measures, how it reports it, and that nothing is left of it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use cove_testkit::Cove;
use cove_testkit::server::TestDirectory;
use cove_testkit::wait::{LIMIT, until_some};
use serde_json::Value;

/// In a directory of its own: everything that a run leaves anywhere names it.
fn bench(place: &TestDirectory, arguments: &[&str]) -> Cove {
    place.cove(["bench"]).args(arguments).env("TMPDIR", place.path()).within(LIMIT * 4)
}

fn entries(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("cove-")).collect()
}

#[test]
fn a_run_is_told_in_every_form_and_leaves_nothing() {
    let place = TestDirectory::new();
    let out = place.path().join("out");
    let document = place.path().join("doc.md");
    std::fs::write(&document, "# Doc\n<!-- cove bench -->\n<!-- /cove bench -->\nend\n").unwrap();
    let arguments =
        ["--quick", "--only", "restart,density", "--alive", "3", "--json", "-", "--out", out.to_str().unwrap()];
    let finished = bench(&place, &arguments).args(["--markdown", document.to_str().unwrap()]).finish().expect_success();
    assert_eq!(entries(place.path()), Vec::<String>::new());

    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["kind"], "bench --quick");
    assert_eq!(report["machine"]["profile"], "debug");
    assert!(finished.stderr.contains("warning: this is a debug build"), "{}", finished.stderr);
    let names: Vec<_> =
        report["suites"].as_array().unwrap().iter().map(|suite| suite["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["density", "restart"]);
    let found =
        report["suites"][1]["rows"].as_array().unwrap().iter().find(|row| row["who"] == "sandboxes found").unwrap();
    assert_eq!(found["p50"], 3.0);
    for row in report["suites"].as_array().unwrap().iter().flat_map(|suite| suite["rows"].as_array().unwrap()) {
        assert!(row["n"].as_u64().unwrap() > 0 && row["p50"].is_f64() && row["p99"].is_f64(), "{row}");
    }
    let kept = |file: &str| std::fs::read_to_string(out.join(file)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept("bench.json")).unwrap(), report);
    assert!(kept("bench.html").contains("<svg") && kept("bench.html").contains("Memory of idle sandboxes"));
    let text = std::fs::read_to_string(&document).unwrap();
    assert!(text.contains("| sandboxes found |") && text.ends_with("<!-- /cove bench -->\nend\n"), "{text}");

    // The same numbers from the file, without measuring.
    let again = place.path().join("again.md");
    std::fs::write(&again, "# Doc\n<!-- cove bench -->\n<!-- /cove bench -->\nend\n").unwrap();
    let from = out.join("bench.json");
    bench(&place, &["--from", from.to_str().unwrap(), "--markdown", again.to_str().unwrap()]).finish().expect_success();
    assert_eq!(std::fs::read_to_string(&again).unwrap(), text);
    opens_in_a_browser(
        &out.join("bench.html"),
        &["Cove, measured", "Memory that came with idle sandboxes", "A debug build was measured"],
    );
}

/// Of one suite of a report, by whose it is.
fn median(report: &Value, suite: &str, who: &str) -> f64 {
    let suites = report["suites"].as_array().unwrap();
    let suite = suites.iter().find(|told| told["name"] == suite).unwrap_or_else(|| panic!("no {suite} in {report}"));
    let row = suite["rows"].as_array().unwrap().iter().find(|row| row["who"] == who);
    row.unwrap_or_else(|| panic!("no {who} in {suite}"))["p50"].as_f64().unwrap()
}

#[test]
fn images_are_pulled_started_built_and_copied_and_nothing_is_left() {
    let place = TestDirectory::new();
    // Others that this machine may have would take most of the time: here they refuse, and are named.
    let others = place.path().join("others");
    std::fs::create_dir(&others).unwrap();
    for name in ["podman", "buildah"] {
        let program = others.join(name);
        std::fs::write(&program, "#!/bin/sh\necho 'not here' >&2; exit 1\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", others.display(), std::env::var("PATH").unwrap());
    let run = bench(&place, &["--quick", "--only", "images", "--json", "-"]).env("DOCKER_HOST", "unix:///nowhere");
    let finished = run.env("PATH", path).within(LIMIT * 5).finish().expect_success();
    assert_eq!(entries(place.path()), Vec::<String>::new());
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let suites = report["suites"].as_array().unwrap();
    let names: Vec<_> = suites.iter().map(|suite| suite["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pull", "build", "image", "forks", "copies"], "{report}");
    // No package of the tests brings a registry; who has one sees it used.
    match Command::new("docker-registry").arg("--version").output() {
        Ok(_) => assert!(median(&report, "pull", "cove") > 0.0),
        Err(_) => {
            assert!(suites[0]["absent"].to_string().contains("docker-registry is not installed"), "{}", suites[0])
        }
    }
    assert!(suites[2]["absent"].to_string().contains("docker"), "who does not take part is named: {}", suites[2]);
    assert!(median(&report, "build", "cove, with cache") < median(&report, "build", "cove, without cache"));
    assert!(median(&report, "image", "cove over HTTP, image") > 0.0);
    assert!(median(&report, "image", "cove over HTTP, base") > 0.0);
    assert!(median(&report, "forks", "cove, each") * 20.0 >= median(&report, "forks", "cove, all of them") * 0.99);
    for filling in ["nothing", "64 MiB", "5,000 files"] {
        for step in ["snapshot", "fork"] {
            assert!(median(&report, "copies", &format!("cove, {step}, {filling}")) > 0.0);
        }
    }
}

/// Services are played by the server that is measured; no daemon is needed for those.
#[test]
fn every_provider_is_measured_beside_local() {
    let place = TestDirectory::new();
    let run = bench(&place, &["--quick", "--only", "providers", "--json", "-"]).env("DOCKER_HOST", "unix:///nowhere");
    let finished = run.within(LIMIT * 5).finish().expect_success();
    assert_eq!(entries(place.path()), Vec::<String>::new());
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    for suite in ["providers-create", "providers-exec"] {
        for who in ["local", "e2b", "daytona", "vercel"] {
            assert!(median(&report, suite, who) > 0.0);
        }
    }
    let rows = report["suites"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["ratio"].is_f64() && row["ratio_to"] == "local"), "{rows:?}");
    assert!(report["suites"][0]["absent"].to_string().contains("docker"), "who does not take part is named");
}

#[test]
fn interrupted_it_still_removes_everything() {
    let place = TestDirectory::new();
    let mut running = bench(&place, &["--quick", "--only", "density", "--alive", "5000"]).spawn();
    until_some("the first sandboxes", LIMIT, || {
        let directory = entries(place.path()).into_iter().find(|name| name.starts_with("cove-measure-"))?;
        let sandboxes = place.path().join(directory).join("data/sandboxes");
        (std::fs::read_dir(sandboxes).ok()?.count() >= 3).then_some(())
    });
    running.signal(rustix::process::Signal::INT);
    let finished = running.finish().expect_code(130);
    assert!(finished.stderr.contains("error: interrupted; everything was removed"), "{}", finished.stderr);
    assert_eq!(entries(place.path()), Vec::<String>::new());
}

#[test]
fn a_report_that_is_none_is_refused() {
    let place = TestDirectory::new();
    let finished = bench(&place, &["--from", "/nowhere.json"]).finish().expect_code(1);
    assert!(finished.stderr.contains("/nowhere.json") && finished.stderr.contains("hint: "), "{}", finished.stderr);
    bench(&place, &["--only", "nonsense"]).finish().expect_code(2);
    for place_for in [["--json", "/nowhere/x.json"], ["--out", "/proc/nowhere"], ["--markdown", "/nowhere.md"]] {
        let finished = bench(&place, &place_for).finish().expect_code(2);
        assert!(finished.stderr.contains("nowhere") && finished.stderr.contains("hint: "), "{}", finished.stderr);
    }
}

/// A real browser shows these words, loads nothing else and complains of nothing.
pub fn opens_in_a_browser(page: &Path, words: &[&str]) {
    let profile = tempfile::tempdir().unwrap();
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display())).arg(format!("file://{}", page.display()));
    let shown = chromium.output().expect("chromium is installed by scripts/setup");
    let (dom, log) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    for word in words {
        assert!(dom.contains(word), "{word} is not on the page:\n{dom}");
    }
    let complaints: Vec<_> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let text = std::fs::read_to_string(page).unwrap();
    assert!(
        !text.contains("http://") && !text.contains("https://") && !text.contains("<script"),
        "the page stands alone"
    );
}
