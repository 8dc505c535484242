//! `cove create`.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Map, Value, json};

use super::network::Policy;
use super::resize::Limits;
use super::timers::Timers;
use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::progress::waiting;
use crate::render::{print, print_json, say, word};

/// Make a sandbox that keeps running
///
/// Prints its name, or its id where it has none. It has no network unless you ask for one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove create --name box
  cove create --template base --memory 2G --timeout 1h --label project=demo
  cove create --network full --idle never
  id=$(cove create) && cove exec $id -- uname -a")]
pub struct Arguments {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The template to start from
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// A label; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// A variable for all its commands; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// Where it runs, if the server has several providers
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Return the sandbox of this name if it exists already, and start it if it does not run
    #[arg(long, requires = "name")]
    ensure: bool,

    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    timers: Timers,
    #[command(flatten)]
    policy: Policy,
    /// No network: this is the default now
    #[arg(long, hide = true, conflicts_with = "network")]
    no_network: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let reachable = arguments.policy.reachable()?;
    let body = body(arguments, arguments.policy.body(&reachable, &[]));
    let created: Value = block_on(async {
        let created: Value = waiting("making a sandbox", client.post("/sandboxes", &body)).await?;
        super::network::name_inside(&client, word(&created, "id"), &reachable).await?;
        Ok(created)
    })?;
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

/// Only what was given: the server knows its defaults.
fn body(arguments: &Arguments, network: Option<Value>) -> Value {
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
    set("limits", arguments.limits.body());
    set("timers", arguments.timers.body());
    set("network", network);
    Value::Object(body)
}

fn map_of(pairs: &[(String, String)]) -> Option<Value> {
    let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
    (!map.is_empty()).then(|| json!(map))
}

pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("no pair; write NAME=VALUE".into()),
    }
}
