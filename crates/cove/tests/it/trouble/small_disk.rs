//! The disk of the data directory fills up and empties, under load: the database, the pool of sandboxes' files and everything
//! else lie on it.

use std::process::Command;
use std::time::Duration;

use cove_testkit::disk::{Disk, dig_holes};
use cove_testkit::wait::{until, until_some};
use cove_testkit::{Random, TestServer};
use serde_json::{Value, json};

use super::{RECOVERY, health, look_for_everything, make_clients, rounds, under_load, until_unwell};

/// In MiB.
const SIZE: u64 = 1500;

/// Writes are synced to a disk that others use too.
const ANSWERS: Duration = Duration::from_secs(30);

#[test]
fn a_disk_that_fills_and_empties_under_load_loses_nothing_and_the_server_heals() {
    let Some(disk) = Disk::new(SIZE) else { return };
    let seed = Random::seed();
    println!("COVE_SEED={seed}");
    let mut random = Random::new(seed);
    let mut server = TestServer::start_on(&disk.path().join("data"), &[], &[]);
    let mut clients = make_clients(&server, &mut random, ANSWERS);
    let mut facts = 0;
    // Each has what it needs before the trouble begins.
    under_load(&server, &mut clients, || {
        // Those that come and go have no name.
        let named = || listed(&server).iter().filter(|item| item["name"].is_string()).count();
        until("some facts", RECOVERY, || named() >= 4);
    });
    for _ in 0..rounds(10) {
        let before: usize = clients.iter().map(|client| client.no).sum();
        under_load(&server, &mut clients, || {
            disk.fill();
            until_unwell(&server, "disk");
            let refused = server.request("POST", "/api/sandboxes", Some(&json!({}))).expect_status(507);
            assert!(refused.header("retry-after").is_some());
            assert_eq!(refused.json()["code"], "disk_full");
            // A while in which everybody tries.
            std::thread::sleep(Duration::from_secs(2));
            disk.make_room();
        });
        let refused: usize = clients.iter().map(|client| client.no).sum();
        assert!(refused > before, "nobody met the full disk");
        facts += look_for_everything(&mut clients);
    }
    let (yes, no): (usize, usize) = clients.iter().fold((0, 0), |sum, client| (sum.0 + client.yes, sum.1 + client.no));
    server.restart();
    facts += look_for_everything(&mut clients);
    println!("{yes} yes, {no} no, {facts} facts found again");
}

#[test]
fn a_sandbox_that_fills_the_pool_gets_no_space_and_nothing_breaks() {
    let Some(disk) = Disk::new(SIZE) else { return };
    let server = TestServer::start_on(&disk.path().join("data"), &[], &[]);
    let id = make(&server, "glutton");
    let other = make(&server, "neighbour");
    put(&server, &other, "/home/user/note", b"here");
    // On so small a disk a writer may be faster than the look that makes more room: it goes on until there is none.
    let line = "for i in 1 2 3 4 5 6; do said=$(dd if=/dev/zero bs=1M 2>&1 >> big); sync big; sleep 0.5; done; echo \"$said\" >&2";
    let said = exec(&server, &id, line);
    assert!(said["stderr"].as_str().unwrap().contains("No space left"), "{said}");
    until_unwell(&server, "full");
    assert_eq!(get(&server, &other, "/home/user/note"), b"here");
    assert_eq!(exec(&server, &id, "rm big && sync . && echo gone")["stdout"], "gone\n");
    until("there is room again", RECOVERY, || health(&server).0 == 200);
    put(&server, &other, "/home/user/note", b"there");
    assert_eq!(get(&server, &other, "/home/user/note"), b"there");
}

#[test]
fn a_pool_that_lost_its_blocks_fails_is_told_and_heals_when_there_is_room() {
    let Some(disk) = Disk::new(SIZE) else { return };
    let mut server = TestServer::start_on(&disk.path().join("data"), &[], &[]);
    let id = make(&server, "x");
    put(&server, &id, "/home/user/note", b"precious");
    assert_eq!(exec(&server, &id, "sync note . && echo synced")["stdout"], "synced\n");
    for restarts in [false, true] {
        // A sandbox that writes without end. It begins before the disk is full: afterwards the database cannot be written
        // either, and a command is refused.
        let line = "nohup sh -c 'while :; do for i in 1 2 3 4; do head -c 20000000 /dev/urandom > big$i; sync big$i; \
                    : > small$i; sync small$i; done; done' > /dev/null 2>&1 & echo begun";
        assert_eq!(exec(&server, &id, line)["stdout"], "begun\n");
        // As a copy of the data directory without its holes would, while nobody looks.
        signal(&server, "-STOP");
        dig_holes(&server.data().join("pool.btrfs"));
        disk.fill();
        signal(&server, "-CONT");
        until_unwell(&server, "storage of this server has failed");
        if restarts {
            server.kill();
            disk.make_room();
            server.restart();
        } else {
            disk.make_room();
        }
        until("the storage to begin anew", RECOVERY, || health(&server).0 == 200);
        let found = until_some("its end to be told", RECOVERY, || {
            let found = server.request("GET", &format!("/api/sandboxes/{id}"), None).expect_status(200).json();
            (found["state"] == "stopped").then_some(found)
        });
        assert_eq!(found["cause"]["code"], "storage_failed", "{found}");
        let why = server.request("GET", &format!("/api/sandboxes/{id}/explain"), None).expect_status(200).json();
        assert!(why["remedy"].to_string().contains("cove start"), "{why}");
        server.request("POST", &format!("/api/sandboxes/{id}/start"), None).expect_status(200);
        assert_eq!(get(&server, &id, "/home/user/note"), b"precious");
        assert_eq!(exec(&server, &id, "rm -f big*; echo new > new; sync new . && cat new")["stdout"], "new\n");
    }
}

fn listed(server: &TestServer) -> Vec<Value> {
    let page = server.request("GET", "/api/sandboxes?limit=100", None).expect_status(200).json();
    page["items"].as_array().unwrap().clone()
}

fn make(server: &TestServer, name: &str) -> String {
    let body = json!({"name": name, "timers": {"idle_seconds": null}});
    let made = server.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json();
    made["id"].as_str().unwrap().to_owned()
}

fn put(server: &TestServer, id: &str, path: &str, bytes: &[u8]) {
    let url = format!("/api/sandboxes/{id}/files/content?path={path}");
    server.api().send("PUT", &url, &[], Some(bytes)).unwrap().expect_status(200);
}

fn get(server: &TestServer, id: &str, path: &str) -> Vec<u8> {
    server.request("GET", &format!("/api/sandboxes/{id}/files/content?path={path}"), None).expect_status(200).body
}

fn exec(server: &TestServer, id: &str, line: &str) -> Value {
    let body = json!({"shell": line, "timeout_seconds": 120});
    server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&body)).expect_status(200).json()
}

fn signal(server: &TestServer, signal: &str) {
    let sent = Command::new("kill").args([signal, &server.pid().to_string()]).status().expect("run kill");
    assert!(sent.success());
}
