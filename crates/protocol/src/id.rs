//! Names of things that host, engine and providers speak of: a sandbox, a volume.
//!
//! Both are 20 lower-case letters and digits: they fit a DNS label, a cgroup name and a path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const LENGTH: usize = 20;

fn fits(text: &str) -> bool {
    text.len() == LENGTH && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

macro_rules! id {
    ($(#[$documentation:meta])* $name:ident, $invalid:ident, $sentence:literal) => {
        $(#[$documentation])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub const LENGTH: usize = LENGTH;

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = $invalid;

            fn from_str(text: &str) -> Result<Self, $invalid> {
                if fits(text) { Ok($name(text.to_owned())) } else { Err($invalid) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = $invalid;

            fn try_from(text: String) -> Result<Self, $invalid> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
        #[error($sentence)]
        pub struct $invalid;
    };
}

id! {
    /// The name of a sandbox.
    SandboxId, InvalidId, "a sandbox id is 20 lower-case letters and digits"
}

id! {
    /// The name of a volume.
    VolumeId, InvalidVolumeId, "a volume id is 20 lower-case letters and digits"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_twenty_lower_case_letters_and_digits() {
        let id: SandboxId = "abcdefghij0123456789".parse().unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"abcdefghij0123456789\"");
        for wrong in
            ["", "abc", "ABCDEFGHIJ0123456789", "abcdefghij012345678/", "abcdefghij01234567890", "../../../../../../.."]
        {
            assert_eq!(wrong.parse::<SandboxId>(), Err(InvalidId), "{wrong}");
            assert_eq!(wrong.parse::<VolumeId>(), Err(InvalidVolumeId), "{wrong}");
            let quoted = serde_json::to_string(wrong).unwrap();
            assert!(serde_json::from_str::<VolumeId>(&quoted).is_err(), "{wrong}");
        }
    }
}
