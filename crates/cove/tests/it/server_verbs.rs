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
    assert!(server.cove(["orgs", "ls"]).finish().expect_success().stdout.contains("Acme Ltd."));
    server.cove(["orgs", "quota", "nobody"]).finish().expect_code(1);
    server.cove(["orgs", "quota", "acme", "--running", "many"]).finish().expect_code(2);
    let stranger = server.cove(["orgs", "create", "mine"]).env("COVE_API_KEY", key.trim()).finish();
    assert_eq!(stranger.code, 1, "{stranger:?}");
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
    let failed = server.cove(["sessions", "run", id, "1 / 0"]).finish();
    assert!(failed.code != 0 && failed.stderr.contains("ZeroDivisionError"), "{failed:?}");
    assert!(server.cove(["sessions", "ls"]).finish().expect_success().stdout.contains(id));
    assert_eq!(told(&server, &["sessions", "show", "--json", id])["session_id"], id);
    assert_eq!(told(&server, &["sessions", "artifacts", "--json", id]), json!([]));
    server.cove(["sessions", "rm", id]).finish().expect_success();
    let missing = server.cove(["sessions", "run", "nothing", "1"]).finish().expect_code(1);
    assert!(missing.stderr.contains("nothing"), "{}", missing.stderr);
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
    server.cove(["usage", "--from", "yesterday"]).finish().expect_code(2);
    assert!(told(&server, &["jobs", "--json"]).is_array());
    server.cove(["jobs", "--state", "bored"]).finish().expect_code(2);
    let providers = server.cove(["providers"]).finish().expect_success().stdout;
    assert!(providers.contains("local") && providers.contains("namespaces"), "{providers}");
}
