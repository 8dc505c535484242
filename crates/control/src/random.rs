//! Random ids, keys and tokens, which nobody can guess and which do not collide.

use cove_engine::SandboxId;
use rand::RngExt as _;

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

fn letters(length: usize) -> String {
    let mut generator = rand::rng();
    (0..length).map(|_| LETTERS[generator.random_range(0..LETTERS.len())] as char).collect()
}

/// `bytes` random bytes as lower-case hex.
pub fn hex(bytes: usize) -> String {
    let mut buffer = vec![0u8; bytes];
    rand::rng().fill(&mut buffer[..]);
    hex::encode(buffer)
}

/// A new sandbox's id. It begins with a letter, so that it can be a host name as it is.
pub fn sandbox_id() -> SandboxId {
    let first = LETTERS[rand::rng().random_range(0..26)] as char;
    let id = format!("{first}{}", letters(SandboxId::LENGTH - 1));
    id.parse().expect("letters and digits of the right length are an id")
}

/// An id of anything else: a word for its kind, and 16 letters.
pub fn id(kind: &str) -> String {
    format!("{kind}_{}", letters(16))
}

/// An API key in the only form that every E2B SDK accepts.
pub fn api_key() -> String {
    format!("e2b_{}", hex(20))
}

/// A bearer token of 32 random bytes.
pub fn token() -> String {
    hex(32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_key_is_e2b_and_forty_hex_digits() {
        let key = super::api_key();
        let digits = key.strip_prefix("e2b_").unwrap();
        assert_eq!(digits.len(), 40);
        assert!(digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    }
}
