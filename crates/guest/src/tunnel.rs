//! A way in where the host cannot reach the guest's socket.
//!
//! On a machine of somebody else the host has no path to a Unix socket, but it has one to a TCP port, by HTTP and through
//! proxies that pass WebSockets. So the guest listens there too and carries each connection to its own socket:
//!
//! ```text
//!   host                     proxies of the service            guest
//!    │ ── GET, Upgrade: websocket ──────────────────────────▶ │
//!    │ ◀─ 101 ─────────────────────────────────────────────── │
//!    │ ── binary: the token ────────────────────────────────▶ │   wrong: closed without a word
//!    │ ── binary: bytes of the guest protocol ──────────────▶ │ ──▶ its socket
//!    │ ◀─ binary: bytes ───────────────────────────────────── │ ◀──
//!    │ ◀▶ binary, empty: no more bytes from this side         │   as shutdown(2) says it
//!    │ ◀─ ping, after a while without bytes ───────────────── │   proxies close what is silent
//! ```
//! One connection is one operation here too. The port is open to everybody whom the service lets through, so nothing is
//! done before the token is there, and what comes before it is bounded in bytes and time.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sha1::{Digest as _, Sha1};

use crate::token::Token;

/// Room for what the two threads of a connection call.
const STACK: usize = 256 << 10;

/// Connections carried at a time.
const CONNECTIONS: usize = 512;

/// How long a stranger may take to show the token.
const GREETING_WITHIN: Duration = Duration::from_secs(10);

/// The longest head of a request.
const HEAD: usize = 16 << 10;

/// The longest token.
const TOKEN: u64 = 256;

/// How long nothing is said before a ping: shorter than proxies wait.
const SILENCE: Duration = Duration::from_secs(20);

/// Bytes carried in one go.
const BUFFER: usize = 64 << 10;

/// RFC 6455, 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Listens on the port, on every address of the sandbox, and carries connections to the socket from now on.
pub fn open(port: u16, token: Token, socket: PathBuf) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .map_err(|error| io::Error::new(error.kind(), format!("listen on port {port}: {error}")))?;
    let tunnel = Arc::new(Tunnel { token, socket, open: AtomicUsize::new(0) });
    thread::Builder::new().stack_size(STACK).spawn(move || tunnel.serve(&listener))?;
    Ok(())
}

struct Tunnel {
    token: Token,
    socket: PathBuf,
    open: AtomicUsize,
}

impl Tunnel {
    fn serve(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                // Too many open files, or a stranger who went away: the next one is not worse off for a pause.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Where there is no place or no thread, the stream is dropped: the host tries again.
    fn admit(self: &Arc<Self>, stream: TcpStream) {
        if self.open.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            self.open.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let tunnel = Arc::clone(self);
        let work = move || {
            // An error here means that one of the sides is gone.
            let _ = carry(stream, &tunnel.token, &tunnel.socket);
            tunnel.open.fetch_sub(1, Ordering::SeqCst);
        };
        if thread::Builder::new().stack_size(STACK).spawn(work).is_err() {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// From the request to the end of both directions.
fn carry(mut stream: TcpStream, token: &Token, socket: &Path) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_WITHIN))?;
    stream.set_write_timeout(Some(GREETING_WITHIN))?;
    let Some(key) = key_of(&head(&mut stream)?) else {
        return stream.write_all(b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n");
    };
    let accept = accepted(&key);
    stream.write_all(
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .as_bytes(),
    )?;
    if !greeted(&mut stream, token)? {
        return Ok(());
    }
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let guest = UnixStream::connect(socket)?;
    let out = Out(Arc::new(Mutex::new(stream.try_clone()?)));
    let (from_guest, back) = (guest.try_clone()?, out.clone());
    let upwards = thread::Builder::new().stack_size(STACK).spawn(move || {
        if send_up(&from_guest, &back).is_err() {
            back.hang_up();
        }
    })?;
    let carried = send_down(&mut stream, &guest, &out);
    // The host is gone: so is what it asked for.
    let _ = guest.shutdown(Shutdown::Both);
    let _ = upwards.join();
    carried
}

/// The head of the request, which ends with an empty line. What follows it is the client's first frame: not read yet,
/// because a client waits for the answer before it sends one.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD || stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&byte);
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The key of a request that asks for a WebSocket.
fn key_of(head: &str) -> Option<String> {
    let mut lines = head.split("\r\n");
    lines.next().filter(|line| line.starts_with("GET ") && line.ends_with(" HTTP/1.1"))?;
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let value = |name: &str| {
        let found = headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    };
    value("upgrade").filter(|protocol| protocol.eq_ignore_ascii_case("websocket"))?;
    value("sec-websocket-key").map(str::to_owned)
}

fn accepted(key: &str) -> String {
    base64(&Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number =
            three.iter().fold(0u32, |number, byte| (number << 8) | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[((number >> (18 - 6 * place)) & 63) as usize];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// Whether the first message is the token.
fn greeted(stream: &mut TcpStream, token: &Token) -> io::Result<bool> {
    let Some(header) = Header::read(stream)? else { return Ok(false) };
    if !header.is_data() || header.length > TOKEN {
        return Ok(false);
    }
    let mut shown = vec![0; header.length as usize];
    stream.read_exact(&mut shown)?;
    header.unmask(&mut shown, 0);
    Ok(token.is(&shown))
}

/// What a frame says of itself, RFC 6455, 5.2.
struct Header {
    opcode: u8,
    length: u64,
    mask: [u8; 4],
}

impl Header {
    /// `None` at the end of the stream, or for what no client may send.
    fn read(from: &mut impl Read) -> io::Result<Option<Header>> {
        let mut start = [0; 2];
        match from.read_exact(&mut start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        // Clients mask what they send; nobody has agreed on extensions.
        if start[1] & 0x80 == 0 || start[0] & 0x70 != 0 {
            return Ok(None);
        }
        let length = match start[1] & 0x7f {
            126 => {
                let mut length = [0; 2];
                from.read_exact(&mut length)?;
                u64::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                from.read_exact(&mut length)?;
                u64::from_be_bytes(length)
            }
            length => u64::from(length),
        };
        let mut mask = [0; 4];
        from.read_exact(&mut mask)?;
        Ok(Some(Header { opcode: start[0] & 0x0f, length, mask }))
    }

    fn is_data(&self) -> bool {
        matches!(self.opcode, CONTINUATION | TEXT | BINARY)
    }

    /// `place` is where in the payload the bytes begin.
    fn unmask(&self, bytes: &mut [u8], place: usize) {
        for (number, byte) in bytes.iter_mut().enumerate() {
            *byte ^= self.mask[(place + number) % 4];
        }
    }
}

/// The stream's way out, for both threads.
#[derive(Clone)]
struct Out(Arc<Mutex<TcpStream>>);

impl Out {
    fn frame(&self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(payload.len() + 10);
        frame.push(0x80 | opcode);
        match payload.len() {
            length @ 0..126 => frame.push(length as u8),
            length @ 126..0x1_0000 => {
                frame.push(126);
                frame.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                frame.push(127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)
    }

    fn hang_up(&self) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
    }
}

/// From the guest to the host.
fn send_up(mut guest: &UnixStream, out: &Out) -> io::Result<()> {
    guest.set_read_timeout(Some(SILENCE))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        match guest.read(&mut buffer) {
            // An empty message: nothing more comes from here.
            Ok(0) => return out.frame(BINARY, &[]),
            Ok(count) => out.frame(BINARY, &buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => out.frame(PING, &[])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// From the host to the guest.
fn send_down(stream: &mut TcpStream, mut guest: &UnixStream, out: &Out) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    while let Some(header) = Header::read(stream)? {
        if header.is_data() && header.length == 0 {
            guest.shutdown(Shutdown::Write)?;
            continue;
        }
        if !header.is_data() && header.length > 125 {
            return Ok(());
        }
        let mut place = 0;
        while place < header.length {
            let most = (header.length - place).min(BUFFER as u64) as usize;
            let count = match stream.read(&mut buffer[..most]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // Only the place within the mask matters.
            header.unmask(&mut buffer[..count], (place % 4) as usize);
            place += count as u64;
            match header.opcode {
                CONTINUATION | TEXT | BINARY => guest.write_all(&buffer[..count])?,
                PING => out.frame(PONG, &buffer[..count])?,
                _ => {}
            }
        }
        match header.opcode {
            CLOSE => return out.frame(CLOSE, &[]),
            PING if header.length == 0 => out.frame(PONG, &[])?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_key_is_that_of_the_standard() {
        // RFC 6455, 1.3.
        assert_eq!(accepted("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!((base64(b""), base64(b"a"), base64(b"ab")), (String::new(), "YQ==".to_owned(), "YWI=".to_owned()));
    }

    #[test]
    fn only_a_request_for_a_websocket_has_a_key() {
        let head = |more: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n\r\n");
        let asked = head("UPGRADE: WebSocket\r\nSec-WebSocket-Key: abc");
        assert_eq!(key_of(&asked).as_deref(), Some("abc"));
        for wrong in [head("Sec-WebSocket-Key: abc"), head("Upgrade: h2c\r\nSec-WebSocket-Key: abc"), "nonsense".into()]
        {
            assert_eq!(key_of(&wrong), None, "{wrong}");
        }
    }

    fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode, 0x80 | payload.len() as u8, 1, 2, 3, 4];
        frame.extend(payload.iter().enumerate().map(|(place, byte)| byte ^ [1, 2, 3, 4][place % 4]));
        frame
    }

    /// A tunnel in this process before a guest that repeats what it hears.
    fn tunnel(token: &str) -> (tempfile::TempDir, TcpStream) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let guest = std::os::unix::net::UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = guest.accept().unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            stream.write_all(&heard).unwrap();
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tunnel =
            Arc::new(Tunnel { token: Token::from("right".to_owned()), socket: path, open: AtomicUsize::new(0) });
        thread::spawn(move || tunnel.serve(&listener));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n").unwrap();
        assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 101 "));
        stream.write_all(&masked(BINARY, token.as_bytes())).unwrap();
        (folder, stream)
    }

    #[test]
    fn bytes_and_their_end_pass_both_ways() {
        let (_folder, mut stream) = tunnel("right");
        stream.write_all(&masked(BINARY, b"hello ")).unwrap();
        stream.write_all(&masked(PING, b"are you there")).unwrap();
        stream.write_all(&masked(BINARY, b"world")).unwrap();
        stream.write_all(&masked(BINARY, b"")).unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(&[0x80 | BINARY, 0]) {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "{heard:?}");
            heard.push(byte[0]);
        }
        let expected: Vec<u8> =
            [&[0x80 | PONG, 13][..], b"are you there", &[0x80 | BINARY, 11], b"hello world", &[0x80 | BINARY, 0]]
                .concat();
        assert_eq!(heard, expected);
    }

    #[test]
    fn who_shows_another_token_hears_nothing() {
        for wrong in ["wrong", "righ", "rightt", ""] {
            let (_folder, mut stream) = tunnel(wrong);
            let mut heard = Vec::new();
            assert_eq!(stream.read_to_end(&mut heard).unwrap(), 0, "{wrong}");
        }
    }
}
