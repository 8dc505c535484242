//! The servers of the small world: echo on 7, a count of what was sent on 9, bytes without end on 19, HTTP on 80, DNS on 53.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// As much as port 19 sends.
pub const FLOOD: usize = 64 << 20;
pub const PAGE: &str = "the internet works\n";

/// Names the resolver knows.
const NAMES: [(&str, [u8; 4]); 3] = [
    ("site.example", [203, 0, 113, 7]),
    ("rebinding.example", [10, 0, 0, 5]),
    ("metadata.example", [169, 254, 169, 254]),
];

pub struct Servers {
    stop: Arc<AtomicBool>,
    listeners: Vec<TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    pub fn start() -> Servers {
        let mut servers = Servers { stop: Arc::default(), listeners: Vec::new(), threads: Vec::new() };
        servers.serve("0.0.0.0:7", echo);
        servers.serve("0.0.0.0:9", count);
        servers.serve("0.0.0.0:19", flood);
        servers.serve("0.0.0.0:80", http);
        servers.serve("0.0.0.0:53", names_by_stream);
        servers.answer_names("0.0.0.0:53");
        servers
    }

    /// What the host itself offers, on two of its addresses.
    pub fn start_on(outer: &str, inner: &str) -> Servers {
        let mut servers = Servers { stop: Arc::default(), listeners: Vec::new(), threads: Vec::new() };
        servers.serve(&format!("{outer}:80"), http);
        servers.serve(&format!("{inner}:80"), http);
        servers.serve(&format!("{inner}:53"), names_by_stream);
        servers.answer_names(&format!("{inner}:53"));
        servers
    }

    fn serve(&mut self, address: &str, serve: fn(TcpStream) -> std::io::Result<()>) {
        let listener = TcpListener::bind(address).expect("listen");
        self.listeners.push(listener.try_clone().expect("clone"));
        self.threads.push(thread::spawn(move || {
            while let Ok((connection, _)) = listener.accept() {
                thread::spawn(move || serve(connection));
            }
        }));
    }

    fn answer_names(&mut self, address: &str) {
        let socket = UdpSocket::bind(address).expect("bind");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        let stop = self.stop.clone();
        self.threads.push(thread::spawn(move || {
            let mut buffer = [0u8; 1500];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, asker)) = socket.recv_from(&mut buffer) {
                    let answer = answer(&buffer[..length], Transport::Datagram);
                    socket.send_to(&answer, asker).expect("answer");
                }
            }
        }));
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for listener in &self.listeners {
            rustix::net::shutdown(listener, rustix::net::Shutdown::Both).expect("stop listening");
        }
        for thread in self.threads.drain(..) {
            thread.join().expect("a server ends");
        }
    }
}

fn echo(mut connection: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0u8; 4096];
    loop {
        match connection.read(&mut buffer)? {
            0 => return Ok(()),
            length => connection.write_all(&buffer[..length])?,
        }
    }
}

/// Says how much came, once the sender has said its last word.
fn count(mut connection: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0u8; 64 * 1024];
    let mut total = 0u64;
    loop {
        match connection.read(&mut buffer)? {
            0 => return connection.write_all(total.to_string().as_bytes()),
            length => total += length as u64,
        }
    }
}

fn flood(mut connection: TcpStream) -> std::io::Result<()> {
    let block: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for _ in 0..FLOOD / block.len() {
        connection.write_all(&block)?;
    }
    Ok(())
}

fn http(mut connection: TcpStream) -> std::io::Result<()> {
    let mut request: Vec<u8> = Vec::new();
    let mut buffer = [0u8; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match connection.read(&mut buffer)? {
            0 => return Ok(()),
            length => request.extend(&buffer[..length]),
        }
    }
    let length = PAGE.len();
    write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{PAGE}")
}

fn names_by_stream(mut connection: TcpStream) -> std::io::Result<()> {
    loop {
        let mut length = [0u8; 2];
        connection.read_exact(&mut length)?;
        let mut query = vec![0u8; usize::from(u16::from_be_bytes(length))];
        connection.read_exact(&mut query)?;
        let answer = answer(&query, Transport::Stream);
        connection.write_all(&(answer.len() as u16).to_be_bytes())?;
        connection.write_all(&answer)?;
    }
}

#[derive(PartialEq)]
enum Transport {
    Datagram,
    Stream,
}

/// `large.example` has more addresses than a datagram holds.
fn answer(query: &[u8], transport: Transport) -> Vec<u8> {
    let (name, end) = read_name(query);
    let asks_for_ipv4 = query[end..end + 2] == [0, 1];
    let addresses: Vec<[u8; 4]> = match NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, address)) => vec![*address],
        None if name == "large.example" && transport == Transport::Stream => {
            (0..200).map(|n| [203, 0, 113, n]).collect()
        }
        None => Vec::new(),
    };
    let mut answer = query[..end + 4].to_vec();
    answer[2] |= 0x80;
    answer[3] = 0x80;
    answer[6..12].fill(0);
    if name == "large.example" && transport == Transport::Datagram {
        answer[2] |= 2;
    } else if addresses.is_empty() {
        answer[3] |= 3;
    } else if asks_for_ipv4 {
        answer[7] = addresses.len() as u8;
        for address in addresses {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(address);
        }
    }
    answer
}

fn read_name(query: &[u8]) -> (String, usize) {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..at + 1 + length]).to_lowercase());
        at += 1 + length;
    }
    (labels.join("."), at + 1)
}

/// A question as a program would ask it.
pub fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The code of an answer, and the last address in it.
pub fn outcome(answer: &[u8]) -> (u8, Option<IpAddr>) {
    let last = answer.last_chunk::<4>().filter(|_| answer[7] > 0).map(|octets| Ipv4Addr::from(*octets).into());
    (answer[3] & 0xf, last)
}
