//! How a server proves to another server of the same database that it sent a request on.
//!
//! The header names the server and the time, and carries an HMAC over both, the method, the path and the host, with a
//! secret from the database. Nobody else can make such a proof, and a recorded one is valid only for its own request,
//! for a minute.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// By whom a request was sent on, or who asks for itself.
pub const HEADER: &str = "cove-sent-on-by";

/// How long a proof is valid: longer than a request travels between servers, with some difference of clocks.
const GOOD_FOR_MS: i64 = 60_000;

/// The request that is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentOn<'a> {
    pub server: &'a str,
    pub method: &'a str,
    /// With the query.
    pub path: &'a str,
    pub host: &'a str,
}

impl SentOn<'_> {
    fn mac(&self, secret: &str, at: i64) -> Hmac<Sha256> {
        let SentOn { server, method, path, host } = self;
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("an HMAC takes a key of any length");
        // No part can contain a line break.
        mac.update(format!("cove-sent-on\n{server}\n{at}\n{method}\n{path}\n{host}").as_bytes());
        mac
    }

    /// The header's value.
    pub fn prove(&self, secret: &str, now_ms: i64) -> String {
        let code = hex::encode(self.mac(secret, now_ms).finalize().into_bytes());
        format!("{} {now_ms} {code}", self.server)
    }
}

/// The server that the header's value proves as sender of a request with this method, path and host.
pub fn proved<'a>(secret: &str, value: &'a str, method: &str, path: &str, host: &str, now_ms: i64) -> Option<&'a str> {
    let mut parts = value.split(' ');
    let (server, at, code) = (parts.next()?, parts.next()?.parse::<i64>().ok()?, parts.next()?);
    if parts.next().is_some() || now_ms.abs_diff(at) > GOOD_FOR_MS as u64 {
        return None;
    }
    let code = hex::decode(code).ok()?;
    SentOn { server, method, path, host }.mac(secret, at).verify_slice(&code).ok().map(|()| server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_own_request_and_a_minute() {
        let sent = SentOn { server: "server_a", method: "POST", path: "/a?b=c", host: "h" };
        let value = sent.prove("secret", 1000);
        let ask = |secret: &str, value: &str, method: &str, path: &str, host: &str, now: i64| {
            proved(secret, value, method, path, host, now).map(ToOwned::to_owned)
        };
        assert_eq!(ask("secret", &value, "POST", "/a?b=c", "h", 1000).as_deref(), Some("server_a"));
        assert_eq!(ask("secret", &value, "POST", "/a?b=c", "h", 61_000).as_deref(), Some("server_a"));
        for (secret, method, path, host, now) in [
            ("other", "POST", "/a?b=c", "h", 1000),
            ("secret", "GET", "/a?b=c", "h", 1000),
            ("secret", "POST", "/a", "h", 1000),
            ("secret", "POST", "/a?b=c", "i", 1000),
            ("secret", "POST", "/a?b=c", "h", 61_001),
        ] {
            assert_eq!(ask(secret, &value, method, path, host, now), None, "{secret} {method} {path} {host} {now}");
        }
        assert_eq!(ask("secret", &value.replace("server_a", "server_b"), "POST", "/a?b=c", "h", 1000), None);
        assert_eq!(ask("secret", "server_a", "POST", "/a?b=c", "h", 1000), None);
    }
}
