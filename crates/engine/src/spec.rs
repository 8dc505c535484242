//! What a sandbox should be: the engine's whole input, as data.
//!
//! A `Spec` is written beside the sandbox's files before anything else happens, so that a server that comes back
//! knows what it finds. Checks that need no kernel are here; what only the kernel can refuse is refused at launch.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

pub use cove_policy::{Egress, Network, Target, Verdict};
pub use cove_protocol::{InvalidId, LayerId, SandboxId, VolumeId};
use serde::{Deserialize, Serialize};

/// Everything the engine needs to make a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub id: SandboxId,
    pub root: Root,
    pub storage: Storage,
    #[serde(default)]
    pub durability: Durability,
    pub limits: Limits,
    pub network: Network,
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// What `hostname` says inside.
    pub hostname: String,
    /// What every process inherits.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The user of commands that name none; a name or number of the sandbox's passwd file.
    pub default_user: String,
    /// The directory of commands that name none; the user's home where absent.
    #[serde(default)]
    pub default_cwd: Option<String>,
}

impl Spec {
    /// Refuses what can be refused without the kernel.
    pub fn check(&self) -> Result<(), crate::Error> {
        let invalid = |text: String| Err(crate::Error::Invalid(text));
        let label = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
        if self.hostname.is_empty() || self.hostname.len() > 63 || !label(&self.hostname) {
            return invalid(format!("host name {:?} is not 1 to 63 letters, digits, '-' and '.'", self.hostname));
        }
        if self.root.under == Under::Nothing && self.root.over.is_empty() {
            return invalid("a sandbox needs at least one layer".into());
        }
        for mount in &self.mounts {
            check_target(&mount.target).map_or(Ok(()), invalid)?;
            if let Source::Volume { subpath: Some(subpath), .. } = &mount.source {
                check_subpath(subpath).map_or(Ok(()), invalid)?;
            }
        }
        Ok(())
    }
}

/// Why nothing may be mounted there.
fn check_target(target: &Path) -> Option<String> {
    let shown = target.display();
    let mut parts = target.components();
    if parts.next() != Some(Component::RootDir) || target.to_str().is_none() {
        return Some(format!("mount target {shown} is not an absolute path"));
    }
    match parts.clone().next() {
        None => return Some("nothing can be mounted over the root of a sandbox".into()),
        Some(Component::Normal(first)) if ["proc", "dev", "sys"].iter().any(|name| first == *name) => {
            return Some(format!("nothing can be mounted at {shown}: /proc, /dev and /sys are the sandbox's own"));
        }
        Some(_) => {}
    }
    let plain = parts.all(|part| matches!(part, Component::Normal(_)));
    (!plain).then(|| format!("mount target {shown} leads through '..'"))
}

/// Why it is no place in a volume.
fn check_subpath(subpath: &Path) -> Option<String> {
    let plain = subpath.components().all(|part| matches!(part, Component::Normal(_)));
    let fits = plain && !subpath.as_os_str().is_empty() && subpath.components().count() <= DEEPEST_SUBPATH;
    (!fits).then(|| format!("subpath {} is not a plain path below the volume, without '..'", subpath.display()))
}

/// Folders of a subpath, each of which may have to be made.
const DEEPEST_SUBPATH: usize = 64;

/// What the sandbox starts from: names, never paths. The layer store finds and holds what they mean.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Root {
    pub under: Under,
    /// Read-only layers, top first; ids in them are 0-based whatever range the sandbox gets.
    pub over: Vec<LayerId>,
}

impl Root {
    /// The host's own `/usr` under a generated `/etc` and `/home/user`.
    pub const fn base() -> Root {
        Root { under: Under::Host, over: Vec::new() }
    }
}

/// What lies below all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Under {
    /// The host's own `/usr` under a generated `/etc` and `/home/user`.
    #[default]
    Host,
    /// The layers are everything.
    Nothing,
}

/// A root as it is written, now and before layers had ids.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
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

impl TryFrom<Written> for Root {
    type Error = NamesNoLayer;

    fn try_from(written: Written) -> Result<Root, NamesNoLayer> {
        let (under, paths) = match written {
            Written::Now { under, over } => return Ok(Root { under, over }),
            Written::Before(Before::Base) => (Under::Host, Vec::new()),
            Written::Before(Before::BaseWith(paths)) => (Under::Host, paths),
            Written::Before(Before::Layers(paths)) => (Under::Nothing, paths),
        };
        // The directory has the layer's name; what was mounted lies in it.
        let named = |part: Component<'_>| part.as_os_str().to_str().and_then(|name| name.parse().ok());
        let layer = |path: PathBuf| path.components().rev().find_map(named).ok_or(NamesNoLayer(path));
        Ok(Root { under, over: paths.into_iter().map(layer).collect::<Result<_, _>>()? })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{} names no layer", .0.display())]
struct NamesNoLayer(PathBuf);

/// Where what the sandbox writes is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// In a tmpfs of the sandbox's own: fastest, gone with its processes, counts towards its memory.
    Memory,
    /// In the data directory: survives stop and restart.
    Disk,
}

/// What a crash of the host may lose. A crash of a server or an engine loses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// What was synced inside survives.
    #[default]
    Durable,
    /// Syncs are not carried out, and the end of the sandbox waits for none: for files that are gone with it anyway.
    Volatile,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Processors; 0.5 is half of one.
    pub cpus: f64,
    /// Bytes of memory, swap included.
    pub memory: u64,
    pub pids: u32,
    /// Bytes the sandbox may write; `None` only where the operator allows unlimited disks.
    pub disk: Option<u64>,
    /// Files the sandbox may make, where the backing can count them.
    #[serde(default)]
    pub inodes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { cpus: 1.0, memory: 1 << 30, pids: 512, disk: Some(3 << 30), inodes: None }
    }
}

/// A folder shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: Source,
    pub target: PathBuf,
    pub access: Access,
}

/// What is shown. A path is written as its text alone, as it was before there were volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Source {
    /// A folder or file of the host.
    Path(PathBuf),
    /// Storage that outlives sandboxes.
    Volume {
        volume: VolumeId,
        /// A folder in it, made where it is missing; all of the volume where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<PathBuf>,
    },
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Source {
        Source::Path(path)
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Source {
        Source::Path(path.to_owned())
    }
}

impl From<&str> for Source {
    fn from(path: &str) -> Source {
        Source::Path(path.into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_of_earlier_versions_are_read() {
        let (low, high) = ("ab".repeat(32), "0c".repeat(32));
        let over: Vec<LayerId> = vec![high.parse().unwrap(), low.parse().unwrap()];
        let read = |text: &str| serde_json::from_str::<Root>(text);
        assert_eq!(read("\"base\"").unwrap(), Root::base());
        let text = format!(r#"{{"base_with":["/var/lib/cove/layers/{high}/usr","/x/layers/{low}/usr"]}}"#);
        assert_eq!(read(&text).unwrap(), Root { under: Under::Host, over: over.clone() });
        let text = format!(r#"{{"layers":["/d/layers/{high}","/d/layers/{low}/root"]}}"#);
        assert_eq!(read(&text).unwrap(), Root { under: Under::Nothing, over: over.clone() });
        let now = Root { under: Under::Nothing, over };
        assert_eq!(read(&serde_json::to_string(&now).unwrap()).unwrap(), now);
        for wrong in ["\"other\"", r#"{"base_with":["/usr"]}"#, r#"{"under":"host","over":["../etc"]}"#, "{}"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mounts_of_earlier_versions_are_read_and_a_subpath_stays_in_its_volume() {
        let old = r#"{"source":"/srv/data","target":"/data","access":"read_only"}"#;
        let mount: Mount = serde_json::from_str(old).unwrap();
        assert_eq!(mount.source, Source::Path("/srv/data".into()));
        assert_eq!(serde_json::to_string(&mount).unwrap(), old);
        let volume = Source::Volume { volume: "v".repeat(20).parse().unwrap(), subpath: Some("a/b".into()) };
        let again: Source = serde_json::from_str(&serde_json::to_string(&volume).unwrap()).unwrap();
        assert_eq!(again, volume);
        assert_eq!(check_subpath(Path::new("a/b")), None);
        for wrong in ["", "..", "a/../b", "/etc", "a/../../etc", &"d/".repeat(65)] {
            assert!(check_subpath(Path::new(wrong)).is_some(), "{wrong}");
        }
    }
}
