//! Requests as they are written, byte by byte: a client library would mend what is wrong with them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A server that takes longer to refuse something has not refused it.
pub const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Enough to recognise it.
    pub fn beginning(&self) -> String {
        self.text().chars().take(80).filter(|letter| !letter.is_control()).collect()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str())
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A request that is in order, as text.
pub fn written(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() || ["POST", "PUT", "PATCH"].contains(&method) {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

/// One request on a connection of its own; its answer.
pub fn once(address: &str, request: &[u8]) -> io::Result<Answer> {
    let mut stream = connect(address)?;
    // A server that refuses early hangs up on the rest.
    let _early = stream.write_all(request);
    read_answer(&mut BufReader::new(stream), Body::after(request))
}

/// What a connection says until it is closed or silent for a moment.
pub fn overheard(address: &str, request: &[u8], silence: Duration) -> io::Result<Vec<u8>> {
    let mut stream = connect(address)?;
    let _early = stream.write_all(request);
    stream.set_read_timeout(Some(silence))?;
    let mut heard = Vec::new();
    let mut piece = [0; 16 << 10];
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => heard.extend_from_slice(&piece[..count]),
        }
    }
    Ok(heard)
}

/// A connection that stays open: for what comes as a stream.
pub struct Open(BufReader<TcpStream>);

impl Open {
    /// Opens a stream; the head of its answer.
    pub fn new(address: &str, request: &str) -> io::Result<(Open, Answer)> {
        let mut stream = connect(address)?;
        stream.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let (status, headers) = read_head(&mut reader)?;
        Ok((Open(reader), Answer { status, headers, body: Vec::new() }))
    }

    /// A masked text frame of a WebSocket.
    pub fn say(&mut self, text: &str) -> io::Result<()> {
        let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap_or(125).min(125), 0, 0, 0, 0];
        frame.extend(text.bytes().take(125));
        self.0.get_mut().write_all(&frame)
    }

    /// Whether something comes within the time.
    pub fn hears(&mut self, within: Duration) -> bool {
        let _same_socket = self.0.get_ref().set_read_timeout(Some(within));
        self.0.fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Whether it is closed within the time, whatever it says before.
    pub fn ends(&mut self, within: Duration) -> bool {
        let began = Instant::now();
        let mut piece = [0; 4096];
        while began.elapsed() < within {
            let _same_socket = self.0.get_ref().set_read_timeout(Some(within));
            match self.0.read(&mut piece) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return false;
                }
                Err(_) => return true,
            }
        }
        false
    }
}

/// A connection for many requests, opened again where the server closes it.
pub struct Line {
    address: String,
    open: Option<BufReader<TcpStream>>,
}

impl Line {
    pub fn new(address: &str) -> Line {
        Line { address: address.to_owned(), open: None }
    }

    pub fn ask(&mut self, request: &str) -> io::Result<Answer> {
        match self.try_once(request) {
            // The line may have been closed meanwhile; a server that is silent is not asked twice.
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                self.try_once(request)
            }
            told => told,
        }
    }

    fn try_once(&mut self, request: &str) -> io::Result<Answer> {
        let mut reader = match self.open.take() {
            Some(reader) => reader,
            None => BufReader::new(connect(&self.address)?),
        };
        reader.get_mut().write_all(request.as_bytes())?;
        let answer = read_answer(&mut reader, Body::after(request.as_bytes()))?;
        if answer.header("connection").is_none_or(|word| !word.eq_ignore_ascii_case("close")) {
            self.open = Some(reader);
        }
        Ok(answer)
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP")
}

/// Whether an answer has a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    AsTold,
}

impl Body {
    fn after(request: &[u8]) -> Body {
        if request.starts_with(b"HEAD ") { Body::None } else { Body::AsTold }
    }
}

type Head = (u16, Vec<(String, String)>);

fn read_head(from: &mut impl BufRead) -> io::Result<Head> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(malformed)?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        if from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.trim().is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = line.split_once(':').ok_or_else(malformed)?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
}

fn read_answer(from: &mut impl BufRead, body: Body) -> io::Result<Answer> {
    let (status, headers) = read_head(from)?;
    let mut answer = Answer { status, headers, body: Vec::new() };
    if body == Body::None || status == 204 || status == 304 || status < 200 {
        return Ok(answer);
    }
    if answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(|_| malformed())?;
            let mut chunk = vec![0; length + 2];
            from.read_exact(&mut chunk)?;
            if length == 0 {
                return Ok(answer);
            }
            answer.body.extend_from_slice(&chunk[..length]);
        }
    }
    match answer.header("content-length").and_then(|value| value.parse::<u64>().ok()) {
        Some(length) => from.take(length).read_to_end(&mut answer.body)?,
        None => from.read_to_end(&mut answer.body)?,
    };
    Ok(answer)
}
