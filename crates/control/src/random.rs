//! Random ids, keys and tokens, which nobody can guess and which do not collide.

use cove_protocol::{LayerId, SandboxId, VolumeId};
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

/// From 0 up to, and not, 1.
pub fn fraction() -> f64 {
    rand::rng().random::<f64>()
}

/// A new template's id.
pub fn template_id() -> String {
    letters(crate::template::ID_LENGTH)
}

/// A new volume's id.
pub fn volume_id() -> VolumeId {
    letters(VolumeId::LENGTH).parse().expect("letters and digits of the right length are an id")
}

/// The name of a layer that is named by nothing in it.
pub fn layer_id() -> LayerId {
    let mut bytes = [0; 32];
    rand::rng().fill(&mut bytes[..]);
    LayerId::new(bytes)
}

/// A UUID of version 4.
pub fn uuid() -> String {
    let mut bytes = [0; 16];
    rand::rng().fill(&mut bytes[..]);
    uuid_from(bytes)
}

/// A UUID that looks like one of version 4, of these bytes.
pub fn uuid_from(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex::encode(bytes);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
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
    fn a_build_is_named_by_a_uuid_of_version_4() {
        let id = super::uuid();
        assert!(crate::template::name::is_uuid(&id), "{id}");
        assert_eq!((&id[14..15], super::uuid_from([0xff; 16]).as_str()), ("4", "ffffffff-ffff-4fff-bfff-ffffffffffff"));
    }

    #[test]
    fn a_key_is_e2b_and_forty_hex_digits() {
        let key = super::api_key();
        let digits = key.strip_prefix("e2b_").unwrap();
        assert_eq!(digits.len(), 40);
        assert!(digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    }
}
