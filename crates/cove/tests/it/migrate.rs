//! Sandboxes that come from elsewhere: with their files, labels, timers and git, verified, under their old ids too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cove_testkit::TestServer;
use cove_testkit::wait::until;
use rustix::process::Signal;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(180);

/// A sandbox with files of every kind; returns its id.
fn fill(server: &TestServer, name: &str) -> String {
    let body = json!({
        "name": name,
        "labels": { "project": "demo", "of": name },
        "env": { "GREETING": "good day" },
        "timers": { "idle_seconds": 1200 },
    });
    let made = server.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json();
    let line = "cd /home/user && mkdir -p 'a b/c' && echo one > 'a b/c/ö' && ln -s 'a b/c/ö' link && chmod 750 'a b' && \
                git init --quiet --initial-branch main work && cd work && git config user.name Ada && \
                git config user.email ada@example.com && echo x > file && git add file && git commit --quiet -m first && \
                echo changed > file && head -c 100000 /dev/urandom > big";
    server.cove(["exec", name, "--", "sh", "-c", line]).finish().expect_success();
    made["id"].as_str().unwrap().to_owned()
}

fn inside(server: &TestServer, sandbox: &str, line: &str) -> String {
    server.cove(["exec", sandbox, "--", "sh", "-c", line]).finish().expect_success().stdout
}

fn rows(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Vec<Value>>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn sandboxes_of_another_server_come_whole_and_answer_to_their_old_ids() {
    let (old, new) = (TestServer::start(), TestServer::start());
    let (first, second) = (fill(&old, "first"), fill(&old, "second"));
    old.cove(["stop", "second"]).finish().expect_success();
    let folder = tempfile::tempdir().unwrap();
    let mapping = folder.path().join("moved.json");
    let key = folder.path().join("key");
    std::fs::write(&key, old.key()).unwrap();
    let (url, key, to) = (old.url(), key.to_str().unwrap(), mapping.to_str().unwrap());
    let from = ["migrate", "--from", "cove", "--from-url", &url, "--from-key-file", key, "--mapping", to];

    let tried = new.cove(from.into_iter().chain(["--dry-run"])).finish().expect_success();
    assert!(tried.stdout.contains(&first) && tried.stderr.contains("2 would be moved"), "{tried:?}");
    assert!(!mapping.exists(), "nothing is done");

    // Broken off after the first; the same command goes on.
    new.cove(from.into_iter().chain([first.as_str()])).within(LONG).finish().expect_success();
    assert_eq!(rows(&mapping).len(), 1);
    let told = new.cove(from.into_iter().chain(["--to", "local"])).within(LONG).finish().expect_success();
    assert!(told.stdout.contains("2 moved and verified, 0 left"), "{}", told.stdout);
    for row in rows(&mapping) {
        assert_eq!((&row["stage"], row["digest"].as_str().map(str::len)), (&json!("done"), Some(64)), "{row}");
    }

    let moved = new.request("GET", &format!("/api/sandboxes/{first}"), None).expect_status(200).json();
    assert_ne!(moved["id"], json!(first));
    assert_eq!((&moved["name"], &moved["labels"]["project"]), (&json!("first"), &json!("demo")));
    assert_eq!(moved["timers"]["idle_seconds"], 1200);
    assert_eq!(inside(&new, &first, "cat link; printenv GREETING; stat -c %a 'a b'"), "one\ngood day\n750\n");
    assert_eq!(
        inside(&new, "first", "cd work && git log --format=%s && git status --porcelain"),
        "first\n M file\n?? big\n"
    );
    let slept = new.request("GET", &format!("/api/sandboxes/{second}"), None).expect_status(200).json();
    assert_eq!(slept["state"], "stopped");
    // At the other doors as well.
    new.request("GET", &format!("/daytona/api/sandbox/{first}"), None).expect_status(200);
    let aliases = new.request("GET", "/api/sandboxes/first/aliases", None).expect_status(200).json();
    assert_eq!(aliases, json!([first]));
    // The origin is as it was.
    assert_eq!(old.request("GET", "/api/sandboxes/second", None).json()["state"], "stopped");
}

/// Twenty, in a command that is killed twice: the second time together with the server that they go to.
#[test]
fn a_move_that_is_killed_in_the_middle_goes_on_and_ends_complete() {
    const ALL: usize = 20;
    let (old, mut new) = (TestServer::start(), TestServer::start());
    let mut sums = BTreeMap::new();
    for number in 0..ALL {
        let name = format!("box-{number}");
        let body =
            json!({ "name": name, "labels": { "number": number.to_string() }, "timers": { "idle_seconds": null } });
        let id = old.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json()["id"].clone();
        let line = format!(
            "mkdir -p deep/{number} && head -c {} /dev/urandom > deep/{number}/bytes && echo {number} > text && {SUM}",
            20_000 + number * 1_000
        );
        sums.insert(id.as_str().unwrap().to_owned(), (name.clone(), inside(&old, &name, &line)));
        if number % 4 == 0 {
            old.cove(["stop", &name]).finish().expect_success();
        }
    }
    let states = |server: &TestServer| -> BTreeMap<String, String> {
        let listed = server.request("GET", "/api/sandboxes?limit=100", None).expect_status(200).json();
        let pair =
            |item: &Value| (item["name"].as_str().unwrap().to_owned(), item["state"].as_str().unwrap().to_owned());
        listed["items"].as_array().unwrap().iter().map(pair).collect()
    };
    let before = states(&old);

    let folder = tempfile::tempdir().unwrap();
    let (mapping, key) = (folder.path().join("moved.json"), folder.path().join("key"));
    std::fs::write(&key, old.key()).unwrap();
    let (url, key, to) = (old.url(), key.to_str().unwrap(), mapping.to_str().unwrap());
    let words = ["migrate", "--from", "cove", "--from-url", &url, "--from-key-file", key, "--mapping", to];
    let done = || match mapping.exists() {
        true => rows(&mapping).iter().filter(|row| row["stage"] == "done").count(),
        false => 0,
    };
    for enough in [4, 11] {
        let mut running = new.cove(words).within(LONG).spawn();
        until("some are moved", LONG, || done() >= enough);
        running.signal(Signal::KILL);
        running.finish();
        assert!((enough..ALL).contains(&done()), "it was in the middle");
    }
    new.kill();
    new.restart();

    let told = new.cove(words).within(LONG).finish().expect_success();
    assert!(told.stdout.contains(&format!("{ALL} moved and verified, 0 left")), "{}", told.stdout);
    assert_eq!(states(&old), before, "the origin is as it was");
    assert_eq!(states(&new), before, "each is once here, as it was there");
    for (id, (name, sum)) in &sums {
        assert_eq!(&inside(&new, id, SUM), sum, "{name}, by its old id");
    }
}

const SUM: &str = "find . -type f | sort | xargs sha256sum";

#[test]
fn the_dialects_of_the_services_are_spoken() {
    let (old, new) = (TestServer::start(), TestServer::start());
    let id = fill(&old, "box");
    let folder = tempfile::tempdir().unwrap();
    for (kind, door, variable) in [("daytona", "/daytona/api", "DAYTONA_API_KEY"), ("e2b", "/e2b", "E2B_API_KEY")] {
        let mapping = folder.path().join(format!("{kind}.csv"));
        let url = format!("{}{door}", old.url());
        let words = ["migrate", "--from", kind, "--from-url", &url, "--path", "/home/user", "--mapping"];
        let told = new
            .cove(words.into_iter().chain([mapping.to_str().unwrap()]))
            .env(variable, old.key())
            .within(LONG)
            .finish()
            .expect_success();
        assert!(told.stdout.contains("1 moved and verified, 0 left"), "{kind}: {told:?}");
        let csv = std::fs::read_to_string(&mapping).unwrap();
        assert!(csv.starts_with("old_id,new_id,") && csv.contains(&format!("\n{id},")), "{csv}");
        assert_eq!(inside(&new, &id, "cat link && printenv GREETING"), "one\ngood day\n", "{kind}");
        new.cove(["rm", &id]).finish().expect_success();
    }
}

#[test]
fn a_passport_needs_no_network_and_a_damaged_one_is_noticed() {
    let (old, new) = (TestServer::start(), TestServer::start());
    let id = fill(&old, "box");
    let folder = tempfile::tempdir().unwrap();
    let (passport, key) = (folder.path().join("box.passport"), folder.path().join("key"));
    std::fs::write(&key, old.key()).unwrap();
    let url = old.url();
    let words =
        ["migrate", "--from", "cove", "--from-url", &url, "--from-key-file", key.to_str().unwrap(), "--passport"];
    old.cove(words.into_iter().chain([passport.to_str().unwrap()])).within(LONG).finish().expect_success();

    let take = |file: &Path, mapping: &str| {
        let mapping = folder.path().join(mapping);
        let words = ["migrate", "--from-passport", file.to_str().unwrap(), "--mapping", mapping.to_str().unwrap()];
        new.cove(words).within(LONG).finish()
    };
    let mut bytes = std::fs::read(&passport).unwrap();
    let place = bytes.windows(4).position(|part| part == b"one\n").unwrap();
    bytes[place] = b'X';
    let damaged = folder.path().join("damaged.passport");
    std::fs::write(&damaged, &bytes).unwrap();
    let told = take(&damaged, "damaged.json").expect_code(1);
    assert!(told.stdout.contains("is not what it was"), "{told:?}");
    new.cove(["rm", "box"]).finish().expect_success();

    take(&passport, "whole.json").expect_success();
    assert_eq!(inside(&new, &id, "cat link"), "one\n");
}
