//! What a sandbox should be: the engine's whole input, as data.
//!
//! A `Spec` is written beside the sandbox's files before anything else happens, so that a server that comes back
//! knows what it finds. Checks that need no kernel are here; what only the kernel can refuse is refused at launch.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// 20 lower-case letters and digits: fits a DNS label, a cgroup name and a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    pub const LENGTH: usize = 20;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let fits = text.len() == Self::LENGTH && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if fits { Ok(SandboxId(text.to_owned())) } else { Err(InvalidId) }
    }
}

impl TryFrom<String> for SandboxId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> String {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox id is 20 lower-case letters and digits")]
pub struct InvalidId;

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
        if matches!(&self.root, Root::Layers(layers) if layers.is_empty()) {
            return invalid("a sandbox needs at least one layer".into());
        }
        for mount in &self.mounts {
            check_target(&mount.target).map_or(Ok(()), invalid)?;
        }
        Ok(())
    }
}

/// Why nothing may be mounted there.
fn check_target(target: &std::path::Path) -> Option<String> {
    use std::path::Component;
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

/// What the sandbox starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// The host's own `/usr` under a generated `/etc` and `/home/user`.
    Base,
    /// The same with layers over the host's `/usr`, top first; ids in them are 0-based.
    BaseWith(Vec<PathBuf>),
    /// Read-only layers, top first; ids in them are 0-based whatever uid range the sandbox gets.
    Layers(Vec<PathBuf>),
}

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Loopback only.
    None,
    /// Through the egress proxy, as the policy allows.
    Full(Egress),
}

/// What may be reached from inside. Private, link-local and metadata addresses and the host itself are refused unless
/// an entry of `allow` names them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Egress {
    /// Wins over `deny` and over the built-in refusals.
    #[serde(default)]
    pub allow: Vec<Target>,
    #[serde(default)]
    pub deny: Vec<Target>,
    /// What happens to a connection that no entry names.
    #[serde(default)]
    pub otherwise: Verdict,
    /// Resolvers that names are asked of; the host's own where empty.
    #[serde(default)]
    pub resolvers: Vec<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    #[default]
    Allow,
    Deny,
}

/// Addresses and ports of an egress rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub address: IpAddr,
    pub prefix: u8,
    /// All ports where absent.
    #[serde(default)]
    pub port: Option<u16>,
}

/// A host folder shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}
