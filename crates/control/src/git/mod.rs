//! Git as typed calls.
//!
//! A door asks for a clone or a status and gets data, or an error that it can match on; only this module parses git's
//! text. The `git` program of the sandbox's own template does the work. The guest starts it as the sandbox's user, so
//! git has exactly the rights of the sandbox's code.
//!
//! ```text
//!   Git::push(credentials) ──▶ guest: sh -c 'exec 3<&0 </dev/null; exec git -c credential.…helper=… push …'
//!            │                                        │
//!            └── username, password over the pipe ────┘  fd 3: read once, by the helper, for one host
//! ```
//!
//! # Credentials, and what remains A username and password go down the standard input of the process that we start and
//! nowhere else: no argument, no environment variable, no URL, no file, no log. The sandbox's own credential helpers
//! are switched off for the call, because git would give them the password to store. Ours answers once and only for the
//! scheme and host that the call is about, so a redirect or a submodule elsewhere gets nothing.
//!
//! What this cannot protect: git needs the password in its memory, and git runs in the sandbox. Code that already runs
//! there as the same user can read the pipe before git does, trace git, or replace `git`; a repository's own hooks run
//! as part of the call. Callers who run code that they do not trust should use a short-lived token for one repository.
//!
//! # Layout
//! * [`run`]: one git process: its arguments, input, credentials, limits
//! * [`remote`]: clone, push, pull, remotes · [`branch`]: branches and checkout
//! * [`work`]: init, add, commit, reset, restore, configuration · [`status`] · [`history`]: log and diff
//! * [`error`]: git's complaints as kinds

mod branch;
mod credentials;
mod error;
mod history;
mod remote;
mod run;
mod status;
mod work;

pub use branch::Branches;
pub use credentials::Credentials;
pub use error::GitError;
pub use history::{Commit, Diff, DiffRange, FileDiff};
pub use remote::{Cloning, Pull, Push, Remote, Tls};
pub use status::{Change, FileStatus, Status};
pub use work::{NewCommit, Reset, ResetMode, Restore, Scope};

use crate::guest::Guest;

/// The git of one sandbox. Paths are absolute, or relative to where the sandbox's commands start.
#[derive(Debug, Clone)]
pub struct Git {
    guest: Guest,
    cwd: Option<String>,
}

impl Git {
    pub fn new(guest: Guest, cwd: Option<String>) -> Self {
        Git { guest, cwd }
    }
}

/// A branch, tag, commit or remote that a caller named. Git would read a name that begins with a dash as an option.
/// Names that git never makes are refused before git runs.
fn revision(kind: &'static str, name: &str) -> Result<String, GitError> {
    let refused = name.is_empty() || name.starts_with('-') || name.bytes().any(|b| b <= b' ' || b == 0x7f);
    if refused {
        return Err(GitError::Invalid(format!("{kind} {name:?} is not a name git accepts")));
    }
    Ok(name.to_owned())
}
