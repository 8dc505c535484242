//! What content is named by: `sha256:` and 64 hexadecimal digits.
//!
//! Other algorithms exist on paper; registries serve SHA-256. A digest that cannot be checked is refused, not believed.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "sha256:";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no digest: sha256: and 64 lower-case hexadecimal digits are")]
pub struct NoDigest(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Digest(Sha256::digest(bytes).into())
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Without the algorithm, as files are named.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let wrong = || NoDigest(text.chars().take(100).collect());
        let digits = text.strip_prefix(PREFIX).ok_or_else(wrong)?;
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| wrong())?;
        Ok(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Counts and digests what passes through.
pub(crate) struct Hashing<T> {
    pub inner: T,
    hash: Sha256,
    pub bytes: u64,
}

impl<T> Hashing<T> {
    pub fn new(inner: T) -> Self {
        Hashing { inner, hash: Sha256::new(), bytes: 0 }
    }

    pub fn digest(&self) -> Digest {
        Digest(self.hash.clone().finalize().into())
    }

    fn note(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.note(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

impl<W: io::Write> io::Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.note(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A blob of which size and digest are known: its end is an error unless both are right.
pub(crate) struct Verified<R> {
    inner: Hashing<R>,
    size: u64,
    digest: Digest,
}

impl<R: Read> Verified<R> {
    pub fn new(inner: R, size: u64, digest: Digest) -> Self {
        Verified { inner: Hashing::new(inner), size, digest }
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let count = self.inner.read(buffer)?;
        let (digest, size) = (self.digest, self.size);
        if self.inner.bytes > size {
            return Err(io::Error::other(format!("the blob {digest} is larger than its {size} bytes")));
        }
        if count == 0 && self.inner.bytes < size {
            let there = self.inner.bytes;
            return Err(io::Error::other(format!("the blob {digest} ends after {there} of {size} bytes")));
        }
        if count == 0 && self.inner.digest() != digest {
            return Err(io::Error::other(format!("the blob {digest} has another content: {}", self.inner.digest())));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_as_it_was_written() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }

    #[test]
    fn what_cannot_be_checked_is_no_digest() {
        let good = Digest::of(b"").to_string();
        for text in ["", "sha256:", "sha256:00", "sha512:00", &good.to_uppercase(), &good[7..], &format!("{good}0")] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
        assert!(good.replace('e', "E").parse::<Digest>().is_err());
    }

    #[test]
    fn the_end_of_a_wrong_blob_is_an_error() {
        let read = |bytes: &[u8], size, digest| io::copy(&mut Verified::new(bytes, size, digest), &mut io::sink());
        let digest = Digest::of(b"four");
        assert_eq!(read(b"four", 4, digest).unwrap(), 4);
        assert!(read(b"fou", 4, digest).unwrap_err().to_string().contains("ends after 3 of 4 bytes"));
        assert!(read(b"four+", 4, digest).unwrap_err().to_string().contains("larger than its 4 bytes"));
        assert!(read(b"fout", 4, digest).unwrap_err().to_string().contains("another content"));
    }
}
