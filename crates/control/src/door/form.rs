//! Bounds what stands between the files of a form (`multipart/form-data`, RFC 7578).
//!
//! The reader of forms keeps everything up to the end of a part's head, and looks through all of it again with every piece
//! that comes: a head without an end takes memory and a processor for as long as the client sends. A file's content is
//! passed on and has no bound. So the same places are found here first, each byte looked at once, and a head that is too
//! long ends the form.
//!
//! ```text
//!   preamble ─ --boundary ─▶ rest of the line ─ CRLF ─▶ head ─ CRLF CRLF ─▶ content ─ CRLF --boundary ─▶ rest of the line …
//!   └──────────── bounded ───────────┘ └────────── bounded together ────────┘ └── of any size ──┘
//! ```

use std::fmt::Display;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};

/// Bytes before the first part, and of the head of each. A path in it has at most 4096 characters.
pub const HEAD: usize = 16 << 10;

/// The body as it comes, up to a head that is too long.
pub fn bounded<E: Display + 'static>(
    body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    boundary: String,
) -> impl Stream<Item = Result<Bytes, String>> + Send + 'static {
    let mut parts = Parts::new(&boundary);
    body.map(move |piece| {
        let piece = piece.map_err(|error| error.to_string())?;
        parts.follow(&piece)?;
        Ok::<_, String>(piece)
    })
}

/// Why a form was not read: the reader of forms keeps the cause to itself.
pub fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// What is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    FirstBoundary,
    EndOfLine,
    EndOfHead,
    NextBoundary,
}

/// The place in a form.
struct Parts {
    boundary: Vec<u8>,
    awaited: Awaited,
    finder: Finder,
    /// Bytes since the last content.
    between: usize,
}

impl Parts {
    fn new(boundary: &str) -> Parts {
        let boundary = format!("--{boundary}").into_bytes();
        let finder = Finder::new(boundary.clone());
        Parts { boundary, awaited: Awaited::FirstBoundary, finder, between: 0 }
    }

    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let found = self.finder.find(bytes);
            let passed = found.unwrap_or(bytes.len());
            if self.awaited != Awaited::NextBoundary {
                self.between += passed;
                if self.between > HEAD {
                    return Err(format!("the head of a part is longer than {HEAD} bytes"));
                }
            }
            if found.is_some() {
                self.go_on();
            }
            bytes = &bytes[passed..];
        }
        Ok(())
    }

    /// To what comes after what was awaited.
    fn go_on(&mut self) {
        let (awaited, pattern) = match self.awaited {
            Awaited::FirstBoundary | Awaited::NextBoundary => {
                self.between = 0;
                (Awaited::EndOfLine, b"\r\n".to_vec())
            }
            Awaited::EndOfLine => (Awaited::EndOfHead, b"\r\n\r\n".to_vec()),
            Awaited::EndOfHead => (Awaited::NextBoundary, [&b"\r\n"[..], self.boundary.as_slice()].concat()),
        };
        (self.awaited, self.finder) = (awaited, Finder::new(pattern));
    }
}

/// Finds one pattern in a stream, however that is cut (the algorithm of Knuth, Morris and Pratt).
struct Finder {
    pattern: Vec<u8>,
    /// By how many bytes have matched: how many of them may be the beginning of another match.
    fallback: Vec<usize>,
    matched: usize,
}

impl Finder {
    /// For a pattern that is not empty.
    fn new(pattern: Vec<u8>) -> Finder {
        let mut fallback = vec![0; pattern.len()];
        let mut length = 0;
        for at in 1..pattern.len() {
            while length > 0 && pattern[at] != pattern[length] {
                length = fallback[length - 1];
            }
            length += usize::from(pattern[at] == pattern[length]);
            fallback[at] = length;
        }
        Finder { pattern, fallback, matched: 0 }
    }

    /// How many bytes there are up to the pattern's end, if it ends in these.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            while self.matched > 0 && self.pattern[self.matched] != *byte {
                self.matched = self.fallback[self.matched - 1];
            }
            self.matched += usize::from(self.pattern[self.matched] == *byte);
            if self.matched == self.pattern.len() {
                self.matched = 0;
                return Some(at + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(form: &[u8], cut: usize) -> Result<(), String> {
        let mut parts = Parts::new("b");
        form.chunks(cut).try_for_each(|piece| parts.follow(piece))
    }

    #[test]
    fn files_of_any_size_pass_however_they_are_cut() {
        let head = "Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
        let mut form = Vec::new();
        for _ in 0..50 {
            form.extend_from_slice(format!("--b\r\n{head}").as_bytes());
            // With beginnings of the boundary in it.
            form.extend_from_slice("\r\n-\r\r\n--a\r\n\r\n".repeat(2000).as_bytes());
            form.extend_from_slice(b"\r\n");
        }
        form.extend_from_slice(b"--b--\r\n");
        for cut in [1, 3, 1000, usize::MAX] {
            assert_eq!(followed(&form, cut), Ok(()), "in pieces of {cut}");
        }
    }

    #[test]
    fn what_is_between_files_has_a_bound() {
        let long = "x".repeat(HEAD + 1);
        for form in [
            long.clone(),
            format!("\r\n\r\n{long}"),
            format!("--b{long}"),
            format!("--b\r\nname: {long}"),
            // A part without a head: what comes next is still one for the reader.
            format!("--b\r\n\r\n{long}"),
            format!("--b\r\na: b\r\n\r\ncontent\r\n--b\r\nname: {long}"),
            format!("--b\r\na: b\r\n\r\ncontent\r\n--b--{long}"),
        ] {
            for cut in [1, 1000, usize::MAX] {
                let refused = followed(form.as_bytes(), cut).unwrap_err();
                assert!(refused.contains("longer than 16384 bytes"), "{refused}");
            }
        }
        assert_eq!(followed(format!("--b\r\na: b\r\n\r\n{long}\r\n--b--").as_bytes(), 7), Ok(()));
    }
}
