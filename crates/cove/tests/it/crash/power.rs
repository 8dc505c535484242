//! The power goes: the disk that everything lies on is copied at a random moment under load, and the server comes back on the
//! copy, as a machine does on its disk.
//!
//! What was acknowledged before that moment must be there: sandboxes, states, archives, keys of repeated requests, journals,
//! audit, snapshots and templates with all their files, files in volumes; of files in sandboxes those that a stop, a rollback or
//! a sync inside brought to the disk. Processes end with the machine. `COVE_LONG` makes it 50 cuts on each store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cove_testkit::disk::PoweredDisk;
use cove_testkit::postgres::{Durability, Postgres};
use cove_testkit::reboot::reboot;
use cove_testkit::wait::{LIMIT, until};
use cove_testkit::{Random, TestServer};

use super::client::{Blow, Line};

/// Of the disk, in MiB.
const SIZE: u64 = 2500;

#[test]
fn the_power_goes_at_random_moments_and_nothing_acknowledged_is_lost() {
    let Some(disk) = PoweredDisk::new(SIZE) else { return };
    cut_again_and_again("SQLite", disk, None);
}

#[test]
fn the_power_goes_at_random_moments_and_nothing_acknowledged_is_lost_on_postgresql() {
    let Some(disk) = PoweredDisk::new(SIZE) else { return };
    let place = disk.path().join("postgres");
    std::fs::create_dir(&place).unwrap();
    let Some(database) = Postgres::start_in(&place, Durability::Power) else { return };
    cut_again_and_again("PostgreSQL", disk, Some(database));
}

fn cut_again_and_again(store: &str, mut disk: PoweredDisk, mut database: Option<Postgres>) {
    let seed = Random::seed();
    let rounds = match std::env::var("COVE_CUTS") {
        Ok(cuts) => cuts.parse().expect("COVE_CUTS is a number"),
        Err(_) if std::env::var_os("COVE_LONG").is_some() => 50,
        Err(_) => 2,
    };
    println!("COVE_SEED={seed}, {rounds} power cuts on {store}");
    let begun_at = Instant::now();
    let mut random = Random::new(seed);
    let data = disk.path().join("data");
    let url = database.as_ref().map(|database| database.url().to_owned());
    let mut environment: Vec<(&str, &str)> = url.iter().map(|url| ("DATABASE_URL", url.as_str())).collect();
    environment.push(super::SOON);
    let mut server = TestServer::start_on(&data, &[], &environment);
    let line = Arc::new(Line::default());
    let mut clients = super::clients(&server, &line, Blow::Power, &mut random);
    let mut told = 0;
    for round in 1..=rounds {
        line.begin();
        std::thread::scope(|scope| {
            let working: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| client.work())).collect();
            let operations = 20 + usize::try_from(random.below(60)).unwrap_or(0);
            // Every commit waits for a disk on a disk on a disk.
            until("the load to go on", 4 * LIMIT, || {
                line.begun.load(Ordering::SeqCst) >= operations || working.iter().any(|client| client.is_finished())
            });
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            // What is answered from now on comes too late.
            line.killing.store(true, Ordering::SeqCst);
            disk.cut();
            server.kill();
        });
        told += line.begun.load(Ordering::SeqCst);
        line.killing.store(false, Ordering::SeqCst);
        if let Some(database) = &mut database {
            database.kill();
        }
        reboot(&data);
        disk.come_back();
        // The copy is of the same boot of the host by its own word.
        reboot(&data);
        if let Some(database) = &mut database {
            database.launch();
        }
        server.restart();
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| {
                    client.lose_power();
                    client.look_for_everything();
                    // Started again, it has its files.
                    client.bring_up_and_look();
                });
            }
        });
        super::compare_with_the_kernel(&server, &clients, round);
    }
    super::leave_nothing(&mut server, &mut clients);
    let facts: usize = clients.iter().map(|client| client.checked).sum();
    let seconds = begun_at.elapsed().as_secs();
    println!("{store}: {rounds} power cuts under {told} operations, {facts} facts found again, in {seconds} s");
    assert!(facts > 10 * rounds, "only {facts} facts were looked for: the load did not do its work");
    drop(server);
    drop(database);
}
