//! A small world for network tests: a host and an internet in network namespaces of the test's own.
//!
//! ```text
//!  sandboxes ──(proxy)── host: 203.0.113.1 ──veth── internet: 203.0.113.7 and everything that must not be reached,
//!                        127.0.0.1:8080             each with real servers: a wall that fails is noticed
//! ```
//! Nothing leaves the machine, and the machine's own network is not touched. When the world ends its namespaces do.

#![allow(dead_code, reason = "each test file uses its own part of the world")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in the files that use everything")]

pub mod servers;

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cove_engine::network::namespace::{self, Kind};
use cove_engine::network::{Counters, Proxy, Settings};
use cove_engine::spec::{Egress, SandboxId, Verdict};
use cove_sys::network_namespace::unshare_network;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use servers::Servers;

pub const INTERNET: &str = "203.0.113.7";
pub const HOST: &str = "203.0.113.1";
/// All of them are served by the internet, and refused by default.
pub const FORBIDDEN: [&str; 6] =
    ["10.0.0.5", "100.64.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1", "198.18.0.1"];

pub struct World {
    internet: OwnedFd,
    _outside: Servers,
    _on_host: Servers,
}

impl World {
    /// Runs a test in a world. The test's thread is on the host.
    pub fn run(test: impl FnOnce(&World) + Send + 'static) {
        let thread = thread::Builder::new().name("world".into()).spawn(move || {
            unshare_network().expect("a network of the test's own (run as root)");
            let world = World::build();
            test(&world);
        });
        if let Err(panic) = thread.expect("start the world").join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn build() -> World {
        let internet = namespace::create(Kind::Loopback).expect("an internet");
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&internet));
        ip("link set lo up");
        ip(&format!("link add outside type veth peer name wire netns {path}"));
        ip("addr add 203.0.113.1/24 dev outside");
        ip("link set outside up");
        within(&internet, || {
            ip("addr add 203.0.113.7/24 dev wire");
            ip("link set wire up");
            for address in FORBIDDEN {
                ip(&format!("addr add {address}/32 dev lo"));
            }
        });
        ip("route add default via 203.0.113.7");
        let outside = within(&internet, Servers::start);
        World { internet, _outside: outside, _on_host: Servers::start_on("203.0.113.1", "127.0.0.1") }
    }

    pub fn proxy(&self) -> Arc<Proxy> {
        self.proxy_with(Settings::default())
    }

    pub fn proxy_with(&self, settings: Settings) -> Arc<Proxy> {
        Arc::new(Proxy::with(Settings { workers: 2, ..settings }).expect("start the proxy"))
    }

    /// A sandbox's network, attached.
    pub fn sandbox(&self, proxy: &Arc<Proxy>, egress: &Egress) -> Sandbox {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("{number:0>20}").parse().expect("an id");
        let network = namespace::create(Kind::Egress).expect("a namespace");
        let sandbox = Sandbox { id, network, proxy: proxy.clone() };
        proxy.attach(&sandbox.id, sandbox.network.as_fd(), egress).expect("attach");
        sandbox
    }

    pub fn on_the_internet<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(&self.internet, work)
    }
}

pub struct Sandbox {
    pub id: SandboxId,
    pub network: OwnedFd,
    pub proxy: Arc<Proxy>,
}

impl Sandbox {
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(&self.network, work)
    }

    /// Runs a program inside that asks the sandbox's resolver for names.
    pub fn program(&self, command: &str) -> Output {
        let resolv_conf = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(resolv_conf.path(), format!("nameserver {}\n", cove_engine::network::RESOLVER))
            .expect("write it");
        let script = "mount --bind \"$1\" /etc/resolv.conf && exec sh -c \"$2\"";
        self.inside(|| {
            let mut program = Command::new("timeout");
            program.args(["20", "unshare", "--mount", "sh", "-c", script, "sh"]);
            program.arg(resolv_conf.path()).arg(command).env_remove("http_proxy");
            program.output().expect("run a program")
        })
    }

    pub fn counters(&self) -> Counters {
        self.proxy.counters(&self.id).expect("attached")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.proxy.detach(&self.id);
    }
}

/// Allows what is listed on top of the open internet.
pub fn open(allow: &[&str]) -> Egress {
    Egress { allow: targets(allow), resolvers: vec![INTERNET.parse().expect("an address")], ..Egress::default() }
}

/// Allows only what is listed.
pub fn closed(allow: &[&str]) -> Egress {
    Egress { allow: targets(allow), otherwise: Verdict::Deny, ..Egress::default() }
}

pub fn without(deny: &[&str]) -> Egress {
    Egress { deny: targets(deny), ..open(&[]) }
}

fn targets(list: &[&str]) -> Vec<cove_engine::spec::Target> {
    list.iter().map(|text| text.parse().expect("a target")).collect()
}

/// Waits until something is so, and fails when it does not come to be.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "waited ten seconds in vain: {what}");
        thread::yield_now();
    }
}

pub fn within<T: Send>(network: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter a namespace");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("the `ip` program (iproute2)");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
