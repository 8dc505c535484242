//! How this dialect calls templates, and what it remembers of them.
//!
//! SDKs take a snapshot's id for one only where it is a UUID, and a template's id has 20 letters and digits. Those fit
//! into a UUID's 122 free bits, so each can be computed of the other and nothing is written down. A name of the dialect
//! may have capitals, `:` and `/`, which a template's name has not: the template bears a name that is made of it, and
//! the one that was given is remembered.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::random;
use crate::template::{ID_LENGTH, Record, Template};

/// The door's own part of what a template remembers.
const KEY: &str = "daytona";
/// Bytes of a Dockerfile that are shown again.
const SHOWN: usize = 16 << 10;
/// Templates that sandboxes wait for begin with this.
pub const WAITED_FOR: &str = "sandbox-";

/// What this dialect remembers of a template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// The name as it was given.
    pub name: Option<String>,
    /// The image that it was made of.
    pub image: Option<String>,
    /// Of one that is longer than is shown nothing is kept.
    pub dockerfile: Option<String>,
    pub contexts: Vec<String>,
    pub entrypoint: Option<Vec<String>>,
    /// The sandbox that is made of it as soon as it is built.
    pub sandbox: Option<Waiting>,
}

/// A sandbox that waits for its template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    pub id: String,
    /// What was asked for, as it was sent.
    pub body: Value,
}

impl Note {
    pub fn of(record: &Record) -> Note {
        record.door.get(KEY).and_then(|own| serde_json::from_value(own.clone()).ok()).unwrap_or_default()
    }

    pub fn with_build(self, dockerfile: &str, contexts: &[String]) -> Note {
        let dockerfile = (dockerfile.len() <= SHOWN).then(|| dockerfile.to_owned());
        Note { dockerfile, contexts: contexts.to_vec(), ..self }
    }

    pub fn into_door(self) -> Value {
        serde_json::json!({ KEY: self })
    }

    /// Whether somebody built it, of a Dockerfile.
    pub fn is_built(&self) -> bool {
        self.image.is_none() && self.name.is_some()
    }
}

/// What the dialect calls a template.
pub fn name_of(record: &Record) -> String {
    // One that got another name elsewhere is called by that.
    let given = Note::of(record).name.filter(|given| record.names.contains(&template_name(given)));
    given.unwrap_or_else(|| record.title().to_owned())
}

/// The template's name that belongs to one of the dialect's.
pub fn template_name(name: &str) -> String {
    name.trim().to_lowercase().replace(':', "..").replace('/', "._")
}

/// The name of the template that a sandbox waits for.
pub fn waited_for(sandbox: &str) -> String {
    format!("{WAITED_FOR}{sandbox}")
}

/// A snapshot's id.
pub fn uuid(template: &str) -> String {
    match number(template) {
        Some(number) => spread(number),
        // A built-in is called by its name.
        None => built_in_uuid(template),
    }
}

/// The id of the template whose snapshot's id this is; a built-in's is not to be computed.
pub fn template_id(uuid: &str) -> Option<String> {
    let digits: String = uuid.chars().filter(|c| *c != '-').collect();
    let bytes: [u8; 16] = hex::decode(digits).ok()?.try_into().ok()?;
    let all = u128::from_be_bytes(bytes);
    // Without the version, after 48 bits, and the variant, after 64.
    let (high, middle, low) = (all >> 80, (all >> 64) & 0xfff, all & ((1 << 62) - 1));
    let id = letters((high << 74) | (middle << 62) | low)?;
    // Of several spellings one is the id's.
    (self::uuid(&id) == uuid.to_lowercase()).then_some(id)
}

pub fn is_snapshot_of(uuid: &str, built_in: &Template) -> bool {
    built_in_uuid(&built_in.id) == uuid.to_lowercase()
}

fn built_in_uuid(id: &str) -> String {
    let digest = Sha256::digest(format!("cove built-in template {id}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    random::uuid_from(bytes)
}

/// The letters and digits as a number of 104 bits.
fn number(id: &str) -> Option<u128> {
    if id.len() != ID_LENGTH {
        return None;
    }
    id.bytes().try_fold(0u128, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'z' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number * 36 + u128::from(digit))
    })
}

fn letters(mut number: u128) -> Option<String> {
    let mut digits = [b'0'; ID_LENGTH];
    for digit in digits.iter_mut().rev() {
        let value = u8::try_from(number % 36).ok()?;
        *digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
        number /= 36;
    }
    (number == 0).then(|| digits.iter().map(|digit| char::from(*digit)).collect())
}

/// 122 bits around the version and the variant.
fn spread(number: u128) -> String {
    let (high, middle, low) = (number >> 74, (number >> 62) & 0xfff, number & ((1 << 62) - 1));
    random::uuid_from(((high << 80) | (middle << 64) | low).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_and_its_uuid_are_computed_of_each_other() {
        for id in ["00000000000000000000", "zzzzzzzzzzzzzzzzzzzz", "k3f9a0c1b2d4e5f6g7h8", "abcdefghij0123456789"] {
            let uuid = uuid(id);
            assert_eq!(template_id(&uuid).as_deref(), Some(id), "{uuid}");
            assert_eq!(template_id(&uuid.to_uppercase()).as_deref(), Some(id));
            assert!(crate::template::name::is_uuid(&uuid));
            // As the SDKs test it: a version of 1 to 5, and the usual variant.
            assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        }
        assert_ne!(uuid("base"), uuid("code-interpreter"));
        for other in ["", "base", "ffffffff-ffff-4fff-bfff-ffffffffffff", "00000000-0000-1000-8000-000000000000"] {
            assert_eq!(template_id(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_of_the_dialect_leads_to_one_that_a_template_can_have() {
        for (name, template) in [("My-Snapshot", "my-snapshot"), ("app:1.0", "app..1.0"), ("team/app", "team._app")] {
            assert_eq!(template_name(name), template);
            crate::template::name::check_name(template).unwrap();
        }
    }
}
