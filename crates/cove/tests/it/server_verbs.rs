//! Verbs for what belongs to an organisation or to the server.

use cove_testkit::TestServer;
use cove_testkit::wait::{LIMIT, until};
use serde_json::{Value, json};

fn told(server: &TestServer, arguments: &[&str]) -> Value {
    let said = server.cove(arguments.iter().copied()).finish().expect_success().stdout;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn a_key_is_rotated_and_the_old_one_opens_nothing() {
    let server = TestServer::start();
    let made = told(&server, &["keys", "create", "--json", "ci", "--scope", "read", "--expires", "1h"]);
    let (id, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    server.cove(["ls"]).env("COVE_API_KEY", secret).finish().expect_success();
    let new = server.cove(["keys", "rotate", id]).finish().expect_success().stdout;
    let refused = server.cove(["ls"]).env("COVE_API_KEY", secret).finish().expect_code(1);
    assert!(refused.stderr.contains("revoked"), "{}", refused.stderr);
    let me = server.cove(["whoami", "--json"]).env("COVE_API_KEY", new.trim()).finish().expect_success().stdout;
    assert_eq!(serde_json::from_str::<Value>(&me).unwrap()["scopes"], json!(["read"]));
    let missing = server.cove(["keys", "rotate", "key_missing"]).finish().expect_code(1);
    assert!(missing.stderr.contains("hint: `cove keys ls`"), "{}", missing.stderr);
    let again = server.cove(["keys", "rotate", id]).finish().expect_code(1);
    assert!(again.stderr.contains("no valid key"), "{}", again.stderr);
}

#[test]
fn an_organisation_has_keys_and_a_quota_of_its_own() {
    let server = TestServer::start();
    server.cove(["orgs", "create", "acme", "--name", "Acme Ltd."]).finish().expect_success();
    server.cove(["orgs", "create", "acme"]).finish().expect_code(1);
    let key = server.cove(["keys", "create", "ci", "--organisation", "acme"]).finish().expect_success().stdout;
    let me = server.cove(["whoami"]).env("COVE_API_KEY", key.trim()).finish().expect_success().stdout;
    assert!(me.contains("acme") && me.contains("write"), "{me}");
    let before = told(&server, &["orgs", "quota", "--json", "acme"]);
    let after = told(&server, &["orgs", "quota", "--json", "acme", "--running", "3", "--memory", "512M"]);
    assert_eq!((&after["running_sandboxes"], &after["memory_per_sandbox"]), (&json!(3), &json!(512 << 20)));
    assert_eq!(after["sandboxes"], before["sandboxes"], "what is not named stays");
    let shown = server.cove(["orgs", "quota", "acme"]).finish().expect_success().stdout;
    assert!(shown.contains("512 MiB"), "{shown}");
    let shown = server.cove(["orgs", "quota", "acme", "--pids", "77"]).finish().expect_success().stdout;
    assert!(shown.lines().any(|line| line.starts_with("processes of one sandbox") && line.contains("77")), "{shown}");
    let shown = server.cove(["orgs", "quota", "acme", "--disks", "5G"]).finish().expect_success().stdout;
    assert!(shown.lines().any(|line| line.starts_with("disks of all sandboxes") && line.contains("5 GiB")), "{shown}");
    let missing = server.cove(["orgs", "quota", "nobody"]).finish().expect_code(1);
    assert!(missing.stderr.contains("hint: `cove orgs ls`"), "{}", missing.stderr);
    assert!(server.cove(["orgs", "ls"]).finish().expect_success().stdout.contains("Acme Ltd."));
    server.cove(["orgs", "quota", "nobody"]).finish().expect_code(1);
    server.cove(["orgs", "quota", "acme", "--running", "many"]).finish().expect_code(2);
    let stranger = server.cove(["orgs", "create", "mine"]).env("COVE_API_KEY", key.trim()).finish();
    assert_eq!(stranger.code, 1, "{stranger:?}");
}

/// What `cove help create` says about flags that are not given.
#[test]
fn the_defaults_in_the_help_are_those_of_the_server() {
    let server = TestServer::start();
    let help = server.cove(["help", "create"]).finish().expect_success().stdout;
    let (_, defaults) = help.split_once("The same as giving no flag").expect("the help names the defaults");
    let (_, defaults) = defaults.split_once("cove create ").unwrap();
    let flags: Vec<&str> = defaults.split_whitespace().filter(|word| *word != "\\").collect();
    assert!(flags.contains(&"--memory") && flags.contains(&"--idle"), "{help}");
    server.cove(["create", "--name", "plain"]).finish().expect_success();
    server.cove(["create", "--name", "spelled"].into_iter().chain(flags)).finish().expect_success();
    let [plain, spelled] = ["plain", "spelled"].map(|name| told(&server, &["inspect", name]));
    for part in ["limits", "timers", "network"] {
        assert_eq!(plain[part], spelled[part], "{part}");
    }
}

#[test]
fn a_pool_is_filled_used_and_removed() {
    let server = TestServer::start();
    assert!(server.cove(["pools", "ls"]).finish().expect_success().stderr.contains("no pools"));
    server.cove(["pools", "set", "base", "1"]).finish().expect_success();
    let pool = || told(&server, &["pools", "ls", "--json"])[0].clone();
    until("one stands ready", LIMIT, || pool()["ready"] == 1);
    // A creation that asks for nothing takes it, and has no network either.
    server.cove(["create", "--name", "box"]).finish().expect_success();
    assert_eq!(pool()["hits"], 1);
    let sandbox = told(&server, &["inspect", "box"]);
    assert_eq!(sandbox["network"]["access"], "closed");
    // Members start with a network; the engine's last policy counts.
    let spec = server.data().join("sandboxes").join(sandbox["id"].as_str().unwrap()).join("spec.json");
    let spec: Value = serde_json::from_slice(&std::fs::read(spec).unwrap()).unwrap();
    assert_eq!(spec["network"]["full"]["otherwise"], "deny", "{spec}");
    server.cove(["pools", "rm", "base"]).finish().expect_success();
    server.cove(["pools", "rm", "base"]).finish().expect_code(1);
    server.cove(["pools", "set", "nothing", "1"]).finish().expect_code(1);
    server.cove(["pools", "set", "base", "many"]).finish().expect_code(2);
}

#[test]
fn a_webhook_is_made_listed_and_removed() {
    let server = TestServer::start();
    let made = told(&server, &["webhooks", "create", "--json", "http://127.0.0.1:9/hook", "--kind", "sandbox.created"]);
    assert!(made["secret"].as_str().is_some_and(|secret| secret.len() > 20), "{made}");
    let id = made["id"].as_str().unwrap();
    let listed = server.cove(["webhooks", "ls"]).finish().expect_success().stdout;
    assert!(listed.contains(id) && listed.contains("sandbox.created") && !listed.contains("secret"), "{listed}");
    server.cove(["webhooks", "rm", id]).finish().expect_success();
    server.cove(["webhooks", "rm", id]).finish().expect_code(1);
    let refused = server.cove(["webhooks", "create", "nonsense"]).finish().expect_code(1);
    assert!(refused.stderr.contains("url"), "{}", refused.stderr);
}

#[test]
fn a_session_keeps_its_variables() {
    let server = TestServer::start();
    let id = server.cove(["sessions", "create"]).finish().expect_success().stdout;
    let id = id.trim();
    server.cove(["sessions", "run", id, "x = 6"]).finish().expect_success();
    let said = server.cove(["sessions", "run", id, "print(x * 7)"]).finish().expect_success();
    assert_eq!(said.stdout, "42\n");
    let value = server.cove(["sessions", "run", id, "-"]).input("x * 8").finish().expect_success();
    assert_eq!(value.stdout, "48\n");
    // What pip puts into a folder that was not there when the interpreter began is found, in the same cell.
    let install = "import os, site; p = site.getusersitepackages() + '/sudden'; os.makedirs(p); \
                   open(p + '/__init__.py', 'w').write('x = 6'); import sudden; sudden.x";
    let found = server.cove(["sessions", "run", id, install]).finish().expect_success();
    assert_eq!(found.stdout, "6\n");
    let failed = server.cove(["sessions", "run", id, "1 / 0"]).finish();
    assert!(failed.code != 0 && failed.stderr.contains("ZeroDivisionError"), "{failed:?}");
    let ended = server.cove(["sessions", "run", id, "import os; os._exit(3)"]).finish();
    assert!(ended.code != 0 && ended.stderr.contains("exited with code 3"), "{ended:?}");
    let unknown = server.cove(["sessions", "run", id, "puts 1", "--language", "ruby"]).finish();
    assert!(unknown.code != 0 && unknown.stderr.contains("ruby"), "{unknown:?}");
    assert!(server.cove(["sessions", "ls"]).finish().expect_success().stdout.contains(id));
    assert_eq!(told(&server, &["sessions", "show", "--json", id])["session_id"], id);
    assert_eq!(told(&server, &["sessions", "artifacts", "--json", id]), json!([]));
    // A sandbox of the person's own is not woken: it is named, with what was lost.
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let sandbox = told(&server, &["inspect", "box"])["id"].as_str().unwrap().to_owned();
    let there = server.cove(["sessions", "create", "--sandbox", &sandbox]).finish().expect_success().stdout;
    server.cove(["stop", "box"]).finish().expect_success();
    let asleep = server.cove(["sessions", "run", there.trim(), "x"]).finish().expect_code(1);
    assert!(asleep.stderr.contains(&format!("hint: cove start {sandbox}; the variables")), "{}", asleep.stderr);
    server.cove(["sessions", "rm", id]).finish().expect_success();
    let missing = server.cove(["sessions", "run", "nothing", "1"]).finish().expect_code(1);
    assert!(missing.stderr.contains("nothing"), "{}", missing.stderr);
}

#[test]
fn code_that_runs_is_interrupted_and_keeps_its_variables() {
    let server = TestServer::start();
    let id = server.cove(["sessions", "create"]).finish().expect_success().stdout;
    let id = id.trim();
    server.cove(["sessions", "run", id, "x = 6"]).finish().expect_success();
    assert_eq!(told(&server, &["sessions", "interrupt", "--json", id]), json!({ "interrupted": 0 }));
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let running =
            scope.spawn(|| server.cove(["sessions", "run", id, "import time; print('on'); time.sleep(120)"]).finish());
        // What has not begun yet is not interrupted: as a person would, again.
        until("the code is interrupted", LIMIT, || {
            server.cove(["sessions", "interrupt", id]).finish().expect_success();
            running.is_finished()
        });
        let ended = running.join().unwrap();
        assert!(ended.code == 1 && ended.stderr.contains("KeyboardInterrupt"), "{ended:?}");
    });
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    assert_eq!(server.cove(["sessions", "run", id, "print(x)"]).finish().expect_success().stdout, "6\n");
}

#[test]
fn what_happened_can_be_read() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let id = told(&server, &["inspect", "box"])["id"].as_str().unwrap().to_owned();
    let audit = server.cove(["audit", "-n", "5"]).finish().expect_success().stdout;
    assert!(audit.contains("sandbox.create") && audit.contains(&id), "{audit}");
    let newest = told(&server, &["audit", "--json", "-n", "1"])[0]["seq"].as_i64().unwrap();
    let older = told(&server, &["audit", "--json", "--before", &newest.to_string()]);
    assert!(older.as_array().unwrap().iter().all(|entry| entry["seq"].as_i64() < Some(newest)), "{older}");
    server.cove(["audit", "-n", "0"]).finish().expect_code(2);
    assert!(told(&server, &["usage", "--json"])["total"]["seconds"].is_number());
    assert!(server.cove(["usage", "box"]).finish().expect_success().stdout.contains("box"));
    let usage = server.cove(["usage"]).finish().expect_success().stdout;
    assert!(usage.lines().any(|line| line.starts_with("box ")) && !usage.contains(&id), "{usage}");
    server.cove(["usage", "--from", "yesterday"]).finish().expect_code(2);
    assert!(told(&server, &["jobs", "--json"]).is_array());
    server.cove(["jobs", "--state", "bored"]).finish().expect_code(2);
    let providers = server.cove(["providers"]).finish().expect_success().stdout;
    assert!(providers.contains("local") && providers.contains("namespaces"), "{providers}");
}
