//! What works through the egress proxy, seen from inside a sandbox's network.

mod network_world;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cove_engine::network::Settings;
use cove_engine::spec::Egress;
use network_world::servers::{FLOOD, PAGE, outcome, query};
use network_world::{INTERNET, World, closed, eventually, open, without};

fn connect(address: &str, port: u16) -> TcpStream {
    let connection = TcpStream::connect((address, port)).expect("our own listener takes every connection");
    connection.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    connection
}

fn echoes(connection: &mut TcpStream, text: &str) -> std::io::Result<()> {
    connection.write_all(text.as_bytes())?;
    let mut answer = vec![0; text.len()];
    connection.read_exact(&mut answer)?;
    assert_eq!(answer, text.as_bytes());
    Ok(())
}

#[test]
fn programs_reach_the_internet_by_address_and_by_name() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        for command in [
            "curl -sS http://203.0.113.7/",
            "curl -sS http://site.example/",
            "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://site.example/\").read().decode(), end=\"\")'",
        ] {
            let output = sandbox.program(command);
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout), PAGE, "{command}: {told}");
        }
        let counters = sandbox.counters();
        assert_eq!((counters.allowed, counters.refused, counters.failed), (3, 0, 0));
        assert!(counters.questions >= 2 && counters.received > 3 * PAGE.len() as u64 && counters.sent > 100);
    });
}

#[test]
fn the_hosts_own_resolvers_answer_where_the_policy_names_none() {
    World::run(|world| {
        let resolv_conf = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(resolv_conf.path(), "nameserver 127.0.0.1\n").expect("write");
        let settings = Settings { resolv_conf: resolv_conf.path().to_owned(), ..Settings::default() };
        let sandbox = world.sandbox(&world.proxy_with(settings), &Egress::default());
        let output = sandbox.program("getent ahostsv4 site.example");
        assert!(String::from_utf8_lossy(&output.stdout).contains(INTERNET), "{output:?}");
    });
}

#[test]
fn the_next_resolver_is_asked_when_one_is_silent() {
    World::run(|world| {
        let resolvers =
            ["203.0.113.99", "203.0.113.98", INTERNET].map(|text| text.parse().expect("an address")).to_vec();
        let settings = Settings { resolver_patience: Duration::from_millis(50), ..Settings::default() };
        let sandbox = world.sandbox(&world.proxy_with(settings), &Egress { resolvers, ..Egress::default() });
        sandbox.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
            socket.send_to(&query("site.example"), "9.9.9.9:53").expect("ask");
            let mut buffer = [0; 512];
            let (length, from) = socket.recv_from(&mut buffer).expect("an answer");
            assert_eq!(outcome(&buffer[..length]), (0, Some(INTERNET.parse().expect("an address"))));
            assert_eq!(from, "9.9.9.9:53".parse().expect("an address"), "from whom it was asked");
            assert_eq!(buffer[..2], query("site.example")[..2], "under the asker's identifier");
        });
    });
}

#[test]
fn a_large_answer_comes_by_tcp() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        let output = sandbox.program("getent ahostsv4 large.example | cut -d' ' -f1 | sort -u | wc -l");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "200", "{output:?}");
    });
}

#[test]
fn a_half_closed_connection_still_brings_the_answer() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        sandbox.inside(|| {
            let mut connection = connect(INTERNET, 9);
            let block = vec![7u8; 3_000_000];
            connection.write_all(&block).expect("send");
            connection.shutdown(Shutdown::Write).expect("last word");
            let mut answer = String::new();
            connection.read_to_string(&mut answer).expect("answer");
            assert_eq!(answer, "3000000");
        });
    });
}

#[test]
fn a_slow_reader_holds_its_sender_back_and_gets_everything() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        sandbox.inside(|| {
            let mut connection = connect(INTERNET, 19);
            let mut last = u64::MAX;
            // Not reading: the flow comes to rest, long before everything is here.
            let mut still = 0;
            eventually("the flow rests", || {
                std::thread::sleep(Duration::from_millis(20));
                let now = sandbox.counters().received;
                still = if now == last && now > 0 { still + 1 } else { 0 };
                last = now;
                still > 20
            });
            assert!(last < FLOOD as u64 / 2, "{last} bytes came although nobody reads");
            let mut buffer = vec![0u8; 256 * 1024];
            let mut total = 0;
            loop {
                let length = connection.read(&mut buffer).expect("read");
                if length == 0 {
                    break;
                }
                let right = buffer[..length].iter().enumerate().all(|(at, &byte)| byte == (total + at) as u8);
                assert!(right, "byte for byte");
                total += length;
            }
            assert_eq!(total, FLOOD);
        });
        assert_eq!(sandbox.counters().received, FLOOD as u64);
    });
}

#[test]
fn two_hundred_connections_at_once() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        sandbox.inside(|| {
            let mut connections: Vec<_> = (0..200).map(|_| connect(INTERNET, 7)).collect();
            for round in 0..3 {
                for (number, connection) in connections.iter_mut().enumerate() {
                    echoes(connection, &format!("round {round} of {number}")).expect("echo");
                }
            }
        });
        assert_eq!(sandbox.counters().allowed, 200);
    });
}

#[test]
fn a_policy_change_holds_at_once_and_cuts_what_it_forbids() {
    World::run(|world| {
        let proxy = world.proxy();
        let sandbox = world.sandbox(&proxy, &open(&["10.0.0.5:7"]));
        sandbox.inside(|| {
            let mut public = connect(INTERNET, 7);
            let mut private = connect("10.0.0.5", 7);
            echoes(&mut public, "before").expect("echo");
            echoes(&mut private, "before").expect("echo");

            proxy.update(&sandbox.id, &closed(&["10.0.0.5:7"])).expect("update");
            let error = echoes(&mut public, "after").expect_err("cut");
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
            echoes(&mut private, "still allowed").expect("echo");
            echoes(&mut connect(INTERNET, 7), "new").expect_err("refused");

            proxy.update(&sandbox.id, &without(&["10.0.0.0/8"])).expect("update");
            echoes(&mut connect(INTERNET, 7), "open again").expect("echo");
            echoes(&mut private, "now forbidden").expect_err("cut");
        });
    });
}

#[test]
fn a_sandbox_finds_its_network_again_after_the_server_did() {
    World::run(|world| {
        let proxy = world.proxy();
        let sandbox = world.sandbox(&proxy, &open(&[]));
        let mut open_before = sandbox.inside(|| connect(INTERNET, 7));
        echoes(&mut open_before, "before").expect("echo");
        let network = sandbox.network.try_clone().expect("keep the namespace");
        let id = sandbox.id.clone();
        drop(sandbox);
        drop(proxy);

        echoes(&mut open_before, "lost").expect_err("ended with the server");
        let proxy = world.proxy();
        let sandbox = network_world::Sandbox { id, network, proxy };
        sandbox.inside(|| {
            let error = TcpStream::connect((INTERNET, 7)).expect_err("nobody listens");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "at once, not after a timeout: {error}");
        });
        for _ in 0..2 {
            sandbox.proxy.attach(&sandbox.id, sandbox.network.as_fd(), &open(&[])).expect("attach, and once more");
            sandbox.inside(|| echoes(&mut connect(INTERNET, 7), "after").expect("echo"));
        }
    });
}

#[test]
fn a_dial_that_nobody_takes_ends_in_a_reset() {
    World::run(|world| {
        let settings = Settings { dial: Duration::from_millis(300), ..Settings::default() };
        let sandbox = world.sandbox(&world.proxy_with(settings), &open(&[]));
        sandbox.inside(|| {
            // A closed port answers no; 198.51.100.9 never answers.
            for (address, port) in [(INTERNET, 81), ("198.51.100.9", 80)] {
                let began = Instant::now();
                let error = connect(address, port).read(&mut [0; 1]).expect_err("nobody there");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}: {error}");
                assert!(began.elapsed() < Duration::from_secs(3));
            }
        });
        let counters = sandbox.counters();
        assert_eq!((counters.allowed, counters.failed), (2, 2));
    });
}

#[test]
fn a_silent_connection_ends_after_the_idle_limit() {
    World::run(|world| {
        let settings = Settings { idle: Duration::from_millis(300), ..Settings::default() };
        let sandbox = world.sandbox(&world.proxy_with(settings), &open(&[]));
        sandbox.inside(|| {
            let mut connection = connect(INTERNET, 7);
            echoes(&mut connection, "alive").expect("echo");
            let error = connection.read(&mut [0; 1]).expect_err("idle");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        });
    });
}

#[test]
fn a_detached_sandbox_is_let_go() {
    World::run(|world| {
        let proxy = world.proxy();
        let sandbox = world.sandbox(&proxy, &open(&[]));
        let mut connection = sandbox.inside(|| connect(INTERNET, 7));
        echoes(&mut connection, "hello").expect("echo");
        let descriptors = || std::fs::read_dir("/proc/self/fd").expect("list").count();
        let before = descriptors();
        let counters = proxy.detach(&sandbox.id).expect("was attached");
        assert_eq!((counters.sent, counters.received), (5, 5));
        eventually("two sockets inside, two of the connection, and the server's are closed", || {
            descriptors() == before - 5
        });
        assert!(proxy.detach(&sandbox.id).is_none() && proxy.counters(&sandbox.id).is_none());
        echoes(&mut connection, "cut").expect_err("cut");
        let error = proxy.update(&sandbox.id, &open(&[])).expect_err("nothing to change");
        assert!(error.to_string().contains("has no egress to change"), "{error}");
    });
}

#[test]
fn a_flood_of_questions_by_tcp_does_not_keep_the_neighbours_waiting() {
    World::run(|world| {
        let proxy = world.proxy();
        let (flooding, _other_worker, neighbour) =
            (world.sandbox(&proxy, &closed(&[])), world.sandbox(&proxy, &open(&[])), world.sandbox(&proxy, &open(&[])));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                flooding.inside(|| {
                    let asker = connect("9.9.9.9", 53);
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            // Messages of no length, each of which is answered with a refusal.
                            while (&asker).write_all(&[0; 64 << 10]).is_ok() {
                                if over.load(Ordering::Relaxed) {
                                    let _ = asker.shutdown(Shutdown::Both);
                                }
                            }
                        });
                        let mut answers = vec![0; 64 << 10];
                        while (&asker).read(&mut answers).is_ok_and(|length| length > 0) {}
                    });
                });
            });
            eventually("the flood", || flooding.counters().questions > 10_000);
            let echoed = neighbour.inside(|| echoes(&mut connect(INTERNET, 7), "is anybody there?"));
            let still = flooding.counters().questions;
            eventually("the flood goes on", || flooding.counters().questions > still);
            over.store(true, Ordering::Relaxed);
            echoed.expect("the neighbour on the same worker is served");
        });
    });
}
