//! Files: what the guest reports about them and what it can do with them.
//!
//! Paths are absolute, or relative to the acting user's home; `~` and `~/…` mean that home. They are resolved by the
//! kernel beneath the sandbox's root with the acting user's rights, so a symlink leads only where that user may go.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// A file as `lstat` sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub path: String,
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names from the sandbox's own passwd and group files; the number as text where they have none.
    pub owner: String,
    pub group: String,
    pub modified_ms: i64,
    pub changed_ms: i64,
    pub accessed_ms: i64,
    /// Where a symlink points.
    #[serde(default)]
    pub target: Option<String>,
    pub inode: u64,
    /// Extended attributes of the `user.` namespace without that prefix; only those that are text, and no more than
    /// [`MAX_METADATA`] bytes of them. Of regular files and directories alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Names and values of a file's [`Entry::metadata`], all together.
pub const MAX_METADATA: usize = 8 << 10;

/// What a write does to an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Replaced at the end in one step: a reader sees the old file or the new one. An interrupted write changes
    /// nothing.
    #[default]
    Replace,
    /// An error if the file exists.
    Create,
    Append,
    /// Bytes go to this offset; the rest stays. Gaps become holes.
    At(u64),
    /// Emptied at once and written in place: the file keeps its inode, and watchers see writes as of an ordinary
    /// program. An interrupted write leaves a part.
    InPlace,
}

/// One line that matched a grep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    pub path: String,
    /// From 1.
    pub line: u64,
    pub text: String,
}

/// The result of a replace in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    pub path: String,
    /// Occurrences replaced.
    pub count: u64,
    #[serde(default)]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    Write,
    Remove,
    /// The old name of a rename; the new one follows as `Create`.
    Rename,
    Chmod,
}

/// One thing that happened below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Relative to the watched directory.
    pub path: String,
    pub kind: ChangeKind,
    /// The file right after the change, if it still existed.
    #[serde(default)]
    pub entry: Option<Entry>,
}
