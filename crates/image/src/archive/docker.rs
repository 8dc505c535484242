//! What `docker save` writes: `manifest.json` with configs and layers by name.

use std::fs::File;
use std::sync::Arc;

use serde::Deserialize;

use super::index::Index;
use super::{Error, Image, Layer, Store};
use crate::config::Config;
use crate::digest::Digest;
use crate::manifest::{LARGEST, Platform, or_nothing};

pub(super) const MANIFEST: &[u8] = b"manifest.json";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    #[serde(default, deserialize_with = "or_nothing")]
    repo_tags: Vec<String>,
    #[serde(deserialize_with = "or_nothing")]
    layers: Vec<String>,
}

/// A root can have a `manifest.json` of its own.
pub(super) fn is_docker(file: &Arc<File>, index: &Index) -> Result<bool, Error> {
    let Some(section) = index.find(file, MANIFEST).filter(|section| section.length() <= LARGEST) else {
        return Ok(false);
    };
    Ok(serde_json::from_slice::<Vec<Entry>>(&section.whole()?).is_ok_and(|entries| !entries.is_empty()))
}

pub(super) fn image(store: &Store, name: Option<&str>, platform: &Platform) -> Result<Image, Error> {
    let entries: Vec<Entry> =
        serde_json::from_slice(&store.document(MANIFEST)?).map_err(|error| Error::Broken(error.to_string()))?;
    let there = || {
        let names: Vec<&str> = entries.iter().flat_map(|entry| &entry.repo_tags).map(String::as_str).take(32).collect();
        if names.is_empty() { "none with a name".to_owned() } else { names.join(", ") }
    };
    let entry = match (name, entries.as_slice()) {
        (None, [only]) => only,
        (None, _) => return Err(Error::Several(there())),
        (Some(name), _) => {
            let is_meant = |tag: &String| tag == name || tag.strip_suffix(":latest") == Some(name);
            let found = entries.iter().find(|entry| entry.repo_tags.iter().any(is_meant));
            found.ok_or_else(|| Error::NotThere { wanted: name.to_owned(), there: there() })?
        }
    };
    let bytes = store.document(entry.config.as_bytes())?;
    let config = Config::parse(&bytes)?;
    config.check_platform(platform)?;
    config.check_layers(entry.layers.len())?;
    let mut layers = Vec::new();
    for (path, diff_id) in entry.layers.iter().zip(&config.rootfs.diff_ids) {
        layers.push(Layer { diff_id: Some(*diff_id), section: store.get(path.as_bytes())?, digest: None });
    }
    Ok(Image { names: entry.repo_tags.clone(), digest: Some(Digest::of(&bytes)), config, layers })
}
