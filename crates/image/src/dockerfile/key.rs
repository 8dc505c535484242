//! What a step's result is found again by.
//!
//! Every part has its length before it: `["a b"]` and `["a", "b"]` are different steps. The organisation is part of the key,
//! so nobody gets what another's build left; the parent is the layer below, which begins with an image's digest, never its
//! tag.

use sha2::{Digest as _, Sha256};

use crate::chain::UNPACKER;
use crate::digest::Digest;

/// Rises when the same step would make something else.
pub const VERSION: u32 = 1;

/// The key of a step: what it is (`RUN`, `COPY` …), its words with everything they depend on (environment, user,
/// directory), and the digest of the files it reads.
pub fn key(organisation: &str, parent: &[u8], kind: &str, words: &[&str], files: Option<&Digest>) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(b"cove build step");
    part(&VERSION.to_le_bytes());
    part(&UNPACKER.to_le_bytes());
    part(organisation.as_bytes());
    part(parent);
    part(kind.as_bytes());
    part(&(words.len() as u64).to_le_bytes());
    for word in words {
        part(word.as_bytes());
    }
    part(files.map_or(&[][..], |digest| digest.as_bytes()));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_none_runs_into_the_next() {
        let files = Digest::of(b"files");
        let all = [
            key("o", b"p", "RUN", &["a b"], None),
            key("o", b"p", "RUN", &["a", "b"], None),
            key("o", b"p", "RUN", &["ab"], None),
            key("o", b"p", "RUN", &["a b", ""], None),
            key("o", b"p", "COPY", &["a b"], None),
            key("o", b"q", "RUN", &["a b"], None),
            key("other", b"p", "RUN", &["a b"], None),
            key("o", b"p", "RUN", &["a b"], Some(&files)),
            key("op", b"", "RUN", &["a b"], None),
            key("", b"op", "RUN", &["a b"], None),
        ];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[0], key("o", b"p", "RUN", &["a b"], None));
    }
}
