//! `cove create`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::progress::waiting;
use crate::quantity::{parse_cpus, parse_duration, parse_size};
use crate::render::{print, print_json, say};

/// Make a sandbox that lives on
///
/// Prints its name, or its id where it has none.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove create --name box
  cove create --template base --memory 2G --timeout 1h --label project=demo
  id=$(cove create) && cove exec $id -- uname -a")]
pub struct Arguments {
    /// A name to call it by
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What it starts from
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// A label; can be said several times
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// A variable for all its commands; can be said several times
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// Where it runs, where the server has a choice
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Give the one of this name if it is there already, started if it does not run
    #[arg(long, requires = "name")]
    ensure: bool,

    /// Processors
    #[arg(long, value_name = "N", value_parser = parse_cpus, help_heading = "Limits")]
    cpus: Option<f64>,
    /// Memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    memory: Option<u64>,
    /// Disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    disk: Option<u64>,
    /// Processes and threads
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pids: Option<u32>,

    /// End it after this time, whatever it does
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Timers")]
    timeout: Option<Duration>,
    /// Stop it when nothing has happened for this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Timers")]
    idle: Option<Duration>,
    /// Remove it when it stops
    #[arg(long, help_heading = "Timers")]
    ephemeral: bool,

    /// Let only these addresses be reached; can be said several times
    #[arg(long, value_name = "CIDR[:PORT]", help_heading = "Borders")]
    allow: Vec<String>,
    /// Let nobody be reached but what --allow names
    #[arg(long, help_heading = "Borders")]
    no_network: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let created: Value = block_on(waiting("making a sandbox", client.post("/sandboxes", &body(arguments))))?;
    if arguments.json {
        print_json(&created)?;
        return Ok(0);
    }
    let sandbox = Sandbox::parse(created)?;
    print(sandbox.called())?;
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        say(&format!("hint: cove shell {}", sandbox.called()));
    }
    Ok(0)
}

/// Only what was said: the server knows its own defaults.
fn body(arguments: &Arguments) -> Value {
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("name", arguments.name.as_ref().map(|name| json!(name)));
    set("template", arguments.template.as_ref().map(|name| json!(name)));
    set("provider", arguments.provider.as_ref().map(|name| json!(name)));
    set("labels", map_of(&arguments.label));
    set("env", map_of(&arguments.env));
    set("if_exists", arguments.ensure.then(|| json!("ensure_running")));
    let limits = [
        ("cpus", arguments.cpus.map(|cpus| json!(cpus))),
        ("memory", arguments.memory.map(|bytes| json!(bytes))),
        ("disk", arguments.disk.map(|bytes| json!(bytes))),
        ("pids", arguments.pids.map(|pids| json!(pids))),
    ];
    set("limits", object_of(limits));
    let timers = [
        ("lifetime_seconds", arguments.timeout.map(seconds)),
        ("idle_seconds", arguments.idle.map(seconds)),
        ("ephemeral", arguments.ephemeral.then_some(json!(true))),
    ];
    set("timers", object_of(timers));
    let closed = arguments.no_network || !arguments.allow.is_empty();
    set("network", closed.then(|| json!({ "access": "closed", "allow": arguments.allow })));
    Value::Object(body)
}

fn object_of<const N: usize>(fields: [(&str, Option<Value>); N]) -> Option<Value> {
    let fields: Map<_, _> = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn map_of(pairs: &[(String, String)]) -> Option<Value> {
    let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
    (!map.is_empty()).then(|| json!(map))
}

/// The server counts whole seconds; a part of one is rounded up, never to nothing.
fn seconds(duration: Duration) -> Value {
    json!(duration.as_secs_f64().ceil() as u64)
}

pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("no pair; write NAME=VALUE".into()),
    }
}
