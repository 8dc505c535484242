//! Layers on their way from one server to another.
//!
//! ```text
//!   layer ─▶ tar ─▶ zstd, one frame ─▶ SHA-256 of the tar ─▶ ⋯ ─▶ draft ─▶ compare ─▶ layer
//! ```
//! The digest comes last, so that a layer is read once. A stream that was cut off has none, and what was changed on its
//! way has another: in both cases the draft goes. Neither side holds more than a buffer of it in memory.

use std::io::{self, BufRead, Read, Write};

use cove_engine::{Engine, Error as EngineError, storage};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::io::SyncIoBridge;

use super::{BUFFER, Local};
use crate::provider::images::LayerInfo;
use crate::provider::{LayerId, ProviderError};

/// Between machines of one installation time matters more than bytes.
const LEVEL: i32 = 1;
const DIGEST: usize = 32;

pub(super) async fn send(
    local: &Local,
    layer: LayerId,
    to: &mut (dyn AsyncWrite + Send + Unpin),
) -> Result<(), ProviderError> {
    let (near, mut far) = tokio::io::duplex(BUFFER);
    let near = SyncIoBridge::new(near);
    let packing = local.call(move |engine| pack(engine, layer, near));
    // The side that fails first ends the other: the pipe between them breaks.
    let carrying = async move {
        let carried = tokio::io::copy(&mut far, to).await;
        drop(far);
        carried.map_err(|error| ProviderError::Failed(format!("send layer {layer}: {error}")))
    };
    let (packed, carried) = tokio::join!(packing, carrying);
    // Where the other side went away, the thread that packs only notices that.
    carried?;
    packed
}

pub(super) async fn receive(
    local: &Local,
    layer: LayerId,
    limit: u64,
    from: &mut (dyn AsyncRead + Send + Unpin),
) -> Result<LayerInfo, ProviderError> {
    let there = local.call(move |engine| engine.layer(&layer)).await?;
    if let Some(made) = there {
        return Ok(super::files::info(made));
    }
    let (near, mut far) = tokio::io::duplex(BUFFER);
    let near = SyncIoBridge::new(near);
    let unpacking = local.call_on(layer, move |engine| unpack(engine, layer, limit, near));
    let carrying = async move {
        let carried = tokio::io::copy(from, &mut far).await;
        let ended = far.shutdown().await;
        carried.and(ended).map_err(|error| ProviderError::Failed(format!("fetch layer {layer}: {error}")))
    };
    let (unpacked, carried) = tokio::join!(unpacking, carrying);
    // If the reader stopped early, its error is the cause; a broken line is the cause of an end that comes too early.
    match (unpacked, carried) {
        (Ok(made), _) => Ok(super::files::info(made)),
        (Err(ProviderError::Refused(_)), Err(broken)) => Err(broken),
        (Err(error), _) => Err(error),
    }
}

fn pack(engine: &Engine, layer: LayerId, near: SyncIoBridge<tokio::io::DuplexStream>) -> Result<(), EngineError> {
    let trouble = |error: io::Error| EngineError::file("send", format!("layer {layer}"))(error);
    let mut packed = zstd::Encoder::new(near, LEVEL).map_err(trouble)?;
    packed.include_checksum(true).map_err(trouble)?;
    let mut hashed = Hashed::new(packed);
    engine.export_layer(&layer, &mut hashed)?;
    let (packed, digest) = hashed.end();
    let mut near = packed.finish().map_err(trouble)?;
    near.write_all(&digest).and_then(|()| near.flush()).and_then(|()| near.shutdown()).map_err(trouble)
}

fn unpack(
    engine: &Engine,
    layer: LayerId,
    limit: u64,
    near: SyncIoBridge<tokio::io::DuplexStream>,
) -> Result<storage::LayerInfo, EngineError> {
    let draft = super::files::draft(engine, limit)?;
    let broken = |error: io::Error| EngineError::Invalid(format!("layer {layer} did not arrive whole: {error}"));
    let packed = zstd::Decoder::new(near).map_err(broken)?.single_frame();
    let mut hashed = Hashed::new(packed);
    draft.unpack(&mut hashed)?;
    // The tar's own end, and the frame's checksum.
    io::copy(&mut hashed, &mut io::sink()).map_err(broken)?;
    let (packed, digest) = hashed.end();
    check(packed.finish(), &digest).map_err(broken)?;
    Ok(draft.seal(&layer)?)
}

/// Whether what follows is this digest, and nothing else.
fn check(mut rest: impl BufRead, digest: &[u8; DIGEST]) -> io::Result<()> {
    let mut told = [0; DIGEST];
    rest.read_exact(&mut told)?;
    if told != *digest {
        return Err(io::Error::other("its digest is another"));
    }
    if rest.fill_buf()?.is_empty() { Ok(()) } else { Err(io::Error::other("more follows after its end")) }
}

/// Everything that passes goes into the digest.
struct Hashed<T> {
    inner: T,
    digest: Sha256,
}

impl<T> Hashed<T> {
    fn new(inner: T) -> Hashed<T> {
        Hashed { inner, digest: Sha256::new() }
    }

    fn end(self) -> (T, [u8; DIGEST]) {
        (self.inner, self.digest.finalize().into())
    }
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.digest.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digest.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut hashed = Hashed::new(zstd::Encoder::new(Vec::new(), LEVEL).unwrap());
        hashed.inner.include_checksum(true).unwrap();
        hashed.write_all(content).unwrap();
        let (packed, digest) = hashed.end();
        let mut bytes = packed.finish().unwrap();
        bytes.extend_from_slice(&digest);
        bytes
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut hashed = Hashed::new(zstd::Decoder::new(bytes)?.single_frame());
        let mut content = Vec::new();
        hashed.read_to_end(&mut content)?;
        let (packed, digest) = hashed.end();
        check(packed.finish(), &digest)?;
        Ok(content)
    }

    #[test]
    fn a_stream_is_whole_or_refused() {
        let content: Vec<u8> = (0..300_000_u32).map(|number| (number * 7 % 251) as u8).collect();
        let bytes = packed(&content);
        assert_eq!(read(&bytes).unwrap(), content);
        for length in [0, 1, bytes.len() / 2, bytes.len() - DIGEST - 1, bytes.len() - DIGEST, bytes.len() - 1] {
            assert!(read(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
        for place in [bytes.len() / 3, bytes.len() - DIGEST - 2, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert!(read(&changed).is_err(), "byte {place} of {}", bytes.len());
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(read(&longer).is_err());
    }
}
