//! Words that a client pins to a file: `X-Metadata-<key>: value` on upload, extended attributes `user.e2b.<key>` on disk.

use std::collections::{BTreeMap, HashMap};

use cove_protocol::Request as Ask;
use http::HeaderMap;

use super::super::connect::Ending;
use super::super::envd::{Envd, ROOT};

pub type Metadata = BTreeMap<String, String>;

/// Before every key on disk, after the kernel's own `user.`.
pub const PREFIX: &str = "e2b.";

const HEADER: &str = "x-metadata-";
/// `user.e2b.` and the key are at most the kernel's 255 bytes.
const MAX_KEY: usize = 246;
const MAX_TOTAL: usize = 4096;

pub fn of(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut metadata = Metadata::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER) else { continue };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(format!("metadata key '{key}' must have 1 to {MAX_KEY} bytes"));
        }
        let printable = value.as_bytes().iter().all(|byte| (0x20..=0x7e).contains(byte));
        let text = value.to_str().ok().filter(|_| printable);
        let text = text.ok_or_else(|| format!("metadata value of '{key}' must be printable ASCII"))?;
        metadata.insert(key.to_owned(), text.to_owned());
    }
    let total: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if total > MAX_TOTAL {
        return Err(format!("metadata of {total} bytes is longer than the limit of {MAX_TOTAL}"));
    }
    Ok(metadata)
}

/// What the dialect shows of a file's attributes.
pub fn shown(attributes: &Metadata) -> HashMap<String, String> {
    let ours = attributes.iter().filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)));
    ours.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// Pins the whole set; what was pinned before goes.
pub async fn store(envd: &Envd, path: &str, metadata: &Metadata) -> Result<(), Ending> {
    let ask = Ask::SetMetadata {
        path: path.to_owned(),
        user: Some(ROOT.into()),
        prefix: PREFIX.into(),
        values: metadata.clone(),
    };
    envd.guest.call(&ask).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn keys_are_lower_case_and_other_headers_are_not_metadata() {
        let metadata = of(&headers(&[("X-Metadata-Author", "me"), ("X-Other", "x")])).unwrap();
        assert_eq!(metadata, Metadata::from([("author".to_owned(), "me".to_owned())]));
    }

    #[test]
    fn what_a_disk_could_not_hold_is_refused() {
        assert!(of(&headers(&[("x-metadata-k", &"v".repeat(5000))])).unwrap_err().contains("limit"));
        assert!(of(&headers(&[("x-metadata-k", "a\tb")])).unwrap_err().contains("printable"));
        assert!(of(&headers(&[(&format!("x-metadata-{}", "k".repeat(247)), "v")])).is_err());
    }
}
