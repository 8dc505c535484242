//! How soon a server that was killed knows all its sandboxes again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use cove_testkit::guests::guests;
use serde_json::json;

const MAKERS: usize = 8;

#[test]
fn a_killed_server_finds_every_live_sandbox_again_soon() {
    // By the wish: a thousand within two seconds. Fewer in the usual run, in the same time: that build is not optimised, and
    // other tests run beside it.
    let count = if std::env::var_os("COVE_LONG").is_some() { 1000 } else { 200 };
    let limit = Duration::from_secs(2);
    let mut server = TestServer::start();
    let empty = memory_of(server.pid());
    let begun = Instant::now();
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..MAKERS {
            scope.spawn(|| {
                while made.fetch_add(1, Ordering::SeqCst) < count {
                    server
                        .request("POST", "/api/sandboxes", Some(&json!({"timers": {"idle_seconds": null}})))
                        .expect_status(201);
                }
            });
        }
    });
    println!("{count} sandboxes made in {:?}", begun.elapsed());
    println!("the server's memory: {} KiB each", (memory_of(server.pid()) - empty) / 1024 / count as u64);
    let mut all = listed(&server);
    assert_eq!(all.len(), count);
    all.sort();

    server.kill();
    let begun = Instant::now();
    server.restart();
    let ready = begun.elapsed();
    let mut found = listed(&server);
    let true_list = begun.elapsed();
    println!("after a kill: ready in {ready:?}, the list in {true_list:?}");
    found.sort();
    assert_eq!(found, all, "every one is there, and runs");
    println!("the server's memory: {} KiB each", memory_of(server.pid()).saturating_sub(empty) / 1024 / count as u64);
    // They are not only listed: each answers.
    for id in found.iter().step_by(17) {
        let said = server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&json!({"shell": "echo here"})));
        assert_eq!(said.expect_status(200).json()["stdout"], "here\n");
    }
    let alive = guests(&server.data());
    assert!(alive.len() == count && alive.values().all(|pids| pids.len() == 1), "one guest each");
    assert!(true_list < limit, "{count} sandboxes were found after {true_list:?}");
}

/// Those that run, by the server's word.
fn listed(server: &TestServer) -> Vec<String> {
    let page = server.request("GET", "/api/sandboxes?limit=1000&state=running", None).expect_status(200).json();
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Bytes of a process that are its own.
fn memory_of(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let field = |name: &str| -> u64 {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    (field("Private_Clean:") + field("Private_Dirty:")) * 1024
}
