use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use cove_protocol::{FailureKind, Reply, Request};
use cove_testkit::{Need, skip};

use crate::client::{Guest, argv, wait_until};

#[test]
fn a_dialled_port_is_a_plain_pipe_that_ends_as_its_sides_do() {
    let guest = Guest::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        // Everything up to the client's end, then an answer: needs the two ends to be separate.
        socket.read_to_end(&mut all).unwrap();
        socket.write_all(&all.iter().rev().copied().collect::<Vec<_>>()).unwrap();
        all.len()
    });
    let (reply, mut host) = guest.open(&Request::Dial { port });
    assert_eq!(reply, Reply::Done);
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    host.socket.write_all(&sent).unwrap();
    host.socket.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    host.socket.read_to_end(&mut answer).unwrap();
    assert_eq!(server.join().unwrap(), sent.len());
    assert!(answer.iter().rev().eq(sent.iter()));
    wait_until("the thread is gone", || guest.status("Threads") == 1);
}

#[test]
fn a_server_on_ipv6_alone_is_reached_too() {
    let guest = Guest::start();
    let listener = match TcpListener::bind("[::1]:0") {
        Ok(listener) => listener,
        Err(error) => return skip(Need::Ipv6, error),
    };
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"six").unwrap());
    let (_, mut host) = guest.open(&Request::Dial { port });
    let mut answer = String::new();
    host.socket.read_to_string(&mut answer).unwrap();
    server.join().unwrap();
    assert_eq!(answer, "six");
}

#[test]
fn a_host_that_goes_away_takes_the_connection_with_it() {
    let guest = Guest::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_, host) = guest.open(&Request::Dial { port: listener.local_addr().unwrap().port() });
    let (mut socket, _) = listener.accept().unwrap();
    drop(host);
    assert_eq!(socket.read(&mut [0; 10]).unwrap(), 0);
    drop(socket);
    wait_until("the thread is gone", || guest.status("Threads") == 1);
}

#[test]
fn a_port_that_nobody_listens_on_is_refused() {
    let guest = Guest::start();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let failure = guest.call(&Request::Dial { port }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Refused);
    assert_eq!(failure.message, format!("dial port {port}: nothing listens there"));
    assert_eq!(guest.call(&Request::Dial { port: 0 }).unwrap_err().kind, FailureKind::InvalidArgument);
}

#[test]
fn listening_ports_are_told_with_who_listens() {
    let guest = Guest::start();
    let script = "import socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(1000)";
    let (pid, mut host) = guest.spawn(argv(&["python3", "-c", script]));
    let port: u16 = host.until(|seen| seen.stdout.ends_with(b"\n")).out().trim().parse().unwrap();
    let Ok(Reply::Ports { ports }) = guest.call(&Request::Ports) else { panic!("no list") };
    let found = ports.iter().find(|found| found.port == port).unwrap();
    assert_eq!(
        (found.address.as_str(), found.pid, found.process.as_deref()),
        ("127.0.0.1", Some(pid), Some("python3"))
    );
}

#[test]
fn usage_tells_of_disk_and_processes() {
    let guest = Guest::start();
    let Ok(Reply::Usage { usage }) = guest.call(&Request::Usage) else { panic!("no answer") };
    assert!(usage.disk_total > 0 && usage.disk_used <= usage.disk_total && usage.processes > 1, "{usage:?}");
}
