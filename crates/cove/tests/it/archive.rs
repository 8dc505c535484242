//! Sandboxes that sleep long, in a real S3 server.

use cove_testkit::wait::{LIMIT, until};
use cove_testkit::{Random, TestServer};
use serde_json::{Value, json};

use crate::object_store::ObjectStore;

/// Too large for one request to the object store, and no compression makes it smaller.
const LARGE: usize = 24 << 20;

fn make(server: &TestServer) -> String {
    let made = server.request("POST", "/api/sandboxes", Some(&json!({}))).expect_status(201).json();
    made["id"].as_str().unwrap().to_owned()
}

fn put(server: &TestServer, id: &str, path: &str, bytes: &[u8]) {
    let url = format!("/api/sandboxes/{id}/files/content?path={path}");
    server.api().send("PUT", &url, &[], Some(bytes)).unwrap().expect_status(200);
}

fn get(server: &TestServer, id: &str, path: &str) -> Vec<u8> {
    let url = format!("/api/sandboxes/{id}/files/content?path={path}");
    server.request("GET", &url, None).expect_status(200).body
}

fn ask(server: &TestServer, id: &str, verb: &str) -> Value {
    server.request("POST", &format!("/api/sandboxes/{id}/{verb}"), None).expect_status(200).json()
}

fn state(server: &TestServer, id: &str) -> String {
    let found = server.request("GET", &format!("/api/sandboxes/{id}"), None).expect_status(200).json();
    found["state"].as_str().unwrap().to_owned()
}

#[test]
fn an_archive_in_s3_comes_back_on_start_and_goes_with_its_sandbox() {
    let objects = ObjectStore::start();
    let server = TestServer::start_in(&[], &objects.environment());
    let id = make(&server);
    let large = Random::new(1).bytes(LARGE);
    put(&server, &id, "/home/user/large", &large);
    put(&server, &id, "/home/user/small", b"a few words");
    let link = json!({"shell": "ln -s small link; mkdir deep; chmod 700 deep; sudo rm -f /etc/hostname; echo x | sudo tee /usr/local/x"});
    server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&link)).expect_status(200);
    ask(&server, &id, "stop");
    assert_eq!(ask(&server, &id, "archive")["state"], "archived");
    assert!(objects.archive_of(&id).metadata().unwrap().len() > LARGE as u64 / 2, "the archive is in the bucket");
    assert!(!server.data().join("sandboxes").join(&id).exists(), "nothing of it is left on the machine");

    assert_eq!(ask(&server, &id, "start")["state"], "running");
    assert!(get(&server, &id, "/home/user/large") == large, "the large file has its bytes");
    assert_eq!(get(&server, &id, "/home/user/link"), b"a few words");
    let look =
        json!({"shell": "stat -c %a deep; test -e /etc/hostname || echo gone; cat /usr/local/x; stat -c %U small"});
    let seen = server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&look)).expect_status(200).json();
    assert_eq!(seen["stdout"], "700\ngone\nx\nuser\n", "{seen}");

    ask(&server, &id, "stop");
    ask(&server, &id, "archive");
    assert!(objects.archive_of(&id).exists());
    server.request("DELETE", &format!("/api/sandboxes/{id}"), None).expect_status(204);
    assert!(!objects.archive_of(&id).exists(), "the archive goes with its sandbox");
}

#[test]
fn wrong_credentials_are_named_and_the_files_stay() {
    let objects = ObjectStore::start();
    let mut server = TestServer::start_in(&[], &objects.environment_with_secret("not the secret"));
    let id = make(&server);
    put(&server, &id, "/home/user/note", b"kept");
    let large = Random::new(2).bytes(LARGE);
    for size in [0, LARGE] {
        put(&server, &id, "/home/user/large", &large[..size]);
        ask(&server, &id, "stop");
        let refused = server.request("POST", &format!("/api/sandboxes/{id}/archive"), None).expect_status(502).json();
        assert_eq!(refused["code"], "archive");
        assert!(refused["message"].as_str().unwrap().contains("credentials"), "{refused}");
        let found = server.request("GET", &format!("/api/sandboxes/{id}"), None).json();
        assert_eq!((&found["state"], &found["cause"]["code"]), (&json!("stopped"), &json!("change_failed")), "{found}");
        assert_eq!(ask(&server, &id, "start")["state"], "running");
        assert_eq!(get(&server, &id, "/home/user/note"), b"kept");
    }

    // With the right ones it goes, and what is archived stays archived while they are wrong again.
    server.restart_in(&objects.environment());
    ask(&server, &id, "stop");
    ask(&server, &id, "archive");
    server.restart_in(&objects.environment_with_secret("not the secret"));
    let refused = server.request("POST", &format!("/api/sandboxes/{id}/start"), None).expect_status(502).json();
    assert!(refused["message"].as_str().unwrap().contains("credentials"), "{refused}");
    assert_eq!(state(&server, &id), "archived");
    server.restart_in(&objects.environment());
    assert_eq!(ask(&server, &id, "start")["state"], "running");
    assert!(get(&server, &id, "/home/user/large") == large, "the large file has its bytes");
}

#[test]
fn a_server_that_is_killed_while_it_archives_or_restores_loses_no_byte() {
    let objects = ObjectStore::start();
    let mut server = TestServer::start_in(&[], &objects.environment());
    let id = make(&server);
    let large = Random::new(3).bytes(LARGE);
    put(&server, &id, "/home/user/large", &large);
    ask(&server, &id, "stop");
    for (verb, under_way) in [("archive", "archiving"), ("start", "restoring"), ("archive", "archiving")] {
        let api = server.api();
        let url = format!("/api/sandboxes/{id}/{verb}");
        let asking = std::thread::spawn(move || api.json("POST", &url, &[], None));
        until("the change to be under way", LIMIT, || state(&server, &id) == under_way || asking.is_finished());
        server.kill();
        let answered = asking.join().unwrap();
        server.restart();
        until("a lasting state", LIMIT, || matches!(state(&server, &id).as_str(), "stopped" | "archived" | "running"));
        let found = state(&server, &id);
        if answered.is_err() {
            println!("killed while {under_way}: {found}");
        }
        assert_eq!(ask(&server, &id, "start")["state"], "running", "it was {found}");
        assert!(get(&server, &id, "/home/user/large") == large, "the large file has its bytes");
        ask(&server, &id, "stop");
        if verb == "archive" {
            ask(&server, &id, "archive");
        }
    }
}
