//! A server that is set up, started, looked at and ended, as an operator does it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cove_testkit::server::TestDirectory;
use serde_json::Value;

/// A sandbox is tried on the way.
const LONG: Duration = Duration::from_secs(120);

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_server_is_set_up_by_flags_and_nothing_that_was_written_is_lost() {
    let place = TestDirectory::new();
    let file = place.path().join("etc/cove.toml");
    let path = file.to_str().unwrap().to_owned();
    let data = place.data();
    let unit = place.path().join("cove.service");
    let flags =
        ["setup", "--yes", "--config", &path, "--provider", "local", "--listen", "127.0.0.1:0", "--systemd", "yes"];
    let flags: Vec<&str> = flags.into_iter().chain(["--unit-file", unit.to_str().unwrap(), "--data"]).collect();
    let data_word = data.to_str().unwrap();
    let set_up = place.cove(flags.iter().copied().chain([data_word])).within(LONG).finish().expect_success();
    assert_eq!(set_up.stdout.trim(), path);
    assert!(set_up.stderr.contains("sandbox: provider local made one"), "{}", set_up.stderr);
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("provider = \"local\"") && written.contains("listen = \"127.0.0.1:0\""), "{written}");
    assert_eq!(fs::metadata(&file).map(|found| std::os::unix::fs::MetadataExt::mode(&found) & 0o777).unwrap(), 0o600);
    let unit_text = fs::read_to_string(&unit).unwrap();
    assert!(unit_text.contains(&format!("serve --config {path}")), "{unit_text}");

    // Somebody adds to it by hand; a second setup changes what it is told to, and keeps the file as it was.
    let by_hand = format!("# ours\n{written}\n[quota]\nsandboxes = 7 # enough\n");
    fs::write(&file, &by_hand).unwrap();
    let again = ["setup", "--yes", "--no-check", "--json", "--config", &path, "--domain", "sbx.example.com"];
    let again = again.into_iter().chain(["--set", "quota.running_sandboxes=3", "--systemd", "no"]);
    let told = json(&place.cove(again).finish().expect_success().stdout);
    let kept = told["before"].as_str().unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), by_hand);
    let written = fs::read_to_string(&file).unwrap();
    for part in ["# ours\n", "sandboxes = 7 # enough\n", "running_sandboxes = 3\n", "domain = \"sbx.example.com\"\n"] {
        assert!(written.contains(part), "no {part:?} in\n{written}");
    }

    // What is wrong is told before anything is written.
    let wrong = ["setup", "--yes", "--config", &path, "--provider", "moon", "--systemd", "no"];
    let told = place.cove(wrong).finish().expect_code(2);
    assert!(told.stderr.contains("there is no [providers.moon]"), "{}", told.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert_eq!(leftovers(file.parent().unwrap()), ["cove.toml", "cove.toml.1"]);
}

fn leftovers(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_server_goes_up_is_looked_at_and_goes_down_and_its_sandboxes_stay() {
    let place = TestDirectory::new();
    let down = place.cove(["status", "--json"]).finish().expect_code(1);
    assert_eq!(json(&down.stdout)["up"], false);
    assert!(place.cove(["down"]).finish().expect_success().stdout.contains("no server has"));

    let up = ["up", "--no-systemd", "--json", "--listen", "127.0.0.1:0"];
    let first = json(&place.cove(up).within(LONG).finish().expect_success().stdout);
    assert_eq!(first["was_up"], false);
    let second = json(&place.cove(up).within(LONG).finish().expect_success().stdout);
    assert_eq!((&second["was_up"], &second["pid"]), (&Value::Bool(true), &first["pid"]));
    let status = json(&place.cove(["status", "--json"]).finish().expect_success().stdout);
    assert_eq!((&status["up"], &status["url"]), (&Value::Bool(true), &first["url"]));
    assert_eq!(status["providers"][0]["health"]["state"], "well");
    assert!(place.cove(["status"]).finish().expect_success().stdout.contains("provider local"));

    // The verbs find it by its data directory.
    place.cove(["create", "--name", "box", "--idle", "never"]).finish().expect_success();
    place.cove(["down"]).within(LONG).finish().expect_success();
    place.cove(["status"]).finish().expect_code(1);
    place.cove(up).within(LONG).finish().expect_success();
    assert!(place.cove(["ls"]).finish().expect_success().stdout.contains("running"));
    place.cove(["rm", "box"]).finish().expect_success();
    place.cove(["down"]).within(LONG).finish().expect_success();
    place.cove(["reset", "--yes"]).within(LONG).finish().expect_success();
}

#[test]
fn one_that_cannot_start_says_why() {
    let place = TestDirectory::new();
    let told = place.cove(["up", "--no-systemd", "--listen", "256.0.0.1:1"]).within(LONG).finish().expect_code(1);
    assert!(told.stderr.contains("the server did not start") && told.stderr.contains("256.0.0.1"), "{}", told.stderr);
    place.cove(["reset", "--yes"]).within(LONG).finish();
}
