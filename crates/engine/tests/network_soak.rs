//! The proxy under rough use: connections that come and go in every way, sandboxes too. Afterwards nothing is left.

mod network_world;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cove_engine::network::policy::{Decision, Destination};
use cove_engine::network::{Journal, Settings};
use cove_engine::spec::SandboxId;
use network_world::servers::{outcome, query};
use network_world::{INTERNET, World, closed, eventually, open};
use rustix::net::sockopt::set_socket_linger;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("list").count()
}

#[test]
fn connections_that_end_in_every_way_leave_nothing_behind() {
    World::run(|world| {
        let proxy = world.proxy();
        let sandbox = world.sandbox(&proxy, &open(&[]));
        let before = descriptors();
        sandbox.inside(|| {
            for round in 0..240 {
                let port = [7, 9, 19, 80, 81][round % 5];
                let mut connection = TcpStream::connect((INTERNET, port)).expect("our listener");
                connection.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
                // What becomes of these calls differs with the port: only what is left afterwards counts.
                match round % 4 {
                    0 => drop(connection.write_all(b"GET / HTTP/1.1\r\n\r\n")),
                    1 => drop(connection.read(&mut [0; 100])),
                    2 => set_socket_linger(&connection, Some(Duration::ZERO)).expect("end with a reset"),
                    _ => drop(connection.shutdown(Shutdown::Write)),
                }
            }
        });
        eventually("every descriptor is closed", || descriptors() == before);
        let counters = sandbox.counters();
        assert_eq!((counters.allowed, counters.refused), (240, 0));
    });
}

#[test]
fn sandboxes_that_come_and_go_leave_nothing_behind() {
    World::run(|world| {
        let proxy = world.proxy();
        drop(world.sandbox(&proxy, &open(&[])));
        let before = descriptors();
        let busy = world.sandbox(&proxy, &open(&[]));
        let mut steady = busy.inside(|| TcpStream::connect((INTERNET, 7)).expect("connect"));
        for _ in 0..25 {
            let sandbox = world.sandbox(&proxy, &open(&[]));
            // Gone with a connection open, one dialing, one flooded and a question in flight.
            let _open = sandbox.inside(|| {
                let asking = UdpSocket::bind("0.0.0.0:0").expect("bind");
                asking.send_to(&query("site.example"), "10.200.0.1:53").expect("ask");
                let connections = [(INTERNET, 7), ("198.51.100.9", 80), (INTERNET, 19)];
                (connections.map(|target| TcpStream::connect(target).expect("connect")), asking)
            });
        }
        steady.write_all(b"still here").expect("write");
        steady.read_exact(&mut [0; 10]).expect("a neighbour does not notice");
        drop((steady, busy));
        eventually("every descriptor is closed", || descriptors() == before);
    });
}

#[test]
fn a_flood_of_questions_is_answered_or_refused_but_never_ignored_for_long() {
    World::run(|world| {
        let proxy = world.proxy();
        let (noisy, quiet) = (world.sandbox(&proxy, &open(&[])), world.sandbox(&proxy, &open(&[])));
        noisy.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
            for _ in 0..2000 {
                // A full queue is the noisy one's own loss.
                let _ = socket.send_to(&query("site.example"), "10.200.0.1:53");
            }
        });
        quiet.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
            socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            socket.send_to(&query("site.example"), "10.200.0.1:53").expect("ask");
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer).expect("an answer");
            assert_eq!(outcome(&buffer[..length]).0, 0);
        });
    });
}

#[derive(Default)]
struct Told {
    allowed: AtomicUsize,
    refused: AtomicUsize,
    named: AtomicUsize,
}

impl Journal for Told {
    fn decided(&self, _: &SandboxId, destination: &Destination, decision: &Decision) {
        let counter = if decision.is_allowed() { &self.allowed } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        if destination.name.as_deref() == Some("site.example") {
            self.named.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn asked(&self, _: &SandboxId, _: &str) {}
}

#[test]
fn every_decision_is_told_with_the_name_that_led_there() {
    World::run(|world| {
        let told = Arc::new(Told::default());
        let proxy = world.proxy_with(Settings { journal: told.clone(), ..Settings::default() });
        let sandbox = world.sandbox(&proxy, &open(&[]));
        assert!(sandbox.program("curl -sS http://site.example/").status.success());
        proxy.update(&sandbox.id, &closed(&[])).expect("update");
        assert!(!sandbox.program("curl -sS http://203.0.113.7/").status.success());
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        assert_eq!((count(&told.allowed), count(&told.refused), count(&told.named)), (1, 1, 2));
    });
}
