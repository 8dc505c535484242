//! What opens one sandbox without an API key: signed file URLs and signed previews.
//!
//! File URLs are signed by the client with a key that it asked for; ours to check. Both kinds are kept in what the
//! sandbox remembers for this door, so they survive a restart and die with the sandbox.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Error;
use crate::clock::Timestamp;
use crate::sandbox::Sandbox;
use crate::secret::same;

/// The door's own part of a sandbox's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// What clients sign file URLs with.
    pub signing_key: Option<String>,
    pub previews: Vec<SignedPreview>,
    /// What its snapshot is called in this dialect, where that is not the template's name.
    pub snapshot: Option<String>,
    /// What it was built of, where it was made of an image.
    pub build: Option<Built>,
    /// When it was last backed up.
    pub backup_at: Option<Timestamp>,
}

/// The build that a sandbox was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    pub id: String,
    #[serde(default)]
    pub dockerfile: Option<String>,
    #[serde(default)]
    pub contexts: Vec<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedPreview {
    /// SHA-256 of the token.
    pub hash: String,
    pub port: u16,
    /// Unix seconds.
    pub until: i64,
}

const KEY: &str = "daytona";
/// Signed previews that one sandbox keeps; the oldest give way.
const MOST_PREVIEWS: usize = 100;

impl Memory {
    pub fn of(sandbox: &Sandbox) -> Self {
        sandbox.door.get(KEY).and_then(|own| serde_json::from_value(own.clone()).ok()).unwrap_or_default()
    }

    /// Of a copy of the sandbox: what it was made of. What opens the source does not open the copy.
    pub fn of_copy(source: &Sandbox) -> Self {
        let Memory { snapshot, build, .. } = Memory::of(source);
        Memory { snapshot, build, ..Memory::default() }
    }

    /// Of a sandbox that no other door remembers anything of.
    pub fn as_door(&self) -> Result<serde_json::Value, Error> {
        Ok(serde_json::json!({ KEY: serde_json::to_value(self).map_err(Error::internal)? }))
    }

    /// Beside what other doors remember.
    pub fn into_door(self, sandbox: &Sandbox) -> Result<serde_json::Value, Error> {
        let mut door = match &sandbox.door {
            serde_json::Value::Object(door) => door.clone(),
            _ => serde_json::Map::new(),
        };
        door.insert(KEY.into(), serde_json::to_value(self).map_err(Error::internal)?);
        Ok(door.into())
    }

    pub fn add_preview(&mut self, token: &str, port: u16, until: i64, now: i64) {
        self.previews.retain(|preview| preview.until > now);
        let surplus = (self.previews.len() + 1).saturating_sub(MOST_PREVIEWS);
        self.previews.drain(..surplus);
        self.previews.push(SignedPreview { hash: hash(token), port, until });
    }

    pub fn end_preview(&mut self, token: &str, port: u16) {
        let hash = hash(token);
        self.previews.retain(|preview| preview.hash != hash || preview.port != port);
    }

    /// Until when, in Unix seconds, a token opens a port; nothing where it does not.
    pub fn opens_preview(&self, token: &str, port: u16, now: i64) -> Option<i64> {
        let hash = hash(token);
        let opens =
            |preview: &&SignedPreview| preview.port == port && preview.until > now && same(&hash, &preview.hash);
        self.previews.iter().find(opens).map(|preview| preview.until)
    }

    /// Whether a file URL's signature is good for this method and path now; an expiry of 0 never comes.
    pub fn opens_file(&self, method: &str, path: &str, expires: &str, signature: &str, now: i64) -> bool {
        let (Some(key), Ok(until)) = (&self.signing_key, expires.parse::<i64>()) else { return false };
        if until != 0 && until <= now {
            return false;
        }
        same(signature, sign_file(key, method, path, expires))
    }
}

/// What clients sign a file URL with: `v1_` and an HMAC over method, path and expiry.
pub fn sign_file(key: &str, method: &str, path: &str, expires: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("an HMAC takes a key of any length");
    mac.update(format!("v1:files:{method}:{path}:{expires}").as_bytes());
    format!("v1_{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(key: &str, text: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        format!("v1_{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    #[test]
    fn a_file_signature_is_good_for_one_method_path_and_time() {
        let memory = Memory { signing_key: Some("k".into()), ..Memory::default() };
        let signature = sign("k", "v1:files:GET:a.txt:100");
        assert!(memory.opens_file("GET", "a.txt", "100", &signature, 99));
        assert!(!memory.opens_file("GET", "a.txt", "100", &signature, 100));
        assert!(!memory.opens_file("POST", "a.txt", "100", &signature, 99));
        assert!(!memory.opens_file("GET", "b.txt", "100", &signature, 99));
        assert!(!memory.opens_file("GET", "a.txt", "0", &signature, 99));
        assert!(memory.opens_file("GET", "a.txt", "0", &sign("k", "v1:files:GET:a.txt:0"), 99));
        assert!(!Memory::default().opens_file("GET", "a.txt", "0", &sign("", "v1:files:GET:a.txt:0"), 99));
    }

    #[test]
    fn a_signed_preview_opens_its_port_until_its_time_or_its_end() {
        let mut memory = Memory::default();
        memory.add_preview("t", 3000, 100, 0);
        assert_eq!(memory.opens_preview("t", 3000, 99), Some(100));
        assert_eq!(memory.opens_preview("t", 3001, 99), None);
        assert_eq!(memory.opens_preview("t", 3000, 100), None);
        memory.end_preview("t", 3000);
        assert_eq!(memory.opens_preview("t", 3000, 99), None);
    }

    #[test]
    fn signed_previews_do_not_pile_up() {
        let mut memory = Memory::default();
        for number in 0..300 {
            memory.add_preview(&number.to_string(), 1, 1000, 0);
        }
        assert_eq!(memory.previews.len(), MOST_PREVIEWS);
        assert!(memory.opens_preview("299", 1, 1).is_some());
    }
}
