//! Requests to the server under test, without a client library: a test sees exactly what is sent and received.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in the answer {} {}", self.status, self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn expect_status(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "status of the answer {}", self.text());
        self
    }
}

/// One request on a connection of its own.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.unwrap_or_default()));
    match sent {
        Ok(()) => read_answer(BufReader::new(stream)),
        // A server may answer before it has read everything, and hang up: what it said is there to be read.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            read_answer(BufReader::new(stream)).map_err(|_| error)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn read_answer(mut from: impl BufRead) -> io::Result<Answer> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed answer");
    let mut line = String::new();
    from.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(malformed)?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        from.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(malformed)?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut answer = Answer { status, headers, body: Vec::new() };
    if answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            line.clear();
            from.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(|_| malformed())?;
            let mut chunk = vec![0; length + 2];
            from.read_exact(&mut chunk)?;
            if length == 0 {
                break;
            }
            answer.body.extend_from_slice(&chunk[..length]);
        }
    } else if let Some(length) = answer.header("content-length").and_then(|value| value.parse::<u64>().ok()) {
        // A server that dies half-way through has not answered.
        if from.take(length).read_to_end(&mut answer.body)? as u64 != length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "half an answer"));
        }
    } else {
        from.read_to_end(&mut answer.body)?;
    }
    Ok(answer)
}
