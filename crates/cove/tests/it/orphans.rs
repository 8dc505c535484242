//! A database that is restored from an older backup: the files of sandboxes that it does not know are kept, listed, adopted.

use std::fs;
use std::path::Path;

use cove_testkit::TestServer;
use cove_testkit::guests::guests;
use serde_json::{Value, json};

fn make(server: &TestServer, name: &str) -> String {
    let made = server.request("POST", "/api/sandboxes", Some(&json!({"name": name}))).expect_status(201).json();
    made["id"].as_str().unwrap().to_owned()
}

fn exec(server: &TestServer, id: &str, line: &str) -> Value {
    server
        .request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&json!({"shell": line})))
        .expect_status(200)
        .json()
}

fn copy_database(from: &Path, to: &Path) {
    for name in ["cove.db", "cove.db-wal", "cove.db-shm"] {
        let _ = fs::remove_file(to.join(name));
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}

#[test]
fn an_older_database_takes_no_files_and_the_operator_has_them_back() {
    let mut server = TestServer::start();
    let old = make(&server, "old");
    server.stop();
    let backup = tempfile::tempdir().unwrap();
    copy_database(&server.data(), backup.path());
    server.restart();
    let (kept, unwanted, blank) = (make(&server, "kept"), make(&server, "unwanted"), make(&server, "blank"));
    exec(&server, &kept, "echo precious > note");
    exec(&server, &unwanted, "echo rubbish > note");
    server.stop();
    copy_database(backup.path(), &server.data());
    server.restart();

    assert_eq!(
        server.request("GET", &format!("/api/sandboxes/{old}"), None).expect_status(200).json()["state"],
        "running"
    );
    server.request("GET", &format!("/api/sandboxes/{kept}"), None).expect_status(404);
    let running = guests(&server.data());
    assert!(running.contains_key(&old) && running.len() == 1, "nothing of what nobody knows runs: {running:?}");
    let listed = server.cove(["orphans", "ls", "--json"]).finish().expect_success();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let mut ids: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    let mut wanted = [kept.as_str(), unwanted.as_str()];
    wanted.sort_unstable();
    assert_eq!(ids, wanted, "{blank} had written nothing and is gone");
    assert!(listed[0]["bytes"].as_u64().is_some() && listed[0]["removed_at"].is_string(), "{listed}");

    server.cove(["orphans", "adopt", &kept, "--name", "found"]).finish().expect_success();
    server.cove(["start", "found"]).finish().expect_success();
    assert_eq!(exec(&server, "found", "cat note")["stdout"], "precious\n");
    server.cove(["orphans", "rm", &unwanted]).finish().expect_success();
    server.cove(["orphans", "rm", &unwanted]).finish().expect_code(1);
    // It is a sandbox like any other: a restart finds it.
    server.restart();
    assert_eq!(exec(&server, "found", "cat note")["stdout"], "precious\n");
    assert_eq!(server.request("GET", "/api/orphans", None).expect_status(200).json(), json!([]));
}
