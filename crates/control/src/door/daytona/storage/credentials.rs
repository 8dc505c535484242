//! Temporary credentials, which are computed and not kept.
//!
//! The access key says in clear whose it is and until when. Secret and session token are HMACs of it, with the secret that
//! the servers of one database share, or, where there is but one, with a secret of the running server.

use std::sync::LazyLock;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::clock::{Timestamp, after};
use crate::{App, Caller, Scope, random};

/// Longer than a client tries to send one context.
const GOOD_FOR_SECONDS: u64 = 60 * 60;

static OF_THIS_SERVER: LazyLock<String> = LazyLock::new(random::token);

pub fn secret(app: &App) -> &str {
    app.peer_secret().unwrap_or(&OF_THIS_SERVER)
}

/// What credentials are good for: putting contexts of one organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The API key's id.
    pub key: String,
    pub organisation: String,
    /// In seconds.
    pub end: i64,
}

pub struct Keys {
    pub access: String,
    pub secret: String,
    pub token: String,
}

impl Grant {
    pub fn to(caller: &Caller, now: Timestamp) -> Grant {
        let end = after(now, GOOD_FOR_SECONDS).as_second();
        Grant { key: caller.key.clone(), organisation: caller.organisation.clone(), end }
    }

    /// As an access key says it, whether that is one of ours or not.
    pub fn read(access_key: &str) -> Option<Grant> {
        let text = String::from_utf8(hex::decode(access_key).ok()?).ok()?;
        let mut parts = text.splitn(3, '\n');
        let (end, key, organisation) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Grant { key: key.to_owned(), organisation: organisation.to_owned(), end: end.parse().ok()? })
    }

    pub fn keys(&self, secret: &str) -> Keys {
        let access = hex::encode(format!("{}\n{}\n{}", self.end, self.key, self.organisation));
        let sign = |word: &str| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("an HMAC takes a key of any length");
            mac.update(format!("cove-contexts\n{word}\n{access}").as_bytes());
            hex::encode(mac.finalize().into_bytes())
        };
        Keys { secret: sign("secret"), token: sign("token"), access }
    }

    /// Only a key that may write gets credentials.
    pub fn caller(&self) -> Caller {
        Caller { organisation: self.organisation.clone(), key: self.key.clone(), scopes: vec![Scope::Write] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_key_says_whose_it_is_and_nothing_secret() {
        let grant = Grant { key: "key_1".into(), organisation: "acme".into(), end: 100 };
        let keys = grant.keys("server");
        assert_eq!(Grant::read(&keys.access), Some(grant.clone()));
        assert_ne!(keys.secret, keys.token);
        assert_ne!(keys.secret, grant.keys("another server").secret);
        let longer = Grant { end: 101, ..grant };
        assert_ne!(longer.keys("server").secret, keys.secret);
        for wrong in ["", "zz", "00", &hex::encode("x\ny\nz"), &hex::encode("100")] {
            assert_eq!(Grant::read(wrong), None, "{wrong}");
        }
    }
}
