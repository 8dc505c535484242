//! Compression, by the first bytes: a media type can say anything.

use std::io::{self, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

/// zstd frames may ask for a window of 2^31 bytes; this much memory is enough for `--ultra -22`.
const WINDOW_LOG: u32 = 27;
const BUFFER: usize = 128 << 10;

type Source<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// A stream that is decoded as it is read.
pub struct Decoder<R: Read>(Kind<R>);

enum Kind<R: Read> {
    Plain(Source<R>),
    // A layer can have many members (eStargz): a decoder for one would stop after the first without an error.
    Gzip(Box<MultiGzDecoder<Source<R>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, Source<R>>>),
}

impl<R: Read> Decoder<R> {
    pub fn new(mut reader: R) -> io::Result<Self> {
        let mut first = Vec::with_capacity(6);
        reader.by_ref().take(6).read_to_end(&mut first)?;
        let is_gzip = first.starts_with(&[0x1f, 0x8b]);
        // A skippable frame may come first.
        let is_zstd = first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
            || matches!(first.as_slice(), [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        let unknown = [(&b"BZh"[..], "bzip2"), (b"\xfd7zXZ\0", "xz")];
        if let Some((_, name)) = unknown.iter().find(|(magic, _)| first.starts_with(magic)) {
            return Err(io::Error::other(format!("it is compressed with {name}; gzip and zstd can be read")));
        }
        let source = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(reader));
        Ok(Decoder(if is_gzip {
            Kind::Gzip(Box::new(MultiGzDecoder::new(source)))
        } else if is_zstd {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            decoder.window_log_max(WINDOW_LOG)?;
            Kind::Zstd(Box::new(decoder))
        } else {
            Kind::Plain(source)
        }))
    }

    pub fn is_plain(&self) -> bool {
        matches!(self.0, Kind::Plain(_))
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Plain(inner) => inner.read(buffer),
            Kind::Gzip(inner) => inner.read(buffer),
            Kind::Zstd(inner) => inner.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn decoded(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Decoder::new(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_first_bytes_decide() {
        assert_eq!(decoded(b"plain text").unwrap(), b"plain text");
        assert_eq!(decoded(b"").unwrap(), b"");
        assert_eq!(decoded(b"x").unwrap(), b"x");
        assert_eq!(decoded(&gzip(b"abc")).unwrap(), b"abc");
        assert_eq!(decoded(&zstd::encode_all(&b"abc"[..], 3).unwrap()).unwrap(), b"abc");
        assert!(decoded(b"BZh91AY").unwrap_err().to_string().contains("bzip2"));
        assert!(decoded(b"\xfd7zXZ\0\0").unwrap_err().to_string().contains("xz"));
    }

    #[test]
    fn all_members_and_frames_are_read() {
        assert_eq!(decoded(&[gzip(b"one "), gzip(b""), gzip(b"two")].concat()).unwrap(), b"one two");
        let frame = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        assert_eq!(decoded(&[skippable, frame(b"one "), frame(b"two")].concat()).unwrap(), b"one two");
    }

    #[test]
    fn a_cut_stream_is_an_error() {
        for whole in [gzip(&[7; 100_000]), zstd::encode_all(&[7; 100_000][..], 3).unwrap()] {
            assert!(decoded(&whole[..whole.len() - 3]).is_err());
            assert!(decoded(&[&whole[..], b"garbage"].concat()).is_err());
        }
    }

    #[test]
    fn a_huge_window_is_refused() {
        // A frame header: no content size, no checksum, window descriptor 2^31 bytes (exponent 21), then an empty last block.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];
        let error = decoded(&frame).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
        let allowed = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x01, 0x00, 0x00];
        assert_eq!(decoded(&allowed).unwrap(), b"");
    }
}
