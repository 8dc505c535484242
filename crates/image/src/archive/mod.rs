//! Images in files: what `docker save` and its relatives write, OCI layouts (packed or as a directory), and a plain tar of
//! a root.
//!
//! `docker save` writes `manifest.json` after the layers, and layers that are links to others: so a file is indexed first
//! and read in pieces, never streamed. Names in it are only names: a config's digest is computed, layers are compared
//! with it when they are unpacked, blobs of a layout with their digests while they are read.

mod docker;
mod index;
mod layout;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::config::{self, Config};
use crate::digest::{Digest, Verified};
use crate::manifest::{self, LARGEST, Platform};
use crate::unpack::{Decoder, Limits, Timed};
use index::{Index, Section};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the image archive: {0}")]
    Io(#[from] io::Error),
    #[error("the image archive cannot be read: {0}")]
    Broken(String),
    #[error("the image archive has no image {wanted}; there are: {there}")]
    NotThere { wanted: String, there: String },
    #[error("the image archive has several images, say which: {0}")]
    Several(String),
    #[error("{0}")]
    Manifest(#[from] manifest::Refused),
    #[error("{0}")]
    Config(#[from] config::Refused),
}

/// Bytes that are decoded at a time.
pub const PIECE: u64 = 16 << 20;

/// What kind of archive it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `docker save`.
    Docker,
    /// OCI layout.
    Layout,
    /// The files themselves.
    Root,
}

pub struct Archive {
    store: Store,
    kind: Kind,
}

/// Where the parts are.
enum Store {
    Packed { file: Arc<File>, index: Index },
    Directory(OwnedFd),
}

/// One image of an archive, to be unpacked.
#[derive(Debug)]
pub struct Image {
    /// What the archive calls it.
    pub names: Vec<String>,
    /// Of its manifest, or of its config where there is none. A plain tar has none before it is read.
    pub digest: Option<Digest>,
    pub config: Config,
    pub layers: Vec<Layer>,
}

/// One layer, lowest first.
#[derive(Debug)]
pub struct Layer {
    /// What it unpacks to; a plain tar does not say.
    pub diff_id: Option<Digest>,
    section: Section,
    /// Of the bytes as they are in the archive, where it says.
    digest: Option<Digest>,
}

impl Layer {
    pub fn bytes(&self) -> u64 {
        self.section.length()
    }

    /// The layer as it is in the archive; [`crate::unpack::Tree::apply`] takes it.
    pub fn open(&self) -> Box<dyn Read + Send> {
        let section = self.section.clone();
        match self.digest {
            Some(digest) => Box::new(Verified::new(section, self.section.length(), digest)),
            None => Box::new(section),
        }
    }
}

impl Archive {
    /// Over a file. A compressed one is decoded into `scratch` first, within the limits.
    pub fn open(file: File, scratch: impl FnOnce() -> io::Result<File>, limits: &Limits) -> Result<Self, Error> {
        Archive::open_while(file, scratch, limits, &|| Ok(()))
    }

    /// The same. While one is decoded, `go_on` is asked after each [`PIECE`]: a small file can become a large one.
    pub fn open_while(
        mut file: File,
        scratch: impl FnOnce() -> io::Result<File>,
        limits: &Limits,
        go_on: &dyn Fn() -> io::Result<()>,
    ) -> Result<Self, Error> {
        file.seek(SeekFrom::Start(0))?;
        let mut decoder = Decoder::new(Timed::new(&file, limits.deadline))?;
        if decoder.is_plain() {
            drop(decoder);
        } else {
            let mut decoded = scratch()?;
            let mut bytes = 0;
            loop {
                let copied = io::copy(&mut decoder.by_ref().take(PIECE), &mut decoded)?;
                bytes += copied;
                if bytes > limits.bytes {
                    return Err(Error::Broken(format!("it is larger than {} bytes when unpacked", limits.bytes)));
                }
                if copied == 0 {
                    break;
                }
                go_on()?;
            }
            drop(decoder);
            file = decoded;
        }
        let index = Index::of(&mut file, limits)?;
        let file = Arc::new(file);
        let kind = match index.has_all() {
            false => Kind::Root,
            true if layout::is_layout(&file, &index)? => Kind::Layout,
            true if docker::is_docker(&file, &index)? => Kind::Docker,
            true => Kind::Root,
        };
        Ok(Archive { store: Store::Packed { file, index }, kind })
    }

    /// A directory with an OCI layout.
    pub fn open_directory(directory: OwnedFd) -> Result<Self, Error> {
        let archive = Archive { store: Store::Directory(directory), kind: Kind::Layout };
        match archive.store.find(b"index.json")? {
            Some(_) => Ok(archive),
            None => Err(Error::Broken("the directory has no index.json: it is no OCI layout".into())),
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The image of this name, or the only one.
    pub fn image(&self, name: Option<&str>, platform: &Platform) -> Result<Image, Error> {
        match (self.kind, &self.store) {
            (Kind::Docker, store) => docker::image(store, name, platform),
            (Kind::Layout, store) => layout::image(store, name, platform),
            (Kind::Root, Store::Packed { file, .. }) => {
                let section = Section::new(Arc::clone(file), 0, file.metadata()?.len());
                let layers = vec![Layer { diff_id: None, section, digest: None }];
                Ok(Image { names: Vec::new(), digest: None, config: Config::default(), layers })
            }
            (Kind::Root, Store::Directory(_)) => Err(Error::Broken("a directory is no archive".into())),
        }
    }
}

impl Store {
    /// What has this name, if anything does.
    fn find(&self, path: &[u8]) -> Result<Option<Section>, Error> {
        match self {
            Store::Packed { file, index } => Ok(index.find(file, path)),
            Store::Directory(directory) => index::find_in(directory, path),
        }
    }

    fn get(&self, path: &[u8]) -> Result<Section, Error> {
        let name = || String::from_utf8_lossy(path).chars().take(200).collect::<String>();
        self.find(path)?.ok_or_else(|| Error::Broken(format!("{} is missing", name())))
    }

    /// All bytes of a document.
    fn document(&self, path: &[u8]) -> Result<Vec<u8>, Error> {
        let section = self.get(path)?;
        if section.length() > LARGEST {
            return Err(manifest::Refused::TooLarge(section.length()).into());
        }
        section.whole()
    }
}

#[cfg(test)]
mod tests;
