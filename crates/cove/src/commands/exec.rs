//! `cove exec`.

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::client::conversation::{Input, Output, Until, converse};
use crate::client::transcript::Transcript;
use crate::client::{Client, block_on};
use crate::complaint::{Complaint, code};
use crate::quantity::parse_duration;
use crate::render::{print, print_json};
use crate::terminal;

/// Run a command in a sandbox
///
/// Input, output and the exit code are the command's, as with `cove run`.
#[derive(Debug, Args)]
#[command(after_help = "\
With --json one object comes when the command has ended, and the exit code is still the command's own:
  {\"pid\", \"exit_code\", \"timed_out\", \"out_of_memory\", \"stdout\", \"stderr\", \"lost_bytes\"}
What is no UTF-8 becomes U+FFFD; each stream is kept up to 64 MiB, the rest is counted in lost_bytes. With --detach: {\"pid\"}.

Examples:
  cove exec box -- python3 -c 'print(6 * 7)'
  echo hello | cove exec box -- tr a-z A-Z
  cove exec --json box -- uname -a")]
pub struct Arguments {
    /// Let the command read the keyboard. A pipe or a file on standard input is always passed on
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// Set a variable; NAME alone takes its value from here; can be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = super::create::parse_variable)]
    env: Vec<(String, String)>,
    /// Start in this directory
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Run as this user
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// End the command after this time, with exit code 124
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Start it, print its process number and leave it running
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// Print the result as JSON at the end, instead of the output
    #[arg(long, conflicts_with = "tty")]
    json: bool,
    /// A name to find the process by later, with `cove logs`
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,

    /// The sandbox's name or id
    #[arg(add = crate::complete::sandboxes())]
    sandbox: String,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    command: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    if arguments.tty && !io::stdin().is_terminal() {
        return Err(Complaint::usage("-t needs a terminal, and standard input is none")
            .hint("leave out -t; a pipe on standard input reaches the command without it"));
    }
    let client = Client::from_environment()?;
    let mut start = start(arguments);
    if arguments.detach {
        start.insert("background".into(), json!(true));
        let path = format!("{}/exec", crate::client::sandbox::path(&arguments.sandbox)?);
        let started: Value = block_on(client.post(&path, &start))?;
        match arguments.json {
            true => print_json(&json!({ "pid": started["pid"] }))?,
            false => print(&started["pid"].to_string())?,
        }
        return Ok(0);
    }
    if arguments.tty {
        let size = terminal::size();
        let (rows, columns) = size.map_or((24, 80), |size| (size.rows, size.columns));
        start.insert("terminal".into(), json!({ "rows": rows, "columns": columns }));
    }
    let forwarded = arguments.interactive || !io::stdin().is_terminal();
    let input = if forwarded { Input::Forwarded } else { Input::Closed };
    let opening = json!({ "start": start });
    let sandbox = &arguments.sandbox;
    if !arguments.json {
        return block_on(converse(&client, sandbox, opening, input, Until::Exit, Output::Shown));
    }
    let mut transcript = Transcript::default();
    let kept = Output::Kept(&mut transcript);
    let ended = block_on(converse(&client, sandbox, opening, input, Until::Exit, kept));
    let mut told = transcript.to_json();
    match &ended {
        Ok(_) => {}
        // The command's own outcome: it could not be run.
        Err(complaint) if matches!(complaint.code(), code::NOT_EXECUTABLE | code::NOT_FOUND) => {
            told["exit_code"] = complaint.code().into();
            told["error"] = complaint.message().into();
        }
        Err(_) => return ended,
    }
    print_json(&told)?;
    ended
}

fn start(arguments: &Arguments) -> Map<String, Value> {
    let mut env: Map<_, _> = arguments.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    if arguments.tty {
        for name in ["TERM", "COLORTERM"] {
            if let Ok(value) = std::env::var(name) {
                env.entry(name).or_insert(json!(value));
            }
        }
    }
    let fields = [
        ("command", Some(json!(arguments.command))),
        ("env", Some(Value::Object(env))),
        ("cwd", arguments.workdir.as_ref().map(|path| json!(path))),
        ("user", arguments.user.as_ref().map(|user| json!(user))),
        ("tag", arguments.tag.as_ref().map(|tag| json!(tag))),
        ("timeout_seconds", arguments.timeout.map(|timeout| json!(timeout.as_secs_f64()))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
