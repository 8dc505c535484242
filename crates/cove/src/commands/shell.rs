//! `cove shell`.

use std::io::{self, IsTerminal};

use clap::Args;
use serde_json::json;

use crate::client::conversation::{Input, Output, Until, converse};
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::terminal;

/// Open a shell in a sandbox
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove shell box")]
pub struct Arguments {
    /// Run as this user
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// The sandbox's name or id
    #[arg(add = crate::complete::sandboxes())]
    sandbox: String,
}

/// bash where the sandbox has it, otherwise sh.
const SHELL: &str = "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi";

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    if !io::stdin().is_terminal() {
        return Err(Complaint::usage("a shell needs a terminal, and standard input is none")
            .hint(format!("cove exec {} -- sh -c '…'", arguments.sandbox)));
    }
    let (rows, columns) = terminal::size().map_or((24, 80), |size| (size.rows, size.columns));
    let term = std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned());
    let mut start = json!({
        "command": ["sh", "-c", SHELL],
        "env": { "TERM": term },
        "terminal": { "rows": rows, "columns": columns },
    });
    if let Some(user) = &arguments.user {
        start["user"] = json!(user);
    }
    let client = Client::from_environment()?;
    let opening = json!({ "start": start });
    block_on(converse(&client, &arguments.sandbox, opening, Input::Forwarded, Until::Exit, Output::Shown))
}
