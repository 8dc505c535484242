//! Disks that fill up and databases that go away, under load: what was acknowledged is there, what cannot be done is refused
//! in time and with a word on when to come again, the server tells the truth of itself, and when the trouble is over it
//! works again without anybody's help.

mod client;
mod database;
mod small_disk;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cove_testkit::http;
use cove_testkit::wait::until;
use cove_testkit::{Random, TestServer};

use client::Client;

/// How long a trouble that is over may take to be noticed, machine under load included.
const RECOVERY: Duration = Duration::from_secs(60);

/// Clients at work until `story` is over; then what they know is looked for.
fn under_load(server: &TestServer, clients: &mut [Client], story: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Clients end with a story that fails, too: the scope waits for them.
        let end = End(&over);
        let working: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| client.work(&over))).collect();
        story();
        until("the server to be well", RECOVERY, || health(server).0 == 200);
        drop(end);
        for worker in working {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Says that it is over when it goes.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn look_for_everything(clients: &mut [Client]) -> usize {
    std::thread::scope(|scope| {
        let looking: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| client.look())).collect();
        looking.into_iter().map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
    })
}

fn make_clients(server: &TestServer, random: &mut Random, answers_within: Duration) -> Vec<Client> {
    (0..4).map(|number| Client::new(number, server.api(), Random::new(random.number()), answers_within)).collect()
}

/// What `/healthz` says.
fn health(server: &TestServer) -> (u16, String) {
    let answer = http::request(server.address(), "GET", "/healthz", &[], None);
    answer.map_or((0, String::new()), |answer| (answer.status, answer.text()))
}

fn until_unwell(server: &TestServer, word: &str) {
    // It may first say what else is wrong.
    until("the server to say what it is unwell of", RECOVERY, || {
        let (status, said) = health(server);
        status == 503 && said.contains(word)
    });
}

fn rounds(long: usize) -> usize {
    if std::env::var_os("COVE_LONG").is_some() { long } else { 1 }
}
