//! A restart that loses nothing: `cove serve` is killed at random moments under a mixed load and comes back.
//!
//! ```text
//!   several clients ── create, exec, write, pause, stop, archive, delete …
//!        │             snapshot, fork, roll back, build, write to volumes … ──▶ server ── SIGKILL at any moment
//!        │ each writes down what was acknowledged, and what was asked without an answer
//!        ▼
//!   server again ── every fact is looked for ── the kernel is asked which sandboxes run ── next round
//!        ▼ at the end everything is deleted
//!   no layer, draft, volume or job is left
//! ```
//!
//! What was acknowledged must be true. What was asked and not answered may be true or not, but nothing in between. It
//! holds for both stores. `COVE_SEED` repeats a run's choices, `COVE_LONG` makes it 500 rounds on each. [`power`] does
//! the same with the power of the machine.

mod client;
mod facts;
mod follow;
mod keeping;
mod power;
mod things;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cove_testkit::guests::{guests, spawners};
use cove_testkit::postgres::Postgres;
use cove_testkit::wait::{LIMIT, until};
use cove_testkit::{Random, TestServer};

use client::{Blow, Client, Line};

const CLIENTS: u64 = 5;

/// Files that nobody needs go after a second: while the clients work, and soon enough at the end.
const SOON: (&str, &str) = ("COVE_BUILDS_KEEP_UNUSED_SECONDS", "1");

#[test]
fn killed_at_random_moments_the_server_loses_nothing() {
    kill_again_and_again("SQLite", TestServer::start_in(&[], &[SOON]));
}

#[test]
fn killed_at_random_moments_the_server_loses_nothing_on_postgresql() {
    let Some(database) = Postgres::start() else { return };
    kill_again_and_again("PostgreSQL", TestServer::start_in(&[], &[("DATABASE_URL", database.url()), SOON]));
}

fn kill_again_and_again(store: &str, mut server: TestServer) {
    let seed = Random::seed();
    let rounds = if std::env::var_os("COVE_LONG").is_some() { 500 } else { 8 };
    println!("COVE_SEED={seed}, {rounds} rounds on {store}");
    let begun_at = Instant::now();
    let mut random = Random::new(seed);
    let line = Arc::new(Line::default());
    let mut clients = clients(&server, &line, Blow::Kill, &mut random);
    let mut told = 0;
    for round in 1..=rounds {
        line.begin();
        let old_spawners = spawners(server.pid());
        std::thread::scope(|scope| {
            let working: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| client.work())).collect();
            let operations = 10 + usize::try_from(random.below(40)).unwrap_or(0);
            until("the load to go on", LIMIT, || {
                line.begun.load(Ordering::SeqCst) >= operations || working.iter().any(|client| client.is_finished())
            });
            // Any moment of an operation, not its beginning alone.
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            line.killing.store(true, Ordering::SeqCst);
            server.kill();
        });
        told += line.begun.load(Ordering::SeqCst);
        line.killing.store(false, Ordering::SeqCst);
        until("the spawners to end with their server", LIMIT, || {
            old_spawners.iter().all(|&pid| !std::path::Path::new(&format!("/proc/{pid}/exe")).exists())
        });
        // It may as well die while it looks for what is there.
        while random.one_in(4) {
            server.kill_while_starting(Duration::from_millis(random.below(400)));
        }
        server.restart();
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| client.look_for_everything());
            }
        });
        compare_with_the_kernel(&server, &clients, round);
    }
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| client.bring_up_and_look());
        }
    });
    leave_nothing(&mut server, &mut clients);
    let facts: usize = clients.iter().map(|client| client.checked).sum();
    let seconds = begun_at.elapsed().as_secs();
    println!("{store}: {rounds} kills under {told} operations, {facts} facts found again, in {seconds} s");
    assert!(facts > 20 * rounds, "only {facts} facts were looked for: the load did not do its work");
}

fn clients(server: &TestServer, line: &Arc<Line>, blow: Blow, random: &mut Random) -> Vec<Client> {
    let client = |number| Client::new(number, server.api(), Arc::clone(line), blow, Random::new(random.number()));
    (0..CLIENTS).map(client).collect()
}

/// What the server lists is what clients know, and what runs in the kernel is what the server says.
fn compare_with_the_kernel(server: &TestServer, clients: &[Client], round: usize) {
    let expected: BTreeMap<String, bool> = clients.iter().flat_map(Client::sandboxes).collect();
    let listed = server.request("GET", "/api/sandboxes?limit=1000", None).expect_status(200).json();
    let listed: BTreeSet<String> =
        listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    let known: BTreeSet<String> = expected.keys().cloned().collect();
    assert_eq!(listed, known, "round {round}: the list of sandboxes");
    let running =
        || -> BTreeMap<String, usize> { guests(&server.data()).into_iter().map(|(id, all)| (id, all.len())).collect() };
    let wanted: BTreeMap<String, usize> =
        expected.into_iter().filter(|(_, runs)| *runs).map(|(id, _)| (id, 1)).collect();
    // The sandbox of a build that has just been given up is removed behind its back.
    let begun = Instant::now();
    while running() != wanted && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(running(), wanted, "round {round}: guests by sandbox");
}

/// Everything is deleted, and then nothing of it is left: not in the database, not on the disk.
fn leave_nothing(server: &mut TestServer, clients: &mut [Client]) {
    std::thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| client.delete_everything());
        }
    });
    // Templates are gone, and the server remembers their steps until it is told otherwise.
    server.request("DELETE", "/api/build-steps", None).expect_status(200);
    // A start does at once what is otherwise done now and then.
    server.restart();
    let begun = Instant::now();
    loop {
        let left = what_is_left(server);
        if left.is_empty() {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "after {LIMIT:?} there is still {left:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn what_is_left(server: &TestServer) -> Vec<String> {
    let mut left = Vec::new();
    for top in ["pool", "storage"] {
        for folder in ["layers", "drafts", "volumes"] {
            let entries = std::fs::read_dir(server.data().join(top).join(folder));
            let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
            left.extend(names.map(|name| format!("{top}/{folder}/{}", name.to_string_lossy())));
        }
    }
    let told = |path: &str| server.request("GET", path, None).expect_status(200).json();
    let templates = told("/api/templates");
    let own = templates.as_array().into_iter().flatten().filter(|template| template["built_in"] == false);
    let lists = [told("/api/volumes"), told("/api/snapshots")["items"].clone()];
    let jobs = ["queued", "running"].map(|state| told(&format!("/api/jobs?state={state}")));
    let listed = lists.iter().chain(&jobs).filter_map(|list| list.as_array()).flatten();
    left.extend(own.chain(listed).map(|thing| thing.to_string()));
    left
}
