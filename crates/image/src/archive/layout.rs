//! An OCI layout: `index.json` and blobs named by their digests.

use std::fs::File;
use std::sync::Arc;

use super::index::Index;
use super::{Error, Image, Layer, Store};
use crate::config::Config;
use crate::digest::Digest;
use crate::manifest::{self, Descriptor, Document, LARGEST, Platform};

pub(super) const INDEX: &[u8] = b"index.json";
/// How an index says what its images are called.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
/// An index may lead to an index, and that to a manifest.
const NESTED: usize = 3;

/// A root can have an `index.json` of its own.
pub(super) fn is_layout(file: &Arc<File>, index: &Index) -> Result<bool, Error> {
    if index.find(file, b"oci-layout").is_none() {
        return Ok(false);
    }
    let Some(section) = index.find(file, INDEX).filter(|section| section.length() <= LARGEST) else { return Ok(false) };
    Ok(matches!(manifest::parse(&section.whole()?), Ok(Document::Index(_))))
}

pub(super) fn image(store: &Store, name: Option<&str>, platform: &Platform) -> Result<Image, Error> {
    let Document::Index(index) = manifest::parse(&store.document(INDEX)?)? else {
        return Err(Error::Broken("its index.json is no index".into()));
    };
    let there = || {
        let names: Vec<&str> = index.manifests.iter().flat_map(names).take(32).collect();
        if names.is_empty() { "none with a name".to_owned() } else { names.join(", ") }
    };
    let is_one = || {
        let mut digests = index.manifests.iter().map(|entry| entry.digest);
        digests.next().is_some_and(|first| digests.all(|other| other == first))
    };
    let chosen = match name {
        Some(name) => {
            let found = index.manifests.iter().find(|entry| names(entry).any(|there| there == name));
            found.ok_or_else(|| Error::NotThere { wanted: name.to_owned(), there: there() })?
        }
        None if is_one() => index.manifests.first().ok_or_else(|| Error::Broken("it has no image".into()))?,
        // Without names, they are one image for several platforms.
        None if index.manifests.iter().all(|entry| names(entry).next().is_none()) => index.choose(platform)?,
        None => return Err(Error::Several(there())),
    };
    let called = index.manifests.iter().filter(|entry| entry.digest == chosen.digest).flat_map(names);
    let called = called.map(str::to_owned).collect();
    let mut descriptor = chosen.clone();
    for _ in 0..NESTED {
        match manifest::parse(&verified(store, &descriptor)?)? {
            Document::Index(inner) => descriptor = inner.choose(platform)?.clone(),
            Document::Manifest(manifest) => {
                let config = Config::parse(&verified(store, &manifest.config)?)?;
                config.check_platform(platform)?;
                config.check_layers(manifest.layers.len())?;
                let mut layers = Vec::new();
                for (layer, diff_id) in manifest.layers.iter().zip(&config.rootfs.diff_ids) {
                    let section = blob(store, layer)?;
                    layers.push(Layer { diff_id: Some(*diff_id), section, digest: Some(layer.digest) });
                }
                return Ok(Image { names: called, digest: Some(descriptor.digest), config, layers });
            }
        }
    }
    Err(Error::Broken("its indexes lead to more indexes".into()))
}

fn names(entry: &Descriptor) -> impl Iterator<Item = &str> {
    NAMES.iter().filter_map(|key| entry.annotations.get(*key).map(String::as_str))
}

/// A blob of the size that its descriptor says.
fn blob(store: &Store, descriptor: &Descriptor) -> Result<super::Section, Error> {
    let section = store.get(format!("blobs/sha256/{}", descriptor.digest.hex()).as_bytes())?;
    match section.length() == descriptor.size {
        true => Ok(section),
        false => {
            let (there, said) = (section.length(), descriptor.size);
            Err(Error::Broken(format!("the blob {} has {there} bytes, not {said}", descriptor.digest)))
        }
    }
}

/// All bytes of a manifest or config, compared with its digest.
fn verified(store: &Store, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
    let section = blob(store, descriptor)?;
    if section.length() > LARGEST {
        return Err(manifest::Refused::TooLarge(section.length()).into());
    }
    let bytes = section.whole()?;
    match Digest::of(&bytes) == descriptor.digest {
        true => Ok(bytes),
        false => Err(Error::Broken(format!("the blob {} has another content", descriptor.digest))),
    }
}
