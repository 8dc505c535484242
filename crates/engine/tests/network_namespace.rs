//! Network namespaces as a sandbox gets them, looked at from inside.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;

use cove_engine::network::namespace::{self, Kind};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

fn inside<T: Send>(kind: Kind, work: impl FnOnce() -> T + Send) -> T {
    let namespace = namespace::create(kind).expect("make a namespace");
    thread::scope(|scope| {
        scope
            .spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter it");
                work()
            })
            .join()
            .expect("work inside")
    })
}

#[test]
fn a_loopback_namespace_talks_to_itself() {
    inside(Kind::Loopback, || {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(address).expect("listen");
            TcpStream::connect(server.local_addr().expect("address")).expect("connect");
        }
    });
}

#[test]
fn cannot_leave_a_loopback_namespace() {
    inside(Kind::Loopback, || {
        let error = TcpStream::connect("203.0.113.7:80").expect_err("nothing is out there");
        assert_eq!(error.raw_os_error(), Some(101), "ENETUNREACH, not {error}");
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        assert!(socket.send_to(b"hello", "203.0.113.7:53").is_err());
    });
}

#[test]
fn making_a_namespace_leaves_the_caller_where_it_was() {
    let before = std::fs::read_link("/proc/thread-self/ns/net").expect("read");
    drop(namespace::create(Kind::Loopback).expect("make a namespace"));
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").expect("read"), before);
}

#[test]
fn an_egress_namespace_serves_itself_on_every_address_it_has() {
    inside(Kind::Egress, || {
        for address in ["127.0.0.1:80", "127.0.0.1:0", "[::1]:0", "10.200.0.2:0"] {
            let server = TcpListener::bind(address).expect("listen");
            let client = TcpStream::connect(server.local_addr().expect("address")).expect("connect");
            let (_, peer) = server.accept().expect("accept");
            assert_eq!(peer, client.local_addr().expect("address"), "not redirected");
        }
    });
}

#[test]
fn cannot_send_other_datagrams_out_of_an_egress_namespace() {
    inside(Kind::Egress, || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        for target in ["203.0.113.7:443", "169.254.169.254:123", "224.0.0.251:5353", "10.200.0.1:54"] {
            let error = socket.send_to(b"hello", target).expect_err(target);
            assert_eq!(error.raw_os_error(), Some(1), "{target}: EPERM, not {error}");
        }
    });
}

/// As a container's, which has a loopback device and nothing else.
#[test]
fn a_namespace_of_others_becomes_one_for_egress_once() {
    let namespace = namespace::create(Kind::Loopback).expect("make a namespace");
    namespace::adopt(namespace.as_fd()).expect("adopt it");
    assert!(namespace::adopt(namespace.as_fd()).is_err(), "what is there already is not made again");
    let refused = thread::scope(|scope| {
        let look = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter it");
            let connection = TcpStream::connect("203.0.113.7:80").expect_err("no proxy is attached");
            let datagram = UdpSocket::bind("0.0.0.0:0").expect("bind").send_to(b"hello", "203.0.113.7:443");
            (connection.kind(), datagram.expect_err("nothing but names is asked for").raw_os_error())
        };
        scope.spawn(look).join().expect("look inside")
    });
    assert_eq!(refused, (std::io::ErrorKind::ConnectionRefused, Some(1)), "redirected to where the proxy will listen");
}

#[test]
fn cannot_find_a_route_by_ipv6() {
    inside(Kind::Egress, || {
        for target in ["[2001:db8::7]:80", "[fd00:ec2::254]:80", "[64:ff9b::a00:1]:80"] {
            let error = TcpStream::connect(target).expect_err(target);
            assert_eq!(error.raw_os_error(), Some(101), "{target}: ENETUNREACH, not {error}");
        }
    });
}

#[test]
fn what_a_sandbox_says_to_itself_is_not_kept_account_of() {
    inside(Kind::Egress, || {
        for address in ["127.0.0.1:0", "10.200.0.2:0"] {
            let server = TcpListener::bind(address).expect("listen");
            for _ in 0..100 {
                drop(TcpStream::connect(server.local_addr().expect("address")).expect("connect"));
                server.accept().expect("accept");
            }
        }
        let tracked = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").expect("read");
        assert_eq!(tracked.trim(), "0");
    });
}
