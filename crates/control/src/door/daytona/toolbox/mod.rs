//! The toolbox: what the SDKs do inside one sandbox.
//!
//! The original runs a daemon in every sandbox and proxies to it. Here the host translates each call to the guest
//! protocol; the client cannot tell. All that must outlive a call (sessions, their commands, terminals) lives in the
//! guest as processes with tags, so a server that restarts finds it again.
//!
//! # Layout
//! * [`files`], [`upload`], [`download`] · [`process`]: execute and code-run, with [`typescript`] · [`session`] · [`terminal`]
//! * [`interpreter`] · [`git`] · [`system`]: home, work directory, ports, measurements

mod charts;
mod download;
mod files;
mod git;
mod interpreter;
mod output;
mod process;
mod session;
mod system;
mod terminal;
mod typescript;
mod upload;
mod websocket;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::DefaultBodyLimit;

use crate::door::table::{Needs, Table};
use crate::guest::Guest;
use crate::sandbox::Sandbox;
use crate::{App, Scope};

/// The sandbox that a toolbox call is about. Whoever admits the request puts it into its extensions.
#[derive(Clone)]
pub struct Machine {
    pub id: String,
    pub guest: Guest,
    /// Where commands start and relative paths begin; the user's home where absent.
    pub cwd: Option<String>,
    /// Shared by all requests of this server.
    pub desk: Desk,
    pub app: App,
    pub sandbox: Sandbox,
}

impl Machine {
    /// Relative paths begin where commands do.
    fn path(&self, path: &str) -> String {
        match &self.cwd {
            Some(cwd) if !path.starts_with(['/', '~']) => format!("{}/{path}", cwd.trim_end_matches('/')),
            _ => path.to_owned(),
        }
    }
}

/// The little that the door itself keeps in memory; losing it loses nothing but comfort.
#[derive(Clone, Default)]
pub struct Desk {
    /// One command line at a time goes into a session's shell.
    lines: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
    /// The size a terminal was last given, which the kernel knows but nobody can ask the guest for.
    sizes: Arc<Mutex<HashMap<String, cove_protocol::process::TerminalSize>>>,
}

/// Sizes of terminals that are remembered.
const MOST_SIZES: usize = 10_000;

impl Desk {
    fn line(&self, session: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut lines = self.lines.lock().expect("nothing panics while it holds the lock");
        // A lock that only the map holds is nobody's.
        lines.retain(|_, lock| Arc::strong_count(lock) > 1);
        lines.entry(session).or_default().clone()
    }

    fn size(&self, terminal: &str) -> Option<cove_protocol::process::TerminalSize> {
        self.sizes.lock().expect("nothing panics while it holds the lock").get(terminal).copied()
    }

    fn set_size(&self, terminal: String, size: cove_protocol::process::TerminalSize) {
        let mut sizes = self.sizes.lock().expect("nothing panics while it holds the lock");
        // Shells end by themselves and tell nobody here; one whose size is forgotten is shown with the usual one.
        if sizes.len() >= MOST_SIZES {
            sizes.clear();
        }
        sizes.insert(terminal, size);
    }

    fn forget_size(&self, terminal: &str) {
        self.sizes.lock().expect("nothing panics while it holds the lock").remove(terminal);
    }
}

/// What the rows ask for: a key of that scope or the sandbox's own token, and a link where it is about one file.
const READ: Needs = Needs::Toolbox(Scope::Read);
const WRITE: Needs = Needs::Toolbox(Scope::Write);
const READ_FILE: Needs = Needs::ToolboxFile(Scope::Read);
const WRITE_FILE: Needs = Needs::ToolboxFile(Scope::Write);

/// Every toolbox path, below `/{sandbox}`. Handlers find the [`Machine`] that the guard left.
pub fn table() -> Table<()> {
    system::table()
        .and(files::table())
        .and(upload::table())
        .and(download::table())
        .and(process::table())
        .and(session::table())
        .and(terminal::table())
        .and(git::table())
        .and(interpreter::table())
}

/// Files are streamed and commands may be long; each handler bounds what it holds.
pub fn limits(router: Router) -> Router {
    router.layer(DefaultBodyLimit::disable())
}
