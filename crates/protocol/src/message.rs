//! Requests, replies, events and failures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::file::{Change, Entry, Match, Replaced, WriteMode};
use crate::process::{Exit, Info, Selector, Spec, TerminalSize};

/// The first frame of a connection: what the host wants.
///
/// In comments: `→` what the host may stream after the request, `←` what the guest sends after its reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Reply [`Reply::Pong`].
    Ping,
    /// Sets what later processes inherit. Reply [`Reply::Done`].
    Configure {
        /// Replaces the sandbox's environment.
        #[serde(default)]
        env: Option<BTreeMap<String, String>>,
        #[serde(default)]
        default_user: Option<String>,
        #[serde(default)]
        default_cwd: Option<String>,
    },
    /// Ends the sandbox: SIGTERM to all, `grace_ms` later SIGKILL, then the guest exits. Reply [`Reply::Done`] first.
    Shutdown { grace_ms: u64 },

    /// Starts a process and streams it. Reply [`Reply::Started`]. → Stdin, Control, End (closes stdin). ← Stdout, Stderr or
    /// Pty, then [`Event::Exited`], then End.
    Start(Spec),
    /// Joins a running or finished process at byte `from` of its output. As `Start` otherwise; the connection's close
    /// never kills. [`Event::Lost`] reports bytes that are no longer kept.
    Attach {
        process: Selector,
        /// The first byte wanted, all streams counted together; absent = only what comes from now on.
        #[serde(default)]
        from: Option<u64>,
    },
    /// Reply [`Reply::Processes`].
    Processes,
    /// To the process alone, or to its whole group. Reply [`Reply::Done`].
    Signal {
        process: Selector,
        signal: i32,
        #[serde(default)]
        group: bool,
    },
    /// Bytes for stdin from a connection of their own. → Stdin…, End. Reply [`Reply::Done`] after the End.
    Input { process: Selector },
    /// Reply [`Reply::Done`].
    CloseStdin { process: Selector },
    /// Reply [`Reply::Done`].
    Resize { process: Selector, size: TerminalSize },
    /// Waits for the end without reading output. Reply [`Reply::Exited`].
    Wait { process: Selector },
    /// Drops a finished process with its output. Reply [`Reply::Done`].
    Forget { process: Selector },

    /// Reply [`Reply::Entry`]; of the link itself with `follow` false.
    Stat {
        path: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        follow: bool,
    },
    /// Reply [`Reply::Done`], ← [`Event::Entries`] in batches, End. `depth` 1 is the directory itself.
    List {
        path: String,
        #[serde(default)]
        user: Option<String>,
        depth: u32,
    },
    /// Reply [`Reply::Entry`], ← Data…, End. `length` absent = to the end.
    Read {
        path: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        offset: u64,
        #[serde(default)]
        length: Option<u64>,
    },
    /// → Data…, End. Reply [`Reply::Entry`] at the end. A connection that closes before End leaves the old file. A
    /// symlink is written through, also one whose target does not exist yet.
    Write {
        path: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        how: WriteMode,
        /// Permission bits of a new file; 0644 where absent.
        #[serde(default)]
        mode: Option<u32>,
        /// Makes missing parent directories.
        #[serde(default)]
        parents: bool,
    },
    /// With parents. Reply [`Reply::Made`], which says whether it existed already.
    MakeDirectory {
        path: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        mode: Option<u32>,
    },
    /// Reply [`Reply::Entry`] of the new name.
    Move {
        from: String,
        to: String,
        #[serde(default)]
        user: Option<String>,
    },
    /// A directory with all it holds only with `recursive`. Reply [`Reply::Done`].
    Remove {
        path: String,
        #[serde(default)]
        user: Option<String>,
        recursive: bool,
    },
    /// Any of the three; `owner` and `group` are names or numbers. Reply [`Reply::Entry`].
    SetAttributes {
        path: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        mode: Option<u32>,
        #[serde(default)]
        owner: Option<String>,
        #[serde(default)]
        group: Option<String>,
    },
    /// Replaces all extended attributes whose names begin with `user.{prefix}` by `user.{prefix}{key}` for each of
    /// `values`. Reply [`Reply::Entry`].
    SetMetadata {
        path: String,
        #[serde(default)]
        user: Option<String>,
        prefix: String,
        values: BTreeMap<String, String>,
    },
    /// Reply [`Reply::Entry`] of the link.
    Symlink {
        path: String,
        target: String,
        #[serde(default)]
        user: Option<String>,
    },
    /// By file name, with `*`, `?` and `[…]`; a pattern without them matches any name that contains it. Reply
    /// [`Reply::Done`], ← [`Event::Entries`], End.
    Find {
        path: String,
        pattern: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        limit: Option<u32>,
    },
    /// Lines that contain `pattern`, literally. Binary files are ignored. Reply [`Reply::Done`], ← [`Event::Matches`],
    /// End.
    Grep {
        path: String,
        pattern: String,
        #[serde(default)]
        user: Option<String>,
        #[serde(default)]
        limit: Option<u32>,
    },
    /// Literal replacement in each of the files. Reply [`Reply::Replaced`].
    Replace {
        paths: Vec<String>,
        pattern: String,
        replacement: String,
        #[serde(default)]
        user: Option<String>,
    },
    /// Reply [`Reply::Done`] once the watch is set up, ← [`Event::Changes`] until the host closes.
    Watch {
        path: String,
        #[serde(default)]
        user: Option<String>,
        recursive: bool,
    },
    /// A tar archive of the path's content. Reply [`Reply::Done`], ← Data…, End.
    TarOut {
        path: String,
        #[serde(default)]
        user: Option<String>,
    },
    /// Unpacks a tar archive below the path, which is made if it is missing, and never outside it. Root keeps the
    /// archive's owners; for other users all files become theirs. → Data…, End. Reply [`Reply::Done`].
    TarIn {
        path: String,
        #[serde(default)]
        user: Option<String>,
    },

    /// Connects to a TCP port of the sandbox's loopback. After [`Reply::Done`] the connection is a raw pipe, no frames.
    Dial { port: u16 },
    /// Reply [`Reply::Ports`].
    Ports,
    /// Reply [`Reply::Usage`].
    Usage,
}

/// The guest's answer to a request that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Done,
    Pong {
        version: u32,
        uptime_ms: u64,
    },
    /// `output_start` is the offset of the first byte that follows.
    Started {
        pid: u32,
        #[serde(default)]
        output_start: u64,
    },
    Processes {
        processes: Vec<Info>,
    },
    Exited {
        exit: Exit,
    },
    Entry {
        entry: Entry,
    },
    Made {
        entry: Entry,
        existed: bool,
    },
    Replaced {
        files: Vec<Replaced>,
    },
    Ports {
        ports: Vec<Port>,
    },
    Usage {
        usage: Usage,
    },
}

/// Something that happened while an operation streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Exited {
        exit: Exit,
    },
    /// This many bytes of output were dropped before the reader attached.
    Lost {
        bytes: u64,
    },
    Entries {
        entries: Vec<Entry>,
    },
    Matches {
        matches: Vec<Match>,
    },
    Changes {
        changes: Vec<Change>,
    },
    /// The kernel's queue overflowed and changes were missed: list the directory again.
    Overflow,
}

/// What the host may send to a running process on the connection that streams it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "control", rename_all = "snake_case")]
pub enum Control {
    Resize {
        size: TerminalSize,
    },
    Signal {
        signal: i32,
        #[serde(default)]
        group: bool,
    },
}

/// A port that something in the sandbox listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub port: u16,
    pub address: String,
    #[serde(default)]
    pub pid: Option<u32>,
    #[serde(default)]
    pub process: Option<String>,
}

/// What the guest sees from inside; the host reads limits and accounts from its cgroups.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub disk_used: u64,
    pub disk_total: u64,
    pub inodes_used: u64,
    pub inodes_total: u64,
    pub processes: u32,
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// Lower case, no full stop, names the thing: `read /etc/shadow: permission denied`.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    NotFound,
    /// The user or group is not in the sandbox's files.
    UnknownUser,
    AlreadyExists,
    PermissionDenied,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    /// Out of disk, inodes, processes or descriptors.
    Exhausted,
    InvalidArgument,
    /// The process has ended, or has no stdin or terminal.
    WrongState,
    /// Nothing listens on the dialled port.
    Refused,
    /// The guest does not know this request: it is older than the host.
    Unsupported,
    Internal,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Command;

    #[test]
    fn a_request_without_its_optional_fields_is_understood() {
        let request: Request = serde_json::from_str(r#"{"op":"start","command":{"shell":"echo hi"}}"#).unwrap();
        assert_eq!(request, Request::Start(Spec::new(Command::Shell("echo hi".into()))));
    }

    #[test]
    fn fields_of_a_newer_host_are_passed_over() {
        let request: Request = serde_json::from_str(r#"{"op":"dial","port":80,"colour":"blue"}"#).unwrap();
        assert_eq!(request, Request::Dial { port: 80 });
    }
}
