//! Processes: how to start, name and find one, and how it ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where programs are looked for unless the sandbox or the process says otherwise: the user's own, then stand-ins for programs
/// of the template that need one (`/opt/cove/shims`), the template's, and last what most templates have under another
/// name (`/opt/cove/bin`). A leading `~/` is the user's home.
pub const PATH: &str =
    "~/.local/bin:/opt/cove/shims:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cove/bin";

/// The locale: every character, and no country's habits.
pub const LANG: &str = "C.UTF-8";

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments, looked up in `PATH` of the process's environment.
    Argv(Vec<String>),
    /// A line for `/bin/bash -l -c`, or `/bin/sh -c` where there is no bash.
    Shell(String),
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Where the process's standard input, output and error go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdio {
    /// Standard input is empty; output and error are separate streams.
    #[default]
    Closed,
    /// Standard input is a pipe the host writes to; output and error are separate streams.
    Piped,
    /// All three are one terminal; the process leads its session.
    Terminal(TerminalSize),
    /// Standard input is a socket: the process reads packets of the host, and packets for its copies (see
    /// [`Spec::copy_of`]). Output and error are separate streams.
    Socket,
}

/// What happens to the process when the connection that started it closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It continues; its output is kept for the next reader.
    #[default]
    Keep,
    /// Its process group is killed.
    Kill,
}

/// Everything needed to start a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub command: Command,
    /// On top of the sandbox's own environment, which is on top of `HOME`, `USER`, `LOGNAME`, `SHELL`, `LANG` and `PATH`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The user's home where absent. A directory that does not exist is an error, not a fallback.
    #[serde(default)]
    pub cwd: Option<String>,
    /// A name of the sandbox's `/etc/passwd`, a uid, or `uid:gid`. The sandbox's default user where absent.
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub stdio: Stdio,
    /// A name to find the process by later; it need not be unique: the newest process with the tag is meant.
    #[serde(default)]
    pub tag: Option<String>,
    /// The whole process group is killed after this time and the exit says so.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub on_disconnect: OnDisconnect,
    /// The tag of a process with [`Stdio::Socket`], of the same user, that copies itself (fork) instead of running the
    /// command; the command is only listed. Only [`Stdio::Closed`] and [`Stdio::Piped`] are possible. That process gets
    /// one packet, `{"env": {…}, "directories": […]}` with descriptors for the copy's three streams. The copy, orphaned
    /// so that it is the guest's child, answers `{"ready": true}` or `{"failed": errno}` for a directory it cannot
    /// enter; that process answers `{"refused": "why"}` if a copy is impossible. `NotFound` if no process has the tag,
    /// `WrongState` if it refuses: run the command then.
    #[serde(default)]
    pub copy_of: Option<String>,
}

impl Spec {
    pub fn new(command: Command) -> Self {
        Spec {
            command,
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdio: Stdio::Closed,
            tag: None,
            timeout_ms: None,
            on_disconnect: OnDisconnect::Keep,
            copy_of: None,
        }
    }
}

/// Which process is meant. A process stays findable after its exit until [`crate::Request::Forget`] or until more
/// than the guest's limit of finished processes have piled up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    Pid(u32),
    /// The newest process with the tag.
    Tag(String),
    /// The newest process with the tag that has not ended.
    Living(String),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code, if the process exited.
    #[serde(default)]
    pub code: Option<i32>,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Killed because [`Spec::timeout_ms`] expired.
    #[serde(default)]
    pub timed_out: bool,
    /// The kernel's out-of-memory killer ended a process of the sandbox while this one ran.
    #[serde(default)]
    pub out_of_memory: bool,
}

impl Exit {
    /// As a shell reports it: the code, or 128 + signal.
    pub fn status(&self) -> i32 {
        self.code.unwrap_or_else(|| 128 + self.signal.unwrap_or(0))
    }
}

/// A process as the guest lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    pub pid: u32,
    #[serde(default)]
    pub tag: Option<String>,
    /// As it was asked for.
    pub command: Command,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub terminal: bool,
    pub started_at_ms: u64,
    /// Absent while it runs.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Bytes of output so far, all streams together: where an attach that misses nothing would begin.
    pub output_end: u64,
    /// The oldest byte still kept.
    pub output_start: u64,
}
