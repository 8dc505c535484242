//! Receives webhooks: accepts what is posted and remembers it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// Listens until the test ends.
#[derive(Debug, Clone)]
pub struct Receiver {
    address: String,
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub fn start() -> Receiver {
        Receiver::listening(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    /// Listens at a given address.
    pub fn at(address: &str) -> Receiver {
        Receiver::listening(TcpListener::bind(address).expect("the port is still free"))
    }

    fn listening(listener: TcpListener) -> Receiver {
        let address = listener.local_addr().expect("an address").to_string();
        let receiver = Receiver { address, taken: Arc::default() };
        let taken = Arc::clone(&receiver.taken);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up half-way has sent nothing.
                if let Some(body) = take(stream) {
                    taken.lock().unwrap_or_else(PoisonError::into_inner).push(body);
                }
            }
        });
        receiver
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The bodies so far.
    pub fn taken(&self) -> Vec<Value> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn take(mut stream: TcpStream) -> Option<Value> {
    let mut from = BufReader::new(stream.try_clone().ok()?);
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        from.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    let parsed = serde_json::from_slice(&body).ok()?;
    stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").ok()?;
    Some(parsed)
}
