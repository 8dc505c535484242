//! `cove volume`: storage that outlives sandboxes.

mod copy;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::change::each_of;
use super::ls;
use crate::client::{Client, block_on, query_string, segment};
use crate::complaint::Complaint;
use crate::quantity::{parse_size, show_size};
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// Keep files that outlive sandboxes, and share them
///
/// Any number of sandboxes can have a volume at once: `cove create --volume NAME:/path`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove volume create data --size 1G
  cove create --name reader --volume data:/data:ro
  cove volume cp ./report.csv data:/in/report.csv
  cove volume files data /in
  cove volume cp data:/in/report.csv copy.csv
  cove volume resize data 2G
  cove volume ls
  cove rm reader && cove volume rm data")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Make a volume
    Create {
        name: String,
        /// What it may hold [default: 10G]
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: Option<u64>,
        /// Where it is kept, if the server has several providers
        #[arg(long, value_name = "NAME")]
        provider: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List volumes
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a volume: what it holds, and which sandboxes have it
    Show {
        #[arg(add = crate::complete::volumes())]
        volume: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete volumes with all their files; refused while a sandbox has one
    Rm {
        /// Names or ids
        #[arg(required = true, value_name = "VOLUME", add = crate::complete::volumes())]
        volumes: Vec<String>,
        /// Print JSON, one object on each line
        #[arg(long)]
        json: bool,
    },
    /// Change what a volume may hold, also while sandboxes use it
    Resize {
        /// Its name or id
        #[arg(add = crate::complete::volumes())]
        volume: String,
        /// Bytes that it may hold, as 2G
        #[arg(value_name = "SIZE", value_parser = parse_size)]
        size: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy files and folders into a volume and out of it; one side is VOLUME:PATH
    #[command(after_help = "\
Examples:
  cove volume cp ./report.csv data:/in/
  cove volume cp data:/in ./in
  date | cove volume cp - data:/in/now
  cove volume cp data:/in/now -")]
    Cp {
        /// A file, a folder, `VOLUME:PATH`, or `-` for standard input
        from: String,
        /// A file, a folder, `VOLUME:PATH`, or `-` for standard output, which takes one file
        to: String,
        /// Print what was copied as JSON
        #[arg(long)]
        json: bool,
    },
    /// List files of a volume
    Files {
        /// Its name or id
        #[arg(add = crate::complete::volumes())]
        volume: String,
        /// The folder, from the volume's top
        #[arg(default_value = "/")]
        path: String,
        /// How many levels of folders
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
        depth: u32,
        /// Remove the path, with all it holds, instead
        #[arg(long, conflicts_with = "depth")]
        remove: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn path(volume: &str) -> String {
    format!("/volumes/{}", segment(volume))
}

fn size(value: &Value, name: &str) -> String {
    value[name].as_u64().map_or_else(|| "-".to_owned(), show_size)
}

/// Whether nothing holds its size.
fn is_unheld(volume: &Value) -> bool {
    volume["unheld"].as_array().is_some_and(|unheld| !unheld.is_empty())
}

/// What it may hold.
fn limit(volume: &Value) -> String {
    if is_unheld(volume) { "no limit".to_owned() } else { size(volume, "size") }
}

fn holds(volume: &Value) -> String {
    match is_unheld(volume) {
        true => format!("{}, without a limit: the server runs without root", size(volume, "used")),
        false => format!("{} of {}", size(volume, "used"), size(volume, "size")),
    }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    if let Act::Cp { from, to, json } = &arguments.act {
        return copy::run(&client, from, to, *json);
    }
    block_on(async {
        match &arguments.act {
            Act::Create { name, size, provider, json } => {
                let mut body = json!({ "name": name });
                if let Some(size) = size {
                    body["size"] = json!(size);
                }
                if let Some(provider) = provider {
                    body["provider"] = json!(provider);
                }
                let made: Value = client.post("/volumes", &body).await?;
                match json {
                    true => print_json(&made)?,
                    false => print(word(&made, "name"))?,
                }
                if is_unheld(&made) {
                    say("cove: nothing limits it on this server, which runs without root");
                }
                say(&format!("hint: cove create --volume {name}:/data"));
                Ok(0)
            }
            Act::Ls { json } => list(&client, *json).await,
            Act::Show { volume, json } => show(&client, volume, *json).await,
            Act::Rm { volumes, json } => {
                each_of(&client, volumes, async |client, volume| {
                    client.delete(&path(volume)).await?;
                    match json {
                        true => print(&json!({ "volume": volume, "state": "deleted" }).to_string()),
                        false => print(volume),
                    }
                })
                .await
            }
            Act::Resize { volume, size: bytes, json } => {
                let request = client.request(Method::PATCH, &path(volume)).json(&json!({ "size": bytes }));
                let changed: Value = client.read(client.send(request).await?).await?;
                match json {
                    true => print_json(&changed)?,
                    false => print(&format!("{} {}", word(&changed, "name"), size(&changed, "size")))?,
                }
                Ok(0)
            }
            Act::Files { volume, path: below, remove: true, json, .. } => {
                client.delete(&format!("{}/files{}", path(volume), query_string(&[("path", below)]))).await?;
                match json {
                    true => print_json(&json!({ "volume": volume, "path": below, "state": "removed" }))?,
                    false => print(below)?,
                }
                Ok(0)
            }
            Act::Files { volume, path, depth, json, .. } => files(&client, volume, path, *depth, *json).await,
            Act::Cp { .. } => Ok(0),
        }
    })
}

async fn list(client: &Client, as_json: bool) -> Result<u8, Complaint> {
    let all: Vec<Value> = client.get("/volumes").await?;
    let headings = ["name", "id", "state", "size", "created", "last mounted"];
    List { headings, empty: "no volumes\nhint: cove volume create data" }.show(&all, as_json, |one| {
        [
            (word(one, "name").to_owned(), Tone::Plain),
            (word(one, "id").to_owned(), Tone::Faint),
            (word(one, "state").to_owned(), Tone::Plain),
            (limit(one), Tone::Plain),
            (moment(one, "created_at"), Tone::Plain),
            (moment(one, "last_used_at"), Tone::Faint),
        ]
    })
}

async fn show(client: &Client, volume: &str, as_json: bool) -> Result<u8, Complaint> {
    let shown: Value = client.get(&path(volume)).await?;
    if as_json {
        print_json(&shown)?;
        return Ok(0);
    }
    let mut lines = Vec::new();
    for (name, value) in [
        ("name", word(&shown, "name").to_owned()),
        ("id", word(&shown, "id").to_owned()),
        ("state", word(&shown, "state").to_owned()),
        ("holds", holds(&shown)),
        ("server", word(&shown, "server").to_owned()),
        ("created", moment(&shown, "created_at")),
    ] {
        lines.push(format!("{name:<12} {value}"));
    }
    let sandboxes: Vec<&str> = shown["sandboxes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let names = if sandboxes.is_empty() { BTreeMap::new() } else { ls::names(client).await? };
    for sandbox in sandboxes {
        lines.push(format!("{:<12} {}", "sandbox", names.get(sandbox).map_or(sandbox, String::as_str)));
    }
    print(&lines.join("\n"))?;
    Ok(0)
}

async fn files(client: &Client, volume: &str, below: &str, depth: u32, as_json: bool) -> Result<u8, Complaint> {
    let query = query_string(&[("path", below), ("depth", &depth.to_string())]);
    let all: Vec<Value> = client.get(&format!("{}/files{query}", path(volume))).await?;
    List { headings: ["mode", "owner", "size", "modified", "path"], empty: "no files" }.show(&all, as_json, |one| {
        let name = match word(one, "kind") {
            "directory" => format!("{}/", word(one, "path")),
            "symlink" => format!("{} → {}", word(one, "path"), word(one, "target")),
            _ => word(one, "path").to_owned(),
        };
        [
            (word(one, "mode").to_owned(), Tone::Faint),
            (format!("{}:{}", one["uid"], one["gid"]), Tone::Faint),
            (size(one, "size"), Tone::Plain),
            (moment(one, "modified_at"), Tone::Plain),
            (name, Tone::Plain),
        ]
    })
}
