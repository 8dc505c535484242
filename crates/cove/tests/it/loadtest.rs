//! `cove loadtest`: against a server of its own, against one that is full, and against none.

use cove_testkit::TestServer;
use cove_testkit::server::TestDirectory;
use cove_testkit::wait::LIMIT;
use serde_json::{Value, json};

use crate::bench::opens_in_a_browser;

fn rows(report: &Value) -> Vec<&str> {
    report["suites"][0]["rows"].as_array().unwrap().iter().map(|row| row["who"].as_str().unwrap()).collect()
}

#[test]
fn a_few_users_do_everything_without_an_error() {
    let place = TestDirectory::new();
    let (csv, html) = (place.path().join("load.csv"), place.path().join("load.html"));
    let finished = place
        .cove(["loadtest", "--users", "3", "--duration", "1s", "--think", "20ms", "--json"])
        .args(["--csv", csv.to_str().unwrap(), "--html", html.to_str().unwrap()])
        .env("TMPDIR", place.path())
        .within(LIMIT * 4)
        .finish()
        .expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((&report["errors"], &report["over_capacity"]), (&json!(0), &json!(0)), "{report}");
    assert!(["create", "exec", "delete"].iter().all(|step| rows(&report).contains(step)), "{report}");
    let table = std::fs::read_to_string(csv).unwrap();
    assert!(table.starts_with("step,n,errors,over_capacity,p50_ms,p95_ms,p99_ms"), "{table}");
    assert_eq!(table.lines().count(), 8);
    opens_in_a_browser(&html, &["3 users at once against a server of its own", "How long each step took"]);
    let left = std::fs::read_dir(place.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("cove-"));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_full_server_is_waited_for_and_its_refusals_are_no_errors() {
    let server = TestServer::start();
    let organisation = server.request("GET", "/api/whoami", None).json()["organisation"].as_str().unwrap().to_owned();
    let path = format!("/api/organisations/{organisation}");
    let mut quota = server.request("GET", &path, None).json()["quota"].clone();
    quota["running_sandboxes"] = json!(2);
    assert_eq!(server.request("PUT", &format!("{path}/quota"), Some(&quota)).status, 200);
    let finished = server
        .cove(["loadtest", "--users", "6", "--duration", "2s", "--think", "0", "--mix", "exec,files", "--json"])
        .within(LIMIT * 4)
        .finish()
        .expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["errors"], 0, "{report}");
    assert!(report["over_capacity"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["over_capacity_without_retry_after"], 0, "{report}");
    let left = server.request("GET", "/api/sandboxes", None).json();
    assert_eq!(left["items"], json!([]));
}

#[test]
fn interrupted_it_removes_its_sandboxes_from_the_server() {
    let server = TestServer::start();
    let mut running =
        server.cove(["loadtest", "--users", "4", "--duration", "10m", "--think", "100ms"]).within(LIMIT * 2).spawn();
    cove_testkit::wait::until_some("the first sandboxes", LIMIT, || {
        let there = server.request("GET", "/api/sandboxes", None).json();
        (!there["items"].as_array()?.is_empty()).then_some(())
    });
    running.signal(rustix::process::Signal::INT);
    let finished = running.finish().expect_code(130);
    assert!(finished.stderr.contains("error: interrupted; everything was removed"), "{}", finished.stderr);
    assert_eq!(server.request("GET", "/api/sandboxes", None).json()["items"], json!([]));
}

#[test]
fn a_wrong_address_is_one_sentence() {
    let place = TestDirectory::new();
    let finished = place.cove(["loadtest", "--url", "http://127.0.0.1:1", "--key", "x"]).finish().expect_code(1);
    assert!(
        finished.stderr.contains("http://127.0.0.1:1") && finished.stderr.contains("hint: --url"),
        "{}",
        finished.stderr
    );
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_done() {
    let place = TestDirectory::new();
    for (arguments, told) in [
        (["--url", "nonsense"], "--url nonsense is no address of a server"),
        (["--users", "0"], "--users 0: it must be from 1 to 100000"),
        (["--html", "/nowhere/load.html"], "write /nowhere/load.html: No such file"),
        (["--csv", "/tmp"], "write /tmp: Is a directory"),
    ] {
        let finished = place.cove(["loadtest"]).args(arguments).finish().expect_code(2);
        assert!(finished.stderr.contains(told) && finished.stderr.contains("hint: "), "{}", finished.stderr);
    }
    let server = TestServer::start();
    let finished = place.cove(["loadtest", "--url", &server.url(), "--key", "wrong"]).finish().expect_code(1);
    assert!(finished.stderr.contains("hint: --key"), "{}", finished.stderr);
}

/// The report has what was seen until then, with the causes, and what may be left.
#[test]
fn a_server_that_dies_in_the_middle_is_told_and_not_asked_without_end() {
    let mut server = TestServer::start();
    let html = server.data().with_file_name("load.html");
    let arguments = ["loadtest", "--users", "4", "--duration", "6s", "--think", "0", "--mix", "exec", "--html"];
    let mut running = server.cove(arguments).args([&html]).within(LIMIT * 2).spawn();
    cove_testkit::wait::until_some("the first sandboxes", LIMIT, || {
        let there = server.request("GET", "/api/sandboxes", None).json();
        (!there["items"].as_array()?.is_empty()).then_some(())
    });
    server.kill();
    let finished = running.finish().expect_code(1);
    assert!(finished.stdout.contains("× create: nobody answers"), "{}", finished.stdout);
    assert!(finished.stderr.contains("sandboxes of this test may be left on"), "{}", finished.stderr);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<h2>Errors</h2>") && page.contains("nobody answers"), "{page}");
    let errors: u64 =
        finished.stdout.lines().filter_map(|line| line.trim().split_once(" × ")?.0.parse::<u64>().ok()).sum();
    assert!(errors > 0 && errors < 100, "{errors} errors of four users in six seconds");
}
