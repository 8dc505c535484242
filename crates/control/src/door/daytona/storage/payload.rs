//! Bodies as S3's clients send them: plain with their SHA-256 in a header, plain without one, or in chunks that have a
//! length each before them and checksums behind the last.

use std::io;

use axum::body::Body;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use sha2::{Digest as _, Sha256};

use super::trouble::Trouble;
use crate::secret::same;

/// Bytes of a chunk's head, and of all that comes behind the last chunk.
const HEAD_MAX: usize = 4096;

/// What is known of a body before it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// It has this SHA-256.
    Hashed(String),
    Unsigned,
    /// In chunks, none of them signed.
    Chunked,
}

impl Payload {
    pub fn announced(word: &str) -> Result<Payload, Trouble> {
        match word {
            "UNSIGNED-PAYLOAD" => Ok(Payload::Unsigned),
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Ok(Payload::Chunked),
            hash if hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Ok(Payload::Hashed(hash.to_lowercase()))
            }
            _ => Err(Trouble::bad("InvalidRequest", "sign the SHA-256 of the whole body, or UNSIGNED-PAYLOAD")),
        }
    }

    /// The bytes that are meant. A body that is not what was announced ends with an error, never as if it were whole.
    pub fn stream(self, body: Body) -> BoxStream<'static, io::Result<Bytes>> {
        let pieces = body.into_data_stream().map_err(io::Error::other).boxed();
        match self {
            Payload::Unsigned => pieces,
            Payload::Hashed(hash) => hashed(pieces, hash),
            Payload::Chunked => unchunked(pieces),
        }
    }

    pub fn body(self, body: Body) -> Body {
        Body::from_stream(self.stream(body))
    }
}

fn hashed(pieces: BoxStream<'static, io::Result<Bytes>>, wanted: String) -> BoxStream<'static, io::Result<Bytes>> {
    let start = Some((pieces, Sha256::new(), wanted));
    let next = |state: Option<(BoxStream<'static, io::Result<Bytes>>, Sha256, String)>| async move {
        let (mut pieces, mut sum, wanted) = state?;
        match pieces.next().await {
            Some(Ok(piece)) => {
                sum.update(&piece);
                Some((Ok(piece), Some((pieces, sum, wanted))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None if same(hex::encode(sum.finalize()), &wanted) => None,
            None => Some((Err(wrong("the body has another SHA-256 than was signed")), None)),
        }
    };
    stream::unfold(start, next).boxed()
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Where a reader of chunks is.
enum At {
    /// Before `LENGTH[;…]\r\n`.
    Head,
    /// So many bytes of the chunk are to come, and a line end behind them.
    Data(u64),
    /// Behind the last chunk: lines that nobody reads here, and an empty one.
    Trailer,
}

struct Chunks {
    pieces: BoxStream<'static, io::Result<Bytes>>,
    held: BytesMut,
    at: At,
}

fn unchunked(pieces: BoxStream<'static, io::Result<Bytes>>) -> BoxStream<'static, io::Result<Bytes>> {
    let start = Some(Chunks { pieces, held: BytesMut::new(), at: At::Head });
    let next = |state: Option<Chunks>| async move {
        let mut chunks = state?;
        match chunks.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(chunks))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    };
    stream::unfold(start, next).boxed()
}

impl Chunks {
    /// The next bytes of content; none behind the last chunk.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.at {
                At::Head => {
                    let line = self.line().await?;
                    let length = line.split(';').next().unwrap_or_default();
                    let length = u64::from_str_radix(length, 16).map_err(|_| wrong("a chunk without its length"))?;
                    self.at = if length == 0 { At::Trailer } else { At::Data(length) };
                }
                At::Data(0) => {
                    if !self.line().await?.is_empty() {
                        return Err(wrong("a chunk is longer than it says"));
                    }
                    self.at = At::Head;
                }
                At::Data(left) => {
                    if self.held.is_empty() {
                        self.more().await?;
                        continue;
                    }
                    let count = self.held.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.at = At::Data(left - count as u64);
                    return Ok(Some(self.held.split_to(count).freeze()));
                }
                At::Trailer => {
                    // Some clients end with an empty line, and some without one.
                    while let Some(piece) = self.pieces.next().await {
                        self.held.extend_from_slice(&piece?);
                        if self.held.len() > HEAD_MAX {
                            return Err(wrong("more than is allowed behind the last chunk"));
                        }
                    }
                    return Ok(None);
                }
            }
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        let piece = self.pieces.next().await.ok_or_else(|| wrong("the body ends within a chunk"))??;
        self.held.extend_from_slice(&piece);
        Ok(())
    }

    /// Up to a line end, without it.
    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.held.windows(2).position(|two| two == b"\r\n") {
                let line = self.held.split_to(end);
                self.held.advance(2);
                return String::from_utf8(line.to_vec()).map_err(|_| wrong("a chunk without its length"));
            }
            if self.held.len() > HEAD_MAX {
                return Err(wrong("a chunk without its length"));
            }
            self.more().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(payload: Payload, pieces: &[&'static str]) -> Result<String, String> {
        let pieces: Vec<io::Result<Bytes>> =
            pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        let mut stream = payload.stream(Body::from_stream(stream::iter(pieces)));
        let mut all = Vec::new();
        while let Some(piece) = stream.next().await {
            all.extend(piece.map_err(|error| error.to_string())?);
        }
        Ok(String::from_utf8(all).unwrap())
    }

    #[tokio::test]
    async fn a_body_with_another_hash_never_ends_well() {
        let hash = hex::encode(Sha256::digest("abc"));
        let payload = Payload::announced(&hash).unwrap();
        assert_eq!(read(payload.clone(), &["a", "bc"]).await.as_deref(), Ok("abc"));
        assert!(read(payload.clone(), &["a", "bd"]).await.unwrap_err().contains("SHA-256"));
        assert!(read(payload, &[]).await.is_err());
    }

    #[tokio::test]
    async fn chunks_are_put_together_however_they_come() {
        let whole = "3\r\nabc\r\n2;chunk-signature=x\r\nde\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        assert_eq!(read(Payload::Chunked, &[whole]).await.as_deref(), Ok("abcde"));
        let cut = ["3", "\r", "\nab", "c\r\n", "2\r\nd", "e", "\r\n0\r\n", "\r\n"];
        assert_eq!(read(Payload::Chunked, &cut).await.as_deref(), Ok("abcde"));
        for wrong in ["", "3\r\nab", "3\r\nabcd\r\n0\r\n\r\n", "x\r\n", "3\r\nabc\r\n"] {
            assert!(read(Payload::Chunked, &[wrong]).await.is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_body_whose_chunks_are_signed_is_refused_by_name() {
        for word in ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "", "abc"] {
            assert_eq!(Payload::announced(word).unwrap_err().code, "InvalidRequest", "{word}");
        }
    }
}
