//! What a sandbox starts from, as names: a provider opens what they mean.
//!
//! ```text
//!   Image ── root ──────── under: the host's /usr, or nothing
//!     │                    over:  layers by id, top first
//!     └───── reference     how others find it: `docker.io/library/python:3.12`
//! ```
//! Our engine needs the root alone; a provider elsewhere the reference. Rows from before layers had ids name
//! directories (`{"base_with": ["…/layers/<id>/usr"]}`); they are read into this form and written in it with the next
//! change.

use std::path::{Component, Path, PathBuf};

use cove_protocol::LayerId;
use serde::{Deserialize, Serialize};

/// What a sandbox starts from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "WrittenImage")]
pub struct Image {
    pub root: Root,
    /// The image's name in a registry, for providers that fetch images themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

impl From<Root> for Image {
    fn from(root: Root) -> Image {
        Image { root, reference: None }
    }
}

/// How a provider gets what sandboxes start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Supply {
    /// As layers, which this server makes and the provider keeps.
    #[default]
    Layers,
    /// It fetches images of registries itself, by their reference.
    Images,
    /// It has templates of its own; a reference is the name of one.
    Templates,
}

/// A stack of files. The default is the host's own programs with nothing over them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "WrittenRoot")]
pub struct Root {
    pub under: Under,
    /// Top first.
    pub over: Vec<LayerId>,
}

/// What lies below all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Under {
    /// The host's `/usr` under a generated `/etc` and `/home/user`.
    #[default]
    Host,
    Nothing,
}

/// As it is, or as the root alone was written before there were images.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenImage {
    Whole {
        root: Root,
        #[serde(default)]
        reference: Option<String>,
    },
    Root(Root),
}

impl From<WrittenImage> for Image {
    fn from(written: WrittenImage) -> Image {
        match written {
            WrittenImage::Whole { root, reference } => Image { root, reference },
            WrittenImage::Root(root) => root.into(),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenRoot {
    Now {
        under: Under,
        #[serde(default)]
        over: Vec<LayerId>,
    },
    Before(Before),
}

/// With the directories of layers.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Before {
    Base,
    BaseWith(Vec<PathBuf>),
    Layers(Vec<PathBuf>),
}

impl TryFrom<WrittenRoot> for Root {
    type Error = NamesNoLayer;

    fn try_from(written: WrittenRoot) -> Result<Root, NamesNoLayer> {
        let (under, paths) = match written {
            WrittenRoot::Now { under, over } => return Ok(Root { under, over }),
            WrittenRoot::Before(Before::Base) => (Under::Host, Vec::new()),
            WrittenRoot::Before(Before::BaseWith(paths)) => (Under::Host, paths),
            WrittenRoot::Before(Before::Layers(paths)) => (Under::Nothing, paths),
        };
        let over = paths.iter().map(|path| layer_of(path)).collect::<Result<_, _>>()?;
        Ok(Root { under, over })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0} names no layer")]
pub struct NamesNoLayer(PathBuf);

/// The layer that a directory of today or of earlier belongs to.
pub(super) fn layer_of(path: &Path) -> Result<LayerId, NamesNoLayer> {
    let name = |part: Component<'_>| part.as_os_str().to_str().and_then(|name| name.parse().ok());
    path.components().rev().find_map(name).ok_or_else(|| NamesNoLayer(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Image {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn roots_of_earlier_versions_are_read() {
        let (low, high) = ("ab".repeat(32), "0c".repeat(32));
        let layers = vec![high.parse().unwrap(), low.parse().unwrap()];
        assert_eq!(read("\"base\""), Image::default());
        let text = format!("{{\"base_with\":[\"/var/lib/cove/layers/{high}/usr\",\"/x/layers/{low}/usr\"]}}");
        assert_eq!(read(&text), Root { under: Under::Host, over: layers.clone() }.into());
        let text = format!("{{\"layers\":[\"/d/layers/{high}\",\"/d/layers/{low}/root\"]}}");
        assert_eq!(read(&text), Root { under: Under::Nothing, over: layers }.into());
        for wrong in ["\"other\"", "{\"base_with\":[\"/usr\"]}", "{\"under\":\"host\",\"over\":[\"../etc\"]}", "{}"] {
            assert!(serde_json::from_str::<Image>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_image_is_read_as_it_was_written() {
        let root = Root { under: Under::Nothing, over: vec![LayerId::new([7; 32])] };
        let image = Image { root, reference: Some("docker.io/library/debian:12".into()) };
        for image in [image.clone(), image.root.into(), Image::default()] {
            assert_eq!(read(&serde_json::to_string(&image).unwrap()), image);
        }
        let written = serde_json::to_string(&Image::default()).unwrap();
        assert_eq!(written, r#"{"root":{"under":"host","over":[]}}"#);
    }
}
