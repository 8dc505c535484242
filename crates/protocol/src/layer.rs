//! The name of a layer: a tree of files that roots are made of.
//!
//! 32 bytes, 64 lower-case hexadecimal digits in JSON and on disk. One spelling each, so that a name is a path's last
//! part as it is and no two names mean one layer.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A digest of what the layer was made of, or 32 random bytes: whoever makes a layer decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId([u8; 32]);

impl LayerId {
    /// Of its hexadecimal form.
    pub const LENGTH: usize = 64;

    pub const fn new(bytes: [u8; 32]) -> LayerId {
        LayerId(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for LayerId {
    type Err = InvalidLayerId;

    fn from_str(text: &str) -> Result<Self, InvalidLayerId> {
        let digits = text.as_bytes();
        if digits.len() != Self::LENGTH {
            return Err(InvalidLayerId);
        }
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Ok(LayerId(bytes))
    }
}

fn value(digit: u8) -> Result<u8, InvalidLayerId> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(InvalidLayerId),
    }
}

impl TryFrom<String> for LayerId {
    type Error = InvalidLayerId;

    fn try_from(text: String) -> Result<Self, InvalidLayerId> {
        text.parse()
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> String {
        id.to_string()
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerId({self})")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a layer id is 64 lower-case hexadecimal digits")]
pub struct InvalidLayerId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_id_has_one_spelling() {
        let text = "00ff".repeat(16);
        let id: LayerId = text.parse().unwrap();
        assert_eq!((id.to_string(), id.as_bytes()[..2].to_vec()), (text.clone(), vec![0, 255]));
        assert_eq!(serde_json::from_str::<LayerId>(&format!("{text:?}")).unwrap(), id);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("{text:?}"));
        for wrong in ["", "00", "../etc", &text.to_uppercase(), &format!("{text}0"), &"g".repeat(64), &"é".repeat(32)]
        {
            assert_eq!(wrong.parse::<LayerId>(), Err(InvalidLayerId), "{wrong}");
        }
    }
}
