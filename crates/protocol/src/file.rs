//! Files: what the guest tells of them and what it can be asked to do.
//!
//! Paths are absolute, or relative to the acting user's home; `~` and `~/…` mean that home. They are resolved by the
//! kernel beneath the sandbox's root with the acting user's rights, so a symlink leads nowhere that user could not go.

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

/// What a write does to a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Replaced at the end in one step: a reader sees the old or the new, never half. Nothing remains of a write that
    /// was cut off.
    #[default]
    Replace,
    /// An error where the file is there.
    Create,
    Append,
    /// Bytes go to this offset; the rest stays. Leaps leave holes.
    At(u64),
    /// Emptied at once and written in place: the file keeps its inode, and who watches it sees writes, as an ordinary
    /// program would make them. A write that was cut off leaves half.
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

/// What became of one file of a replace.
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
    /// The file as it was right after, where it could still be seen.
    #[serde(default)]
    pub entry: Option<Entry>,
}
