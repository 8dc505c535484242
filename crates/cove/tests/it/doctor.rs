//! `cove doctor`: what this host can do.

use cove_testkit::server::TestDirectory;

#[test]
fn the_table_names_what_sandboxes_stand_on() {
    let place = TestDirectory::new();
    let finished = place.cove(["doctor"]).finish();
    assert!(matches!(finished.code, 0 | 1), "{finished:?}");
    for word in ["namespace", "cgroup", "overlay", "seccomp"] {
        assert!(finished.stdout.contains(word), "{word} is missing in\n{}", finished.stdout);
    }
}

#[test]
fn the_json_says_the_same_as_the_exit_code() {
    let place = TestDirectory::new();
    let finished = place.cove(["doctor", "--json"]).finish();
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["ready"], finished.code == 0);
    assert!(report["findings"].as_array().unwrap().len() > 5, "{report}");
}

#[test]
fn every_shell_gets_its_completion() {
    let place = TestDirectory::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.cove(["completions", shell]).finish().expect_success().stdout;
        assert!(script.contains("COMPLETE"), "{shell}: {script}");
        // What the script asks when a person presses Tab after `cove doc`.
        let asked = place.cove(["--", "cove", "doc"]).env("COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1");
        let offered = asked.finish().expect_success().stdout;
        assert!(offered.contains("doctor"), "{shell}: {offered}");
    }
}
