//! The wall of the egress proxy, tried from inside. Behind every refused address stands a real server: a wall that fails
//! is noticed.

mod network_world;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use cove_engine::network::Settings;
use cove_engine::spec::Egress;
use network_world::servers::{outcome, query};
use network_world::{FORBIDDEN, HOST, INTERNET, Sandbox, World, closed, eventually, open, without};

/// What a web client inside sees; an error is told within a moment, never by a timeout.
fn fetch(sandbox: &Sandbox, address: &str, port: u16) -> Result<String, ErrorKind> {
    let began = Instant::now();
    let result = sandbox.inside(|| {
        let mut connection = TcpStream::connect((address, port))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        connection.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    assert!(began.elapsed() < Duration::from_secs(2), "{address} took {:?}", began.elapsed());
    result.map_err(|error| error.kind())
}

fn assert_refused(sandbox: &Sandbox, address: &str, port: u16) {
    let before = sandbox.counters();
    let error = fetch(sandbox, address, port).expect_err(address);
    assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{address}: {error}");
    let after = sandbox.counters();
    assert_eq!((after.refused, after.allowed), (before.refused + 1, before.allowed), "{address}: by the policy");
}

fn assert_reached(sandbox: &Sandbox, address: &str, port: u16) {
    let answer = fetch(sandbox, address, port).unwrap_or_else(|error| panic!("{address}: {error}"));
    assert!(answer.contains("the internet works"), "{address}: {answer}");
}

fn ask(sandbox: &Sandbox, name: &str) -> (u8, Option<std::net::IpAddr>) {
    sandbox.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        socket.send_to(&query(name), "10.200.0.1:53").expect("ask");
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).expect("an answer, even if it is no");
        outcome(&buffer[..length])
    })
}

#[test]
fn cannot_reach_private_shared_link_local_and_reserved_addresses() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&["0.0.0.0/0"]));
        for address in FORBIDDEN {
            assert_refused(&sandbox, address, 80);
        }
        assert_reached(&sandbox, INTERNET, 80);
    });
}

#[test]
fn what_a_policy_names_is_reached_and_nothing_beside_it() {
    World::run(|world| {
        let policy = open(&["10.0.0.5:80", "169.254.0.0/16", "100.64.0.1", "172.16.0.1:81"]);
        let sandbox = world.sandbox(&world.proxy(), &policy);
        for address in ["10.0.0.5", "169.254.169.254", "100.64.0.1"] {
            assert_reached(&sandbox, address, 80);
        }
        assert_refused(&sandbox, "10.0.0.5", 7);
        assert_refused(&sandbox, "172.16.0.1", 80);
        assert_refused(&sandbox, "192.168.1.1", 80);
    });
}

#[test]
fn cannot_reach_reserved_and_multicast_addresses() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        for address in ["0.0.0.1", "240.0.0.1", "10.200.0.1", "192.0.0.192"] {
            assert_refused(&sandbox, address, 80);
        }
        for address in ["224.0.0.1", "255.255.255.255"] {
            fetch(&sandbox, address, 80).expect_err(address);
        }
    });
}

#[test]
fn cannot_reach_the_host_by_any_of_its_addresses() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&["203.0.113.0/24"]));
        assert_refused(&sandbox, HOST, 80);
        // Loopback inside is the sandbox's own: nobody serves there.
        assert_eq!(fetch(&sandbox, "127.0.0.1", 80), Err(ErrorKind::ConnectionRefused));
        assert_eq!(fetch(&sandbox, "127.0.0.53", 80), Err(ErrorKind::ConnectionRefused));
        assert_eq!(fetch(&sandbox, "0.0.0.0", 80), Err(ErrorKind::ConnectionRefused));

        let trusted = world.sandbox(&sandbox.proxy, &open(&["203.0.113.1:80"]));
        assert_reached(&trusted, HOST, 80);
    });
}

#[test]
fn cannot_reach_an_ipv4_address_in_ipv6_clothes() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        assert_reached(&sandbox, "::ffff:203.0.113.7", 80);
        assert_refused(&sandbox, "::ffff:169.254.169.254", 80);
        assert_refused(&sandbox, "::ffff:10.0.0.5", 80);
        assert_eq!(fetch(&sandbox, "::ffff:127.0.0.1", 80), Err(ErrorKind::ConnectionRefused));
        for address in ["64:ff9b::a9fe:a9fe", "fd00:ec2::254", "2001:db8::1"] {
            assert_eq!(fetch(&sandbox, address, 80), Err(ErrorKind::NetworkUnreachable), "{address}");
        }
    });
}

#[test]
fn cannot_reach_a_private_address_by_a_public_name() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        assert_eq!(ask(&sandbox, "rebinding.example"), (0, Some("10.0.0.5".parse().expect("an address"))));
        for name in ["rebinding.example", "metadata.example"] {
            let output = sandbox.program(&format!("curl -sS --max-time 5 http://{name}/"));
            let refused_or_reset = [Some(7), Some(56)];
            assert!(refused_or_reset.contains(&output.status.code()), "{output:?}");
        }
        assert_eq!(sandbox.counters().allowed, 0);
    });
}

#[test]
fn cannot_reach_what_the_policy_denies() {
    World::run(|world| {
        let proxy = world.proxy();
        let denied = world.sandbox(&proxy, &without(&["203.0.113.7:80"]));
        assert_refused(&denied, INTERNET, 80);
        assert_eq!(fetch(&denied, INTERNET, 81), Err(ErrorKind::ConnectionReset), "dialed, and nobody there");
        let closed = world.sandbox(&proxy, &closed(&["203.0.113.7:7"]));
        assert_refused(&closed, INTERNET, 80);
        assert_refused(&closed, "198.51.100.9", 80);
    });
}

#[test]
fn cannot_carry_data_out_by_names_under_a_closed_policy() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &closed(&["203.0.113.7:80"]));
        assert_eq!(ask(&sandbox, "secret.site.example"), (5, None), "refused at once");
        sandbox.inside(|| {
            let mut connection = TcpStream::connect((INTERNET, 53)).expect("our listener");
            connection.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
            let question = query("secret.site.example");
            connection.write_all(&(question.len() as u16).to_be_bytes()).expect("send");
            connection.write_all(&question).expect("send");
            let mut answer = vec![0; 2 + question.len()];
            connection.read_exact(&mut answer).expect("an answer");
            assert_eq!(outcome(&answer[2..]), (5, None));
        });
    });
}

#[test]
fn cannot_smuggle_another_protocol_out_by_port_53() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&[]));
        // "GE" reads as the length of a message that never becomes a question.
        let answer = fetch_raw(&sandbox, b"\x00\x10GET / HTTP/1.1\r\n");
        assert_eq!(answer[2..4], *b"GE", "the message's first bytes are taken for its identifier");
        assert_ne!(answer[5] & 0xf, 0, "and it is told to be none");
        // Datagrams that are no question are not passed on either.
        sandbox.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
            for message in [&b"hello, this is no question"[..], &[0u8; 1400]] {
                socket.send_to(message, (INTERNET, 53)).expect("send");
                let mut buffer = [0; 512];
                let length = socket.recv(&mut buffer).expect("an answer");
                assert_ne!(outcome(&buffer[..length]).0, 0);
            }
        });
        assert_eq!(sandbox.counters().sent, 0, "nothing left the sandbox");
    });
}

fn fetch_raw(sandbox: &Sandbox, bytes: &[u8]) -> Vec<u8> {
    sandbox.inside(|| {
        let mut connection = TcpStream::connect((INTERNET, 53)).expect("our listener");
        connection.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        connection.write_all(bytes).expect("send");
        let mut answer = vec![0; 14];
        connection.read_exact(&mut answer).expect("an answer");
        answer
    })
}

#[test]
fn cannot_make_a_private_service_a_resolver() {
    World::run(|world| {
        let proxy = world.proxy();
        let policy =
            |address: &str| Egress { resolvers: vec![address.parse().expect("an address")], ..Egress::default() };
        let sandbox = world.sandbox(&proxy, &Egress::default());
        for address in ["10.0.0.5", "169.254.169.254", "127.0.0.1"] {
            let error = proxy.update(&sandbox.id, &policy(address)).expect_err(address).to_string();
            assert!(error.contains("the resolver") && error.contains("to `allow`"), "{error}");
        }
        // The host's public address looks like any other: it is found out when a question shall go there.
        proxy.update(&sandbox.id, &policy(HOST)).expect("a public address");
        assert_eq!(ask(&sandbox, "site.example"), (2, None));
    });
}

#[test]
fn cannot_talk_to_the_proxy_itself() {
    World::run(|world| {
        let sandbox = world.sandbox(&world.proxy(), &open(&["127.0.0.0/8", "10.200.0.2"]));
        assert_refused_or_nobody(&sandbox, "127.200.0.1");
        assert_refused_or_nobody(&sandbox, "10.200.0.2");
        assert_refused_or_nobody(&sandbox, "127.0.0.1");
        assert_eq!(sandbox.counters().sent, 0);
        assert_reached(&sandbox, INTERNET, 80);
    });
}

fn assert_refused_or_nobody(sandbox: &Sandbox, address: &str) {
    let error = fetch(sandbox, address, 1).expect_err(address);
    let expected = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused, ErrorKind::BrokenPipe];
    assert!(expected.contains(&error), "{address}: {error}");
}

#[test]
fn cannot_take_the_proxys_port_or_change_the_rules_as_root_of_a_user_namespace() {
    World::run(|world| {
        let proxy = world.proxy();
        let sandbox = world.sandbox(&proxy, &open(&[]));
        proxy.detach(&sandbox.id);
        let as_root_inside = "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-root-user";
        let bind = |address: &str, port: u16| {
            let open = "socket(S, PF_INET, SOCK_STREAM, 0) or die";
            format!("perl -MSocket -e '{open}; bind(S, sockaddr_in({port}, inet_aton(\"{address}\"))) or die $!'")
        };
        for (command, told) in [
            (bind("127.200.0.1", 1).as_str(), "Permission denied"),
            ("nft flush ruleset", "Operation not permitted"),
            ("nft list ruleset", "Operation not permitted"),
            ("ip link set lo down", "Operation not permitted"),
            ("ip route del default", "Operation not permitted"),
            ("ip link add veth0 type veth", "Operation not permitted"),
            ("sh -c 'echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start'", "Permission denied"),
        ] {
            let output = sandbox.program(&format!("{as_root_inside} {command}"));
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && stderr.contains(told), "{command}: {stderr}");
        }
        // Ports that servers want are open to it.
        let output = sandbox.program(&format!("{as_root_inside} {}", bind("0.0.0.0", 80)));
        assert!(output.status.success(), "{output:?}");
    });
}

#[test]
fn cannot_use_up_everybodys_connections() {
    World::run(|world| {
        let proxy = world.proxy_with(Settings { connections_per_sandbox: 8, ..Settings::default() });
        let (greedy, modest) = (world.sandbox(&proxy, &open(&[])), world.sandbox(&proxy, &open(&[])));
        greedy.inside(|| {
            let held: Vec<TcpStream> =
                (0..50).map(|_| TcpStream::connect((INTERNET, 7)).expect("our listener")).collect();
            let mut served = 0;
            for mut connection in &held {
                connection.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
                let echoed = connection.write_all(b"x").and_then(|()| connection.read_exact(&mut [0]));
                served += usize::from(echoed.is_ok());
            }
            assert_eq!(served, 8);
            assert_reached(&modest, INTERNET, 80);
        });
        assert_eq!(greedy.counters().refused, 42);
        eventually("there is room again", || fetch(&greedy, INTERNET, 80).is_ok());
    });
}

#[test]
fn cannot_see_another_sandboxs_servers() {
    World::run(|world| {
        let proxy = world.proxy();
        let (one, other) = (world.sandbox(&proxy, &open(&[])), world.sandbox(&proxy, &open(&[])));
        let server = one.inside(|| TcpListener::bind("0.0.0.0:8000").expect("listen"));
        for address in ["127.0.0.1", "10.200.0.2"] {
            one.inside(|| TcpStream::connect((address, 8000)).expect("one's own"));
            assert_eq!(fetch(&other, address, 8000), Err(ErrorKind::ConnectionRefused), "{address}");
        }
        drop(server);
    });
}
