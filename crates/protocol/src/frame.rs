//! Frames: kind (1 byte), length (4 bytes, big-endian), payload.
//!
//! The length is checked before a byte is allocated, and beyond [`BULK`] memory grows only as bytes arrive: a peer that
//! announces a mebibyte and then stalls costs almost nothing.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest payload. Bulk data is cut into frames of at most this size; a message never needs it.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// A good size for bulk data: large enough to amortise the header, small enough to interleave.
pub const BULK: usize = 64 << 10;

/// The same for a file's bytes, which delay nothing else: fewer system calls and fewer wake-ups.
pub const FILE_BULK: usize = 256 << 10;

const HEADER: usize = 5;

/// What a frame's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// JSON [`crate::Request`]; the first frame of every connection, host to guest.
    Request = 0x01,
    /// JSON [`crate::Reply`]; the guest accepted the request.
    Reply = 0x02,
    /// JSON [`crate::Failure`]; the operation failed and the connection ends.
    Failure = 0x03,
    /// JSON [`crate::Event`]; something happened during a streaming operation, guest to host.
    Event = 0x04,
    /// JSON [`crate::Control`]; the host steers a streaming operation.
    Control = 0x05,
    /// What a guest was given to know its host by, as it is; before the request, where the guest has one.
    Token = 0x06,
    /// Bytes for the process's standard input or terminal.
    Stdin = 0x10,
    /// Bytes the process wrote to standard output.
    Stdout = 0x11,
    /// Bytes the process wrote to standard error.
    Stderr = 0x12,
    /// Bytes the process wrote to its terminal.
    Pty = 0x13,
    /// Bytes of a file or an archive, either way.
    Data = 0x14,
    /// No more `Data` or `Stdin` from this side; for the guest: the operation is complete. Empty payload.
    End = 0x1f,
}

impl TryFrom<u8> for Kind {
    type Error = FrameError;

    fn try_from(byte: u8) -> Result<Self, FrameError> {
        Ok(match byte {
            0x01 => Kind::Request,
            0x02 => Kind::Reply,
            0x03 => Kind::Failure,
            0x04 => Kind::Event,
            0x05 => Kind::Control,
            0x06 => Kind::Token,
            0x10 => Kind::Stdin,
            0x11 => Kind::Stdout,
            0x12 => Kind::Stderr,
            0x13 => Kind::Pty,
            0x14 => Kind::Data,
            0x1f => Kind::End,
            other => return Err(FrameError::UnknownKind(other)),
        })
    }
}

/// One frame, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub payload: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of unknown kind {0:#04x}")]
    UnknownKind(u8),
    #[error("frame of {0} bytes is longer than the limit of {MAX_PAYLOAD}")]
    TooLong(u64),
    #[error("connection closed inside a frame")]
    Truncated,
    #[error("expected a {expected} frame, got {got:?}")]
    Unexpected { expected: &'static str, got: Kind },
    #[error("malformed {kind:?} message: {source}")]
    Malformed { kind: Kind, source: serde_json::Error },
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Frame {
    pub fn new(kind: Kind, payload: impl Into<Vec<u8>>) -> Self {
        Frame { kind, payload: payload.into() }
    }

    pub fn end() -> Self {
        Frame { kind: Kind::End, payload: Vec::new() }
    }

    /// A message as a frame.
    ///
    /// # Panics If `message` cannot be JSON; every type of this crate can.
    pub fn json(kind: Kind, message: &impl Serialize) -> Self {
        let payload = serde_json::to_vec(message).expect("protocol messages always serialise");
        Frame { kind, payload }
    }

    /// The payload as a message.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        serde_json::from_slice(&self.payload).map_err(|source| FrameError::Malformed { kind: self.kind, source })
    }

    fn header(kind: Kind, length: usize) -> Result<[u8; HEADER], FrameError> {
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLong(length as u64));
        }
        let [a, b, c, d] = (length as u32).to_be_bytes();
        Ok([kind as u8, a, b, c, d])
    }

    fn parse_header(header: [u8; HEADER]) -> Result<(Kind, usize), FrameError> {
        let kind = Kind::try_from(header[0])?;
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLong(length as u64));
        }
        Ok((kind, length))
    }
}

/// Reads one frame. `Ok(None)` is a close between frames; a close inside one is [`FrameError::Truncated`].
pub fn read(from: &mut impl Read) -> Result<Option<Frame>, FrameError> {
    let mut reader = Reader::default();
    let Some((kind, length)) = reader.fill(from)? else { return Ok(None) };
    let mut payload = reader.buffer;
    payload.truncate(length);
    Ok(Some(Frame { kind, payload }))
}

/// Reads frames one after another into the same buffer: for streams of bulk data, where a fresh allocation for each
/// frame costs more than its bytes.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    /// As [`read`]; the payload is valid until the next call.
    pub fn next(&mut self, from: &mut impl Read) -> Result<Option<(Kind, &[u8])>, FrameError> {
        let Some((kind, length)) = self.fill(from)? else { return Ok(None) };
        Ok(Some((kind, self.buffer.get(..length).unwrap_or_default())))
    }

    fn fill(&mut self, from: &mut impl Read) -> Result<Option<(Kind, usize)>, FrameError> {
        let mut header = [0u8; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            match from.read(&mut header[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(FrameError::Truncated),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (kind, length) = Frame::parse_header(header)?;
        let mut filled = 0;
        while filled < length {
            if filled == self.buffer.len() {
                self.buffer.resize(length.min(filled.max(BULK / 2) * 2), 0);
            }
            let room = self.buffer.len().min(length);
            match from.read(&mut self.buffer[filled..room]) {
                Ok(0) => return Err(FrameError::Truncated),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some((kind, length)))
    }
}

/// Parses one frame from the front of `buffer`, for readers that must not block: the frame and its length in bytes, or
/// `None` while it is incomplete.
pub fn split(buffer: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let Some((header, rest)) = buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
    let (kind, length) = Frame::parse_header(*header)?;
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    Ok(Some((Frame { kind, payload: payload.to_vec() }, HEADER + length)))
}

/// Writes one frame, in a single `write_vectored` if the kernel accepts all of it.
pub fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> Result<(), FrameError> {
    let header = Frame::header(kind, payload.len())?;
    let mut written = loop {
        match to.write_vectored(&[io::IoSlice::new(&header), io::IoSlice::new(payload)]) {
            Ok(n) => break n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    };
    if written < HEADER {
        to.write_all(&header[written..])?;
        written = HEADER;
    }
    to.write_all(&payload[written - HEADER..])?;
    Ok(())
}

/// Assembles frames from bytes as they come, for sockets that do not block.
///
/// Buffers at most one frame and what was read past it.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Bytes in the order they came. Take all frames out before the next push.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken.min(self.buffer.len()));
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, or `None` until more bytes have come.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((frame, length)) = split(rest)? else { return Ok(None) };
        self.taken += length;
        if self.taken == self.buffer.len() {
            self.buffer = Vec::new();
            self.taken = 0;
        }
        Ok(Some(frame))
    }

    /// Whether a close now would cut a frame in two.
    pub fn is_between_frames(&self) -> bool {
        self.taken == self.buffer.len()
    }
}

/// A frame's bytes, appended to `wire`: for writers that do not block.
pub fn encode(wire: &mut Vec<u8>, kind: Kind, payload: &[u8]) -> Result<(), FrameError> {
    let header = Frame::header(kind, payload.len())?;
    wire.reserve(HEADER + payload.len());
    wire.extend_from_slice(&header);
    wire.extend_from_slice(payload);
    Ok(())
}

/// Writes a message.
pub fn write_json(to: &mut impl Write, kind: Kind, message: &impl Serialize) -> Result<(), FrameError> {
    write(to, kind, &Frame::json(kind, message).payload)
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use std::io::{self, IoSlice};

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

    use super::{BULK, Frame, FrameError, HEADER, Kind};

    /// [`super::read`] for asynchronous streams. Not cancel-safe: a reader that is dropped half-way loses its place,
    /// so keep one reader per connection and hand frames on.
    pub async fn read_async(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Frame>, FrameError> {
        let mut header = [0u8; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            match from.read(&mut header[filled..]).await? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(FrameError::Truncated),
                n => filled += n,
            }
        }
        let (kind, length) = Frame::parse_header(header)?;
        let mut payload = Vec::with_capacity(length.min(BULK));
        while payload.len() < length {
            let left = length - payload.len();
            if payload.len() == payload.capacity() {
                payload.reserve_exact(left.min(payload.len()));
            }
            if (&mut *from).take(left as u64).read_buf(&mut payload).await? == 0 {
                return Err(FrameError::Truncated);
            }
        }
        Ok(Some(Frame { kind, payload }))
    }

    /// [`super::write`] for asynchronous streams.
    pub async fn write_async(to: &mut (impl AsyncWrite + Unpin), kind: Kind, payload: &[u8]) -> Result<(), FrameError> {
        let header = Frame::header(kind, payload.len())?;
        let mut written = 0;
        while written < HEADER {
            match to.write_vectored(&[IoSlice::new(&header[written..]), IoSlice::new(payload)]).await? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                count => written += count,
            }
        }
        to.write_all(&payload[written - HEADER..]).await?;
        Ok(())
    }
}

#[cfg(feature = "tokio")]
pub use asynchronous::{read_async, write_async};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_written_frame_is_read_back(payload in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let mut wire = Vec::new();
            write(&mut wire, Kind::Data, &payload).unwrap();
            let frame = read(&mut wire.as_slice()).unwrap().unwrap();
            prop_assert_eq!(&frame, &Frame::new(Kind::Data, payload));
            let mut reader = Reader { buffer: vec![9; 700] };
            prop_assert_eq!(reader.next(&mut wire.as_slice()).unwrap(), Some((Kind::Data, frame.payload.as_slice())));
            prop_assert_eq!(split(&wire[..wire.len() - 1]).unwrap(), None);
            prop_assert_eq!(split(&wire).unwrap(), Some((frame, wire.len())));
        }

        #[test]
        fn frames_cut_anywhere_are_put_together(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..6),
            cut in 1usize..50,
        ) {
            let mut wire = Vec::new();
            for payload in &payloads {
                encode(&mut wire, Kind::Stdin, payload).unwrap();
            }
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame.payload);
                }
            }
            prop_assert!(decoder.is_between_frames());
            prop_assert_eq!(seen, payloads);
        }

        #[test]
        fn any_bytes_give_a_frame_or_an_error_never_a_panic(wire in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut wire = wire.as_slice();
            while let Ok(Some(frame)) = read(&mut wire) {
                let _ = frame.parse::<crate::Request>();
                let _ = frame.parse::<crate::Reply>();
            }
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_reading_on() {
        let wire = [Kind::Data as u8, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(read(&mut wire.as_slice()), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn a_close_inside_a_frame_is_not_a_clean_end() {
        let wire = [Kind::Data as u8, 0, 0, 0, 9, b'h', b'a'];
        assert!(matches!(read(&mut wire.as_slice()), Err(FrameError::Truncated)));
        assert!(read(&mut [].as_slice()).unwrap().is_none());
    }
}
