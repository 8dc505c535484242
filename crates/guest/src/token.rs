//! What a host shows first, where others can reach the guest's socket.
//!
//! On our own engine the host keeps the socket outside of the sandbox, and whoever connects is the host. In a container of
//! somebody else's the socket lies in the container's own files, so every connection begins with a secret that only the host
//! and the guest have.

use serde::Deserialize;

/// Never printed.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl From<String> for Token {
    fn from(text: String) -> Token {
        Token(text)
    }
}

impl Token {
    /// Takes the same time however much of it matches.
    pub fn is(&self, shown: &[u8]) -> bool {
        let differs = shown.iter().zip(self.0.as_bytes()).fold(0, |seen, (one, other)| seen | (one ^ other));
        !self.0.is_empty() && shown.len() == self.0.len() && differs == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_it() {
        let token = Token("secret".into());
        assert!(token.is(b"secret"));
        for wrong in ["", "secre", "secret!", "Secret"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert!(!Token(String::new()).is(b""), "an empty one opens nothing");
        assert_eq!(format!("{token:?}"), "Token");
    }
}
