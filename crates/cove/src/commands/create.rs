//! `cove create`.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Map, Value, json};

use super::network::Policy;
use super::resize::Limits;
use super::run::is_variable;
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
  cove create --image debian:12
  cove create --network full --git https://example.com/acme/tools.git --git-branch main
  cove volume create data && cove create --volume data:/data
  id=$(cove create) && cove exec $id -- uname -a

The same as giving no flag, unless the server's settings or the template say otherwise:
  cove create --cpus 1 --memory 1G --disk 3G --pids 512 --network none \\
    --timeout never --at-timeout destroy --idle 15m --at-idle stop --idle-counts work \\
    --archive-after never --delete-after never --auto-resume no --ephemeral=no")]
pub struct Arguments {
    /// Its name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The template or snapshot to start from: `NAME`, `NAME:TAG` or an id
    #[arg(long, value_name = "NAME", add = crate::complete::templates())]
    template: Option<String>,
    /// Start from this image of a registry; it becomes a template
    #[arg(long, value_name = "REF", conflicts_with = "template")]
    image: Option<String>,
    /// A volume and where it is inside; can be repeated
    #[arg(long, value_name = "NAME:/PATH[:ro|rw[:FOLDER]]", value_parser = parse_volume)]
    volume: Vec<Volume>,
    /// Make a checkpoint before each command, and keep so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    checkpoints: Option<u32>,
    /// A label; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// A variable for all its commands; NAME alone takes its value from here; can be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Clone this repository into it first; needs a network
    #[arg(long, value_name = "URL")]
    git: Option<String>,
    /// The branch of the repository
    #[arg(long, value_name = "NAME", requires = "git")]
    git_branch: Option<String>,
    /// Where the repository goes [default: its own name, where commands start]
    #[arg(long, value_name = "PATH", requires = "git")]
    git_path: Option<String>,
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
    let mut body = body(arguments, arguments.policy.body(&reachable, &[]));
    let created: Value = block_on(async {
        if let Some(image) = &arguments.image {
            body["template"] = json!(super::template::order::from_image(&client, image).await?);
        }
        let created: Value = waiting("making a sandbox", client.post("/sandboxes", &body)).await?;
        super::network::name_inside(&client, word(&created, "id"), &reachable).await?;
        super::timers::tell_of_pauses(&client, &arguments.timers, &created).await;
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
    set("git_url", arguments.git.as_ref().map(|url| json!(url)));
    set("git_branch", arguments.git_branch.as_ref().map(|branch| json!(branch)));
    set("git_path", arguments.git_path.as_ref().map(|path| json!(path)));
    set("labels", map_of(&arguments.label));
    set("env", map_of(&arguments.env));
    set("if_exists", arguments.ensure.then(|| json!("ensure_running")));
    set("limits", arguments.limits.body());
    set("timers", arguments.timers.body());
    set("network", network);
    let volumes: Vec<Value> = arguments.volume.iter().map(Volume::body).collect();
    set("volumes", (!volumes.is_empty()).then(|| json!(volumes)));
    set("checkpoints", arguments.checkpoints.map(|keep| json!({ "keep": keep })));
    Value::Object(body)
}

/// A volume that the sandbox gets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Volume {
    name: String,
    path: String,
    subpath: Option<String>,
    read_only: bool,
}

impl Volume {
    fn body(&self) -> Value {
        let mut body = json!({ "volume": self.name, "path": self.path, "read_only": self.read_only });
        if let Some(subpath) = &self.subpath {
            body["subpath"] = json!(subpath);
        }
        body
    }
}

fn parse_volume(text: &str) -> Result<Volume, String> {
    const HOW: &str = "write NAME:/PATH, NAME:/PATH:ro, or NAME:/PATH:rw:FOLDER for a folder of the volume";
    let mut parts = text.split(':');
    let (Some(name), Some(path)) = (parts.next().filter(|name| !name.is_empty()), parts.next()) else {
        return Err(format!("no place inside; {HOW}"));
    };
    if !path.starts_with('/') {
        return Err(format!("`{path}` is not an absolute path; {HOW}"));
    }
    let mut volume = Volume { name: name.to_owned(), path: path.to_owned(), subpath: None, read_only: false };
    // Whoever writes another word for it must not get a volume that can be written, or a folder of that name.
    match parts.next().map(str::to_ascii_lowercase).as_deref() {
        None | Some("rw") => {}
        Some("ro") => volume.read_only = true,
        Some(other) => return Err(format!("`{other}` is neither ro nor rw; {HOW}")),
    }
    volume.subpath = parts.next().map(str::to_owned).filter(|path| !path.is_empty());
    match parts.next() {
        None => Ok(volume),
        Some(more) => Err(format!("`{more}` is one part too many; {HOW}")),
    }
}

fn map_of(pairs: &[(String, String)]) -> Option<Value> {
    let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
    (!map.is_empty()).then(|| json!(map))
}

/// A pair whose name can be a variable's; NAME alone takes its value from here, as for `run`.
pub fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    if !is_variable(name) {
        return Err(format!("`{name}` is no name of a variable; write NAME=VALUE"));
    }
    match value.or_else(|| std::env::var(name).ok()) {
        Some(value) => Ok((name.to_owned(), value)),
        None => Err(format!("{name} is not set here; write {name}=VALUE")),
    }
}

pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("no pair; write NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_place_and_perhaps_a_rule_and_a_part() {
        let volume = |text: &str| parse_volume(text).unwrap();
        assert_eq!(volume("data:/data").body(), json!({ "volume": "data", "path": "/data", "read_only": false }));
        assert!(volume("data:/data:ro").read_only && !volume("data:/data:rw").read_only);
        let part = volume("data:/data:ro:in/a");
        assert_eq!((part.subpath.as_deref(), part.read_only), (Some("in/a"), true));
        assert!(volume("data:/data:RO").read_only && volume("data:/data:Ro:in").read_only);
        for wrong in ["", "data", ":/x", "data:x", "data:/x:ro:a:b", "data:"] {
            assert!(parse_volume(wrong).is_err(), "{wrong:?}");
        }
        // No folder is made of a word that was meant as a rule.
        for wrong in ["readonly", "rx", "ro,z", "in", "in/a", ""] {
            let refused = parse_volume(&format!("data:/x:{wrong}")).unwrap_err();
            assert!(refused.starts_with(&format!("`{wrong}` is neither ro nor rw")), "{refused}");
        }
    }
}
