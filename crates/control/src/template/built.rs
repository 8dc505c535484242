//! Templates that were built on this machine: a note in `templates/`, layers beside it in `layers/`.
//!
//! The note is read whenever a template is asked for, so a build is there for the next sandbox without a restart, and
//! sandboxes that use an earlier build keep its layers ([`super::unused`] removes them after the last one).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub const CODE_INTERPRETER: &str = "code-interpreter";

/// The part of a layer that is mounted over `/usr`.
const USR: &str = "usr";

/// The directory in a layer that a recipe may leave notes in, and where matplotlib keeps its list of fonts.
pub const ROOM: &str = "usr/local/share/cove";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Digests, top first.
    pub layers: Vec<String>,
    /// The Python that its packages are for, as `3.11`; empty where it has none.
    pub python: String,
    /// The packages that were asked for.
    pub packages: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub bytes: u64,
    pub built_at: String,
}

/// Why a template lacks something. People read this sentence.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("not built on this machine: sandboxes have base's python3 alone until `cove template build {0}` has run")]
    NotBuilt(String),
    #[error("layer {1} of {0} is missing: sandboxes have base alone until `cove template build {0}` has run again")]
    LayerMissing(String, String),
    #[error(
        "{0} was built for Python {1}, which this machine has no more: sandboxes have base alone until `cove template build {0}` has run again"
    )]
    OtherPython(String, String),
    #[error("the note of template {0} cannot be read ({1}): `cove template build {0}` writes it again")]
    Unreadable(String, String),
}

pub fn layers_of(data: &Path) -> PathBuf {
    data.join("layers")
}

fn note_of(data: &Path, name: &str) -> PathBuf {
    data.join("templates").join(format!("{name}.json"))
}

impl Built {
    pub fn load(data: &Path, name: &str) -> Result<Built, Unusable> {
        let text = match fs::read(note_of(data, name)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unusable::NotBuilt(name.into())),
            Err(error) => return Err(Unusable::Unreadable(name.into(), error.to_string())),
        };
        let built: Built =
            serde_json::from_slice(&text).map_err(|error| Unusable::Unreadable(name.into(), error.to_string()))?;
        for (layer, path) in built.layers.iter().zip(built.roots(data)) {
            let digest = layer.len() == 64 && layer.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !digest || !path.is_dir() {
                return Err(Unusable::LayerMissing(name.into(), layer.chars().take(12).collect()));
            }
        }
        let has = |python: &str| Path::new("/usr/bin").join(format!("python{python}")).exists();
        if !built.python.is_empty() && !has(&built.python) {
            return Err(Unusable::OtherPython(name.into(), built.python));
        }
        Ok(built)
    }

    /// Replaces the note atomically.
    pub fn save(&self, data: &Path, name: &str) -> io::Result<()> {
        fs::create_dir_all(data.join("templates"))?;
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        cove_sys::replacement::replace(&note_of(data, name), &text, 0o644)
    }

    /// The layers over `/usr`, top first.
    pub fn roots(&self, data: &Path) -> Vec<PathBuf> {
        self.layers.iter().map(|layer| layers_of(data).join(layer).join(USR)).collect()
    }
}
