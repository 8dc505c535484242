//! What a connection can reach, and which kinds of socket there are.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use cove_sys::attack;

use crate::{Canaries, Outcome, Probe, each, held, must_fail, not_applicable, not_held};

pub const PROBES: &[Probe] = &[
    Probe {
        name: "cannot_reach_the_hosts_abstract_sockets",
        meaning: "services of the host without any file",
        run: abstract_socket,
    },
    Probe {
        name: "cannot_reach_the_hosts_loopback",
        meaning: "services that trust everybody on the host",
        run: loopback,
    },
    Probe { name: "cannot_reach_the_hosts_addresses", meaning: "services of the host", run: host_addresses },
    Probe { name: "cannot_reach_metadata_services", meaning: "the cloud account's credentials", run: metadata },
    Probe { name: "cannot_reach_private_networks", meaning: "the neighbourhood of the host", run: private },
    Probe {
        name: "cannot_open_packet_sockets",
        meaning: "traffic of others read and forged",
        run: |_| must_fail("socket AF_PACKET", attack::socket(17, 3, 0)),
    },
    Probe {
        name: "cannot_open_crypto_sockets",
        meaning: "a rarely tested part of the kernel",
        run: |_| must_fail("socket AF_ALG", attack::socket(38, 5, 0)),
    },
    Probe {
        name: "cannot_open_vm_sockets",
        meaning: "the hypervisor's services",
        run: |_| must_fail("socket AF_VSOCK", attack::socket(40, 1, 0)),
    },
    Probe {
        name: "cannot_open_rare_socket_families",
        meaning: "rarely tested parts of the kernel",
        run: rare_families,
    },
    Probe {
        name: "cannot_open_rare_protocols",
        meaning: "modules that the host loads for whoever asks",
        run: rare_protocols,
    },
    Probe {
        name: "cannot_pair_sockets_of_other_families",
        meaning: "modules that the host loads for whoever asks",
        run: |_| {
            // Bluetooth, RDS, TIPC, Phonet, CAIF, Kernel Connection Multiplexor, SMC.
            each(
                [31, 21, 30, 35, 37, 41, 43]
                    .map(|family| must_fail(&format!("socketpair of family {family}"), attack::socket_pair(family, 1))),
            )
        },
    },
    Probe {
        name: "cannot_use_up_the_kernels_memory_for_programs",
        meaning: "no sandbox of the host starts any more: its filter is such a program",
        run: socket_filters,
    },
    Probe {
        name: "cannot_speak_netfilter",
        meaning: "the redirect of its own traffic lifted",
        run: |_| must_fail("socket NETLINK_NETFILTER", attack::socket(16, 3, 12)),
    },
    Probe { name: "cannot_send_datagrams_around_the_proxy", meaning: "traffic that no policy sees", run: datagrams },
];

/// SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF. Our eBPF options have a wrong
/// descriptor: if the option is allowed, the kernel's own code answers EBADF or EINVAL.
fn socket_filters(_: &Canaries) -> Outcome {
    const ENOPROTOOPT: i32 = 92;
    let socket = match UdpSocket::bind("127.0.0.1:0") {
        Ok(socket) => socket,
        Err(error) => return not_applicable(format!("no socket to be had: {error}")),
    };
    each([26, 50, 51, 52].map(|option| match attack::attach_filter(socket.as_fd(), option) {
        Ok(()) => not_held(format!("setsockopt {option}: allowed")),
        Err(error) if matches!(error.raw_os_error(), Some(1 | ENOPROTOOPT)) => {
            held(format!("setsockopt {option}: {error}"))
        }
        Err(error) => not_held(format!("setsockopt {option} reached the kernel: {error}")),
    }))
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, Duration::from_secs(3))
}

/// The egress proxy may accept a connection before the policy decides; what counts is that no byte comes back.
fn unanswered(address: SocketAddr) -> Outcome {
    use io::{Read, Write};
    let talk = || -> io::Result<usize> {
        let mut stream = connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        match stream.read(&mut [0u8; 64])? {
            0 => Err(io::Error::other("closed without a byte")),
            count => Ok(count),
        }
    };
    must_fail(&format!("ask {address}"), talk())
}

fn abstract_socket(canaries: &Canaries) -> Outcome {
    let Some(name) = &canaries.abstract_socket else { return not_applicable("no socket was named") };
    let connect = UnixAddress::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address));
    must_fail(&format!("connect @{name}"), connect)
}

fn loopback(canaries: &Canaries) -> Outcome {
    let Some(port) = canaries.loopback_port else { return not_applicable("no port was named") };
    each(
        [
            SocketAddr::from(([127, 0, 0, 1], port)),
            SocketAddr::from(([127, 0, 0, 53], port)),
            SocketAddr::from(([0, 0, 0, 0], port)),
            SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)),
        ]
        .map(unanswered),
    )
}

fn host_addresses(canaries: &Canaries) -> Outcome {
    let port = canaries.loopback_port.unwrap_or(22);
    each(
        canaries
            .host_addresses
            .iter()
            .filter_map(|text| text.parse().ok())
            .map(|address| unanswered(SocketAddr::new(address, port))),
    )
}

fn metadata(_: &Canaries) -> Outcome {
    each(
        [
            "169.254.169.254:80",
            "169.254.170.2:80",
            "100.100.100.200:80",
            "[fd00:ec2::254]:80",
            "[::ffff:169.254.169.254]:80",
        ]
        .iter()
        .filter_map(|text| text.parse().ok())
        .map(unanswered),
    )
}

fn private(_: &Canaries) -> Outcome {
    each(
        [
            "10.0.0.1:80",
            "172.16.0.1:80",
            "192.168.0.1:80",
            "100.64.0.1:80",
            "[fe80::1]:80",
            "[fc00::1]:80",
            "[::ffff:10.0.0.1]:80",
        ]
        .iter()
        .filter_map(|text| text.parse().ok())
        .map(unanswered),
    )
}

fn rare_families(_: &Canaries) -> Outcome {
    // AX25, X25, RDS, KEY, IRDA, LLC, CAN, TIPC, BLUETOOTH, KCM, QIPCRTR, SMC, XDP
    each([3, 9, 21, 15, 23, 26, 29, 30, 31, 41, 42, 43, 44].map(|family| match attack::socket(family, 2, 0) {
        Ok(()) => not_held(format!("socket family {family} is allowed")),
        Err(error) => held(format!("socket family {family}: {error}")),
    }))
}

fn rare_protocols(_: &Canaries) -> Outcome {
    // SCTP as stream and as packets, DCCP, L2TP, UDP-Lite, SMC, MPTCP; over IPv4 and IPv6.
    let protocols = [(1, 132), (5, 132), (6, 33), (2, 115), (2, 136), (1, 256), (1, 262)];
    each([2, 10].into_iter().flat_map(|family| {
        protocols.map(|(kind, protocol)| match attack::socket(family, kind, protocol) {
            Err(error) if error.raw_os_error() == Some(97) => held(format!("protocol {protocol}: {error}")),
            Err(error) => not_held(format!("protocol {protocol} reached the kernel: {error}")),
            Ok(()) => not_held(format!("protocol {protocol} of family {family} is allowed")),
        })
    }))
}

fn datagrams(_: &Canaries) -> Outcome {
    let send = |target: &str| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.send_to(b"hello", target)?;
        socket.recv(&mut [0u8; 16])
    };
    each(
        ["203.0.113.9:123", "203.0.113.9:443", "169.254.169.254:123"]
            .map(|target| must_fail(&format!("datagram to {target}"), send(target))),
    )
}
