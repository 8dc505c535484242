//! What egress through the proxy costs, against the same work over a veth pair in the same run.
//!
//! `cargo bench -p cove-engine --bench egress`, as root. Three ways to the same servers, taken in turn:
//! * proxy: a sandbox's namespace, redirected to the proxy, which dials over the host's veth
//! * routed: a namespace with a veth of its own, forwarded by the host to its veth (what a bridge would do, without NAT)
//! * direct: from the host itself over its veth

#[path = "../tests/network_world/mod.rs"]
mod network_world;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use cove_engine::network::namespace::{self, Kind};
use network_world::servers::{FLOOD, query};
use network_world::{INTERNET, World, ip, open, within};

const ROUNDS: usize = 400;
const BULK_ROUNDS: usize = 12;

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let (rounds, bulk) =
        if std::env::args().any(|argument| argument == "--bench") { (ROUNDS, BULK_ROUNDS) } else { (3, 1) };
    World::run(move |world| {
        set_up_costs(world, rounds);
        let proxy = world.proxy();
        let sandbox = world.sandbox(&proxy, &open(&[]));
        let routed = routed(world);
        let ways: [(&str, Option<&OwnedFd>); 3] =
            [("proxy", Some(&sandbox.network)), ("routed", Some(&routed)), ("direct", None)];

        table("connect, 100 bytes there and back, close (us)", &ways, rounds, request);
        table("64 MiB down (ms)", &ways, bulk, down);
        table("64 MiB up (ms)", &ways, bulk, up);
        let mut lookups = Vec::new();
        for _ in 0..rounds {
            lookups.push(sandbox.inside(lookup));
        }
        row("a name by UDP, through the proxy (us)", &mut lookups);
    });
}

fn set_up_costs(world: &World, rounds: usize) {
    let proxy = world.proxy();
    let [mut loopback, mut egress, mut attach, mut detach] = [const { Vec::new() }; 4];
    for number in 0..rounds.min(200) {
        loopback.push(timed(|| drop(namespace::create(Kind::Loopback).expect("create"))));
        let began = Instant::now();
        let network = namespace::create(Kind::Egress).expect("create");
        egress.push(began.elapsed());
        let id = format!("{number:0>20}").parse().expect("an id");
        attach.push(timed(|| proxy.attach(&id, network.as_fd(), &open(&[])).expect("attach")));
        detach.push(timed(|| assert!(proxy.detach(&id).is_some())));
    }
    row("make a loopback namespace (us)", &mut loopback);
    row("make an egress namespace, rules and all (us)", &mut egress);
    row("attach (us)", &mut attach);
    row("detach (us)", &mut detach);
}

/// A namespace behind a veth of its own, forwarded by the host.
fn routed(world: &World) -> OwnedFd {
    let network = namespace::create(Kind::Loopback).expect("create");
    let path = format!("/proc/{}/fd/{}", std::process::id(), network.as_raw_fd());
    ip(&format!("link add routed type veth peer name eth0 netns {path}"));
    ip("addr add 198.51.100.1/24 dev routed");
    ip("link set routed up");
    within(&network, || {
        ip("addr add 198.51.100.2/24 dev eth0");
        ip("link set eth0 up");
        ip("route add default via 198.51.100.1");
    });
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forward");
    world.on_the_internet(|| ip("route add 198.51.100.0/24 via 203.0.113.1"));
    network
}

fn table(what: &str, ways: &[(&str, Option<&OwnedFd>)], rounds: usize, work: fn() -> Duration) {
    let mut times: Vec<Vec<Duration>> = ways.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (way, times) in ways.iter().zip(&mut times) {
            times.push(match way.1 {
                Some(network) => within(network, work),
                None => std::thread::scope(|scope| scope.spawn(work).join().expect("work")),
            });
        }
    }
    for (way, times) in ways.iter().zip(&mut times) {
        row(&format!("{what}, {}", way.0), times);
    }
}

fn row(what: &str, times: &mut [Duration]) {
    times.sort();
    let unit = if what.contains("(ms)") { 1000.0 } else { 1.0 };
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6 / unit;
    println!("| {what} | p50 {:.1} | p99 {:.1} | n {} |", at(0.5), at(0.99), times.len());
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn request() -> Duration {
    timed(|| {
        let mut connection = TcpStream::connect((INTERNET, 7)).expect("connect");
        connection.set_nodelay(true).expect("set");
        connection.write_all(&[7; 100]).expect("ask");
        connection.read_exact(&mut [0; 100]).expect("answer");
    })
}

fn down() -> Duration {
    timed(|| {
        let mut connection = TcpStream::connect((INTERNET, 19)).expect("connect");
        let mut buffer = vec![0; 256 * 1024];
        let mut total = 0;
        while total < FLOOD {
            total += connection.read(&mut buffer).expect("read");
        }
    })
}

fn up() -> Duration {
    timed(|| {
        let mut connection = TcpStream::connect((INTERNET, 9)).expect("connect");
        let block = vec![7; 1 << 20];
        for _ in 0..FLOOD / block.len() {
            connection.write_all(&block).expect("send");
        }
        connection.shutdown(Shutdown::Write).expect("last word");
        connection.read_to_string(&mut String::new()).expect("count");
    })
}

fn lookup() -> Duration {
    timed(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        socket.send_to(&query("site.example"), "10.200.0.1:53").expect("ask");
        socket.recv(&mut [0; 512]).expect("an answer");
    })
}
