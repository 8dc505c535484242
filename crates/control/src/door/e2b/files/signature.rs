//! Signed URLs: a hash over what is allowed, keyed with the sandbox's token, so that the link alone opens one file.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

use super::super::query::Query;
use crate::secret::same;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    Missing,
    Wrong,
    Expired,
}

impl Invalid {
    pub fn as_str(self) -> &'static str {
        match self {
            Invalid::Missing => "missing signature query parameter",
            Invalid::Wrong => "invalid signature",
            Invalid::Expired => "signature is already expired",
        }
    }
}

/// Checks a request's signature against a sandbox's token. The hash comes first: only a caller with a once valid link
/// learns that it has expired.
pub fn check(query: &Query, operation: Operation, token: &str, now: i64) -> Result<(), Invalid> {
    let shown = query.get("signature").ok_or(Invalid::Missing)?;
    let expiration = query.get("signature_expiration");
    let path = query.get("path").unwrap_or_default();
    let user = query.get("username").unwrap_or_default();
    // With a colon in a user's name one text could be read as another path, operation and user.
    if user.contains(':') || !same(shown, sign(path, operation, user, token, expiration)) {
        return Err(Invalid::Wrong);
    }
    match expiration.map(str::parse::<i64>) {
        None => Ok(()),
        Some(Ok(until)) if until > now => Ok(()),
        Some(Ok(_)) => Err(Invalid::Expired),
        Some(Err(_)) => Err(Invalid::Wrong),
    }
}

/// The path goes in as the client wrote it, not as it resolves.
pub fn sign(path: &str, operation: Operation, user: &str, token: &str, expiration: Option<&str>) -> String {
    let operation = match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = expiration {
        text.push(':');
        text.push_str(expiration);
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(path: &str, signature: &str, expiration: Option<&str>) -> Query {
        let signature = signature.replace('+', "%2B").replace('/', "%2F");
        let expiration = expiration.map(|until| format!("&signature_expiration={until}")).unwrap_or_default();
        Query::parse(&format!("path={path}&signature={signature}{expiration}"))
    }

    #[test]
    fn a_link_opens_its_file_for_its_operation_with_its_token_alone() {
        let signature = sign("a.txt", Operation::Read, "", "secret", None);
        assert_eq!(check(&query("a.txt", &signature, None), Operation::Read, "secret", 0), Ok(()));
        assert_eq!(check(&query("b.txt", &signature, None), Operation::Read, "secret", 0), Err(Invalid::Wrong));
        assert_eq!(check(&query("a.txt", &signature, None), Operation::Write, "secret", 0), Err(Invalid::Wrong));
        assert_eq!(check(&query("a.txt", &signature, None), Operation::Read, "other", 0), Err(Invalid::Wrong));
        assert_eq!(check(&Query::parse("path=a.txt"), Operation::Read, "secret", 0), Err(Invalid::Missing));
    }

    #[test]
    fn a_link_cannot_be_read_as_one_for_another_operation() {
        let signature = sign("x:write:y", Operation::Read, "", "secret", None);
        let query = Query::parse(&format!(
            "path=x&username=y%3Aread%3A&signature={}",
            signature.replace('+', "%2B").replace('/', "%2F")
        ));
        assert_eq!(sign("x", Operation::Write, "y:read:", "secret", None), signature, "the texts are the same");
        assert_eq!(check(&query, Operation::Write, "secret", 0), Err(Invalid::Wrong));
    }

    #[test]
    fn a_link_ends_at_its_time_and_the_time_cannot_be_changed() {
        let signature = sign("a.txt", Operation::Read, "", "secret", Some("100"));
        let good = query("a.txt", &signature, Some("100"));
        assert_eq!(check(&good, Operation::Read, "secret", 99), Ok(()));
        assert_eq!(check(&good, Operation::Read, "secret", 100), Err(Invalid::Expired));
        let stretched = query("a.txt", &signature, Some("999"));
        assert_eq!(check(&stretched, Operation::Read, "secret", 99), Err(Invalid::Wrong));
        assert_eq!(check(&query("a.txt", &signature, None), Operation::Read, "secret", 99), Err(Invalid::Wrong));
    }
}
