//! The messages of the daemon's services, each defined once.
//!
//! `prost` gives the binary encoding from the field numbers, `serde` the JSON that proto3 prescribes: camelCase names (the
//! snake_case ones are understood too), bytes in base64, 64-bit integers as text, enumerations by name, a choice as
//! the one field that is set.

pub mod filesystem;
pub mod process;

/// `bytes`.
pub mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Readers take padding or none, and the URL alphabet.
    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

    pub fn serialize<S: Serializer>(bytes: &Vec<u8>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let alphabet = if text.contains(['-', '_']) { base64::alphabet::URL_SAFE } else { base64::alphabet::STANDARD };
        GeneralPurpose::new(&alphabet, LENIENT).decode(text).map_err(D::Error::custom)
    }
}

/// `int64`: text on the way out, text or number on the way in.
pub mod integer_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }

    pub fn serialize<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        match Either::deserialize(from)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// Gives an enumeration's `i32` fields their names in JSON.
macro_rules! enumeration_names {
    ($module:ident, $kind:ty) => {
        pub mod $module {
            use super::*;
            use serde::de::Error;
            use serde::{Deserialize, Deserializer, Serializer};

            #[derive(Deserialize)]
            #[serde(untagged)]
            enum Either {
                Number(i32),
                Name(String),
            }

            pub fn serialize<S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
                match <$kind>::try_from(*number) {
                    Ok(value) => to.serialize_str(value.name()),
                    Err(_) => to.serialize_i32(*number),
                }
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
                match Either::deserialize(from)? {
                    Either::Number(number) => Ok(number),
                    Either::Name(name) => <$kind>::ALL
                        .into_iter()
                        .find(|value| value.name() == name)
                        .map(|value| value as i32)
                        .ok_or_else(|| D::Error::custom(format!("unknown value '{name}'"))),
                }
            }
        }
    };
}
pub(crate) use enumeration_names;
