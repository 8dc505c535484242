//! Layers of overlays back into an image that other programs load.
//!
//! A layer on disk has the shape of an overlay's upper: a deleted name is a character device 0/0, a replaced directory has
//! `user.overlay.opaque`. A layer of an image says the same with `.wh.NAME` and `.wh..wh..opq`. [`layer`] translates one;
//! [`flat`] writes what a stack of them looks like from above, as a single layer.
//!
//! ```text
//!  directory ─▶ walk ─▶ tar ─▶ digest (diff id) ─▶ gzip │ zstd ─▶ digest (blob), size ─▶ file
//! ```
//!
//! An archive needs a blob's size and name before its content: so layers go into files of the caller's first, and
//! [`archive`] puts them together, in one tar that is an OCI layout and what `docker load` reads.

mod walk;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use serde_json::json;

use crate::config::{Config, Rootfs};
use crate::digest::{Digest, Hashing, Verified};
use crate::manifest::{
    Annotations, Descriptor, Index, Manifest, OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_LAYER_GZIP, OCI_MANIFEST, Platform,
};
use crate::tar::{self, Entry, Kind, Time};
use walk::{Walk, Whiteouts};

pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// How large an export may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of all files together, holes included: a tar of ours has none.
    pub bytes: u64,
    pub entries: u64,
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 64 << 30, entries: 4_000_000, depth: 256 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("export {path}: {why}")]
    Refused { path: String, why: String },
    #[error("export {path}: {errno}")]
    Read { path: String, errno: Errno },
    #[error("write the export: {0}")]
    Write(#[from] io::Error),
}

/// One directory of a layer: its files are below `prefix` in the image (`""`: at the top).
#[derive(Debug)]
pub struct Part {
    pub directory: OwnedFd,
    pub prefix: String,
}

impl Part {
    /// At the top.
    pub fn new(directory: OwnedFd) -> Self {
        Part { directory, prefix: String::new() }
    }
}

/// A layer that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// As it lies in the file.
    pub descriptor: Descriptor,
    /// Of the tar in it.
    pub diff_id: Digest,
    pub entries: u64,
    pub skipped: Skipped,
}

/// What cannot be in an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Sockets and devices.
    pub specials: u64,
    /// Names that begin with `.wh.`: others would take them for deletions.
    pub names: u64,
}

/// One layer, with its deletions.
pub fn layer(parts: &[Part], out: impl Write, compression: Compression, limits: &Limits) -> Result<Written, Error> {
    written(out, compression, limits, Whiteouts::Keep, |walk| {
        for part in parts {
            walk.part(&[part])?;
        }
        Ok(())
    })
}

/// What the layers, lowest first, look like from above. Parts with the same prefix lie upon each other.
pub fn flat(
    layers: &[Vec<Part>],
    out: impl Write,
    compression: Compression,
    limits: &Limits,
) -> Result<Written, Error> {
    let mut prefixes: Vec<&str> = layers.iter().flatten().map(|part| part.prefix.as_str()).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    written(out, compression, limits, Whiteouts::Apply, |walk| {
        for prefix in prefixes {
            let stack: Vec<&Part> = layers.iter().rev().flatten().filter(|part| part.prefix == prefix).collect();
            walk.part(&stack)?;
        }
        Ok(())
    })
}

fn written<W: Write>(
    out: W,
    compression: Compression,
    limits: &Limits,
    whiteouts: Whiteouts,
    fill: impl FnOnce(&mut Walk<Hashing<Encoder<Hashing<W>>>>) -> Result<(), Error>,
) -> Result<Written, Error> {
    let encoder = Encoder::new(Hashing::new(out), compression)?;
    let mut walk = Walk::new(tar::Writer::new(Hashing::new(encoder)), *limits, whiteouts);
    fill(&mut walk)?;
    let (writer, entries, skipped) = walk.finish();
    let tar = writer.finish()?;
    let diff_id = tar.digest();
    let mut blob = tar.inner.finish()?;
    blob.flush()?;
    let media_type = match compression {
        Compression::None => OCI_LAYER,
        Compression::Gzip => OCI_LAYER_GZIP,
        Compression::Zstd => OCI_LAYER_ZSTD,
    };
    let descriptor = Descriptor::new(media_type, blob.digest(), blob.bytes);
    Ok(Written { descriptor, diff_id, entries, skipped })
}

enum Encoder<W: Write> {
    Plain(W),
    Gzip(Box<flate2::write::GzEncoder<W>>),
    Zstd(Box<zstd::stream::write::Encoder<'static, W>>),
}

impl<W: Write> Encoder<W> {
    fn new(inner: W, compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Encoder::Plain(inner),
            Compression::Gzip => {
                Encoder::Gzip(Box::new(flate2::write::GzEncoder::new(inner, flate2::Compression::fast())))
            }
            Compression::Zstd => Encoder::Zstd(Box::new(zstd::stream::write::Encoder::new(inner, 3)?)),
        })
    }

    fn finish(self) -> io::Result<W> {
        match self {
            Encoder::Plain(inner) => Ok(inner),
            Encoder::Gzip(inner) => inner.finish(),
            Encoder::Zstd(inner) => inner.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Encoder::Plain(inner) => inner.write(buffer),
            Encoder::Gzip(inner) => inner.write(buffer),
            Encoder::Zstd(inner) => inner.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Encoder::Plain(inner) => inner.flush(),
            Encoder::Gzip(inner) => inner.flush(),
            Encoder::Zstd(inner) => inner.flush(),
        }
    }
}

/// An image of layers that were written: its manifest, and its config's bytes. [`crate::registry`] pushes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub manifest: Manifest,
    pub config: Vec<u8>,
    platform: Platform,
}

impl Image {
    /// Layers lowest first. The config's own list of layers is replaced.
    pub fn new(config: &Config, layers: &[Written]) -> Result<Self, Error> {
        let host = Platform::host();
        let or = |text: &str, otherwise: String| if text.is_empty() { otherwise } else { text.to_owned() };
        let config = Config {
            os: or(&config.os, host.os),
            architecture: or(&config.architecture, host.architecture),
            rootfs: Rootfs { diff_ids: layers.iter().map(|layer| layer.diff_id).collect(), ..Rootfs::default() },
            ..config.clone()
        };
        let platform = Platform {
            os: config.os.clone(),
            architecture: config.architecture.clone(),
            variant: config.variant.clone(),
        };
        let config = serde_json::to_vec(&config).map_err(io::Error::from)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(OCI_MANIFEST.to_owned()),
            config: Descriptor::new(OCI_CONFIG, Digest::of(&config), config.len() as u64),
            layers: layers.iter().map(|layer| layer.descriptor.clone()).collect(),
        };
        Ok(Image { manifest, config, platform })
    }
}

/// Writes an image as one tar. `layers` are the files that [`layer`] and [`flat`] wrote, in the manifest's order; they are
/// compared with their digests once more. Returns the digest of the manifest.
pub fn archive(image: &Image, layers: &mut [File], names: &[String], out: impl Write) -> Result<Digest, Error> {
    let mut writer = tar::Writer::new(out);
    let blob = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
    let mut written = Vec::new();
    for (descriptor, file) in image.manifest.layers.iter().zip(layers) {
        // An image can have a layer twice.
        if written.contains(&descriptor.digest) {
            continue;
        }
        written.push(descriptor.digest);
        file.seek(SeekFrom::Start(0))?;
        let mut content = Verified::new(file, descriptor.size, descriptor.digest);
        writer.append(&plain(&blob(&descriptor.digest), descriptor.size), &mut content)?;
        // Reads to the end, where the digest is compared.
        if content.read(&mut [0])? != 0 {
            return Err(Error::Write(io::Error::other(format!("the layer {} became longer", descriptor.digest))));
        }
    }
    let manifest = serde_json::to_vec(&image.manifest).map_err(io::Error::from)?;
    let digest = Digest::of(&manifest);
    let mut descriptor = Descriptor::new(OCI_MANIFEST, digest, manifest.len() as u64);
    descriptor.platform = Some(image.platform.clone());
    let entries: Vec<Descriptor> = match names {
        [] => vec![descriptor],
        names => names.iter().map(|name| Descriptor { annotations: called(name), ..descriptor.clone() }).collect(),
    };
    let index = Index { schema_version: 2, media_type: Some(OCI_INDEX.to_owned()), manifests: entries };
    let layers: Vec<String> = image.manifest.layers.iter().map(|layer| blob(&layer.digest)).collect();
    let docker = json!([{"Config": blob(&image.manifest.config.digest), "RepoTags": names, "Layers": layers}]);
    let documents = [
        (blob(&image.manifest.config.digest), image.config.clone()),
        (blob(&digest), manifest),
        ("oci-layout".to_owned(), json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes()),
        ("index.json".to_owned(), serde_json::to_vec(&index).map_err(io::Error::from)?),
        ("manifest.json".to_owned(), docker.to_string().into_bytes()),
    ];
    for (path, bytes) in documents {
        writer.append(&plain(&path, bytes.len() as u64), &bytes[..])?;
    }
    writer.finish()?;
    Ok(digest)
}

/// How an index says what an image is called: containerd wants the whole name, others the tag.
fn called(name: &str) -> Annotations {
    let tag = name.rsplit('/').next().and_then(|last| last.rsplit_once(':')).map_or("latest", |(_, tag)| tag);
    let both = [("io.containerd.image.name", name), ("org.opencontainers.image.ref.name", tag)];
    both.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn plain(path: &str, size: u64) -> Entry {
    Entry {
        path: path.as_bytes().to_vec(),
        link: Vec::new(),
        kind: Kind::File,
        mode: 0o644,
        user: 0,
        group: 0,
        size,
        modified: Time::default(),
        attributes: Vec::new(),
        parts: None,
    }
}

#[cfg(test)]
mod tests;
