//! Templates that were built for everybody, as `cove run` finds them: a note in `templates/`, layers in the engine's store.
//!
//! The server writes the note when a build is ready, so that the next `cove run` has it without asking. A note that this
//! server's database does not know was written by an earlier version, or beside another data directory whose layers this one
//! shares: the server takes it over (`notes`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cove_protocol::LayerId;
use serde::{Deserialize, Serialize};

use super::Template;
use crate::provider::{Isolation, Limits, Root, Under, local};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Built {
    /// Top first.
    pub layers: Vec<LayerId>,
    /// What lies below them; the host's own programs where absent.
    #[serde(default)]
    pub under: Option<Under>,
    /// The Python that its packages are for, as `3.11`; empty where it has none.
    pub python: String,
    /// The packages that were asked for; of notes of earlier versions alone.
    #[serde(default)]
    pub packages: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub bytes: u64,
    pub built_at: String,
    /// The build whose files these are.
    #[serde(default)]
    pub build: Option<String>,
    #[serde(default)]
    pub aliases: Vec<String>,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub start: Option<String>,
    #[serde(default)]
    pub ready: Option<String>,
    #[serde(default)]
    pub limits: Option<Limits>,
    #[serde(default)]
    pub isolation: Option<Isolation>,
}

/// Why a template lacks something. People read this sentence.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("not built on this machine: `cove template build {0}` builds it")]
    NotBuilt(String),
    #[error("built, but its layer {1} is missing: `cove template build {0}` builds it again")]
    LayerMissing(String, String),
    #[error(
        "built for Python {1}, which is not this machine's python3 any more: `cove template build {0}` builds it again"
    )]
    OtherPython(String, String),
    #[error("built, but its note cannot be read ({1}): `cove template build {0}` writes it again")]
    Unreadable(String, String),
}

fn folder(data: &Path) -> PathBuf {
    data.join("templates")
}

fn note_of(data: &Path, name: &str) -> PathBuf {
    folder(data).join(format!("{name}.json"))
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
        if !has_python(&built.python) {
            return Err(Unusable::OtherPython(name.into(), built.python));
        }
        if let Some(missing) = built.layers.iter().find(|layer| local::is_layer_missing(data, layer)) {
            return Err(Unusable::LayerMissing(name.into(), missing.to_string().chars().take(12).collect()));
        }
        Ok(built)
    }

    /// Templates that have a note.
    pub fn names(data: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(folder(data)) else { return Vec::new() };
        let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned());
        let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
        names.sort();
        names
    }

    /// Replaces the note atomically.
    pub fn save(&self, data: &Path, name: &str) -> io::Result<()> {
        fs::create_dir_all(folder(data))?;
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        cove_sys::replacement::replace(&note_of(data, name), &text, 0o644)
    }

    /// There is none afterwards.
    pub fn remove(data: &Path, name: &str) -> io::Result<()> {
        match fs::remove_file(note_of(data, name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The host's own programs, or nothing, with its layers over them.
    pub fn root(&self) -> Root {
        Root { under: self.under.unwrap_or(Under::Host), over: self.layers.clone() }
    }

    /// Gives a template what the note says of it.
    pub(super) fn describe(self, template: &mut Template) {
        template.image = self.root().into();
        template.built_at = self.built_at.parse().ok();
        template.env = self.env;
        if let Some(description) = self.description {
            template.description = description;
        } else if !self.packages.is_empty() {
            template.description = format!("base with {} for cells with rich results", self.packages.join(", "));
        }
        if !self.aliases.is_empty() {
            template.aliases = self.aliases;
        }
        template.user = self.user.unwrap_or_else(|| std::mem::take(&mut template.user));
        template.cwd = self.cwd;
        template.start = self.start;
        template.ready = self.ready;
        template.limits = self.limits.unwrap_or(template.limits);
        template.isolation = self.isolation;
        template.build = self.build;
    }
}

/// Whether what is for this version runs here; what is for none does. A machine may have several: the one that it calls
/// python3 is what its sandboxes run.
pub(super) fn has_python(version: &str) -> bool {
    let own = host_python();
    version.is_empty()
        || own == version
        || own.is_empty() && Path::new("/usr/bin").join(format!("python{version}")).exists()
}

/// The version of the machine's own Python, as `3.11`; empty where it has none.
pub(super) fn host_python() -> String {
    let version = fs::read_link("/usr/bin/python3").ok().and_then(|path| {
        let name = path.file_name()?.to_str()?.strip_prefix("python")?.to_owned();
        let digits = name.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        (name.contains('.') && digits).then_some(name)
    });
    version.unwrap_or_default()
}
