//! PostgreSQL goes away under load: killed, frozen, stopped. It comes back, and the server with it.

use std::time::Duration;

use cove_testkit::postgres::Postgres;
use cove_testkit::wait::until;
use cove_testkit::{Random, TestServer};

use super::{RECOVERY, health, look_for_everything, make_clients, rounds, under_load, until_unwell};

/// Of a database that does not answer nobody waits longer: ten seconds for a statement, and what was begun is taken back.
const ANSWERS: Duration = Duration::from_secs(20);

#[test]
fn a_database_that_is_killed_frozen_and_stopped_under_load_loses_nothing_and_the_server_recovers() {
    let Some(mut database) = Postgres::start() else { return };
    let seed = Random::seed();
    println!("COVE_SEED={seed}");
    let mut random = Random::new(seed);
    let server = TestServer::start_in(&[], &[("DATABASE_URL", database.url())]);
    let mut clients = make_clients(&server, &mut random, ANSWERS);
    under_load(&server, &mut clients, || {
        until("some facts", RECOVERY, || {
            let page = server.request("GET", "/api/sandboxes?limit=100", None).expect_status(200).json();
            // Those that come and go have no name.
            let items = page["items"].as_array().expect("a list");
            items.iter().filter(|item| item["name"].is_string()).count() >= 4
        });
    });
    let mut facts = 0;
    for _ in 0..rounds(10) {
        let before: usize = clients.iter().map(|client| client.no).sum();
        for how in ["kill", "freeze", "stop"] {
            under_load(&server, &mut clients, || {
                std::thread::sleep(Duration::from_millis(random.below(500)));
                match how {
                    "kill" => database.kill(),
                    "freeze" => database.freeze(),
                    _ => database.stop(),
                }
                until_unwell(&server, "database");
                std::thread::sleep(Duration::from_millis(random.below(1000)));
                if how == "freeze" {
                    database.thaw()
                } else {
                    database.launch()
                }
                until("the server to be well", RECOVERY, || health(&server).0 == 200);
            });
            facts += look_for_everything(&mut clients);
        }
        // In one trouble alone all may have waited until it was over.
        let refused: usize = clients.iter().map(|client| client.no).sum();
        assert!(refused > before, "nobody noticed that the database was gone");
    }
    println!("{facts} facts found again");
    drop(server);
}
