//! `cove snapshot`: a sandbox's files, frozen in time.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::change::each_of;
use super::ls;
use super::template::{export, follow, order, push, tags_of};
use crate::client::sandbox::path;
use crate::client::{Client, block_on, query_string, segment};
use crate::complaint::Complaint;
use crate::progress::waiting;
use crate::quantity::{parse_duration, show_duration, show_size};
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// Keep a sandbox's files as they are at a moment
///
/// A running sandbox goes on: it is frozen for milliseconds. Start sandboxes from a snapshot as from a template, or
/// roll the sandbox back to it. Processes, memory and volumes are no part of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove snapshot create box --name before
  cove snapshot ls
  cove create --name again --template before
  cove snapshot checkpoints box --keep 10
  cove snapshot lineage box
  cove snapshot push before registry.example/team/box:before
  cove snapshot rm before")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Take a snapshot and print its name, or its id where it has none
    Create {
        /// The sandbox
        #[arg(add = crate::complete::sandboxes())]
        sandbox: String,
        /// What it is called: `NAME` or `NAME:TAG`
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// A word about it
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List snapshots
    Ls {
        /// Only those of this sandbox
        #[arg(long, value_name = "SANDBOX", add = crate::complete::sandboxes())]
        sandbox: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a snapshot, with all moments that were kept under its name
    Show {
        /// Its name or id
        #[arg(add = crate::complete::snapshots())]
        snapshot: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete snapshots; what was started from them keeps its files
    Rm {
        /// Names or ids, with `:TAG` for one capture alone
        #[arg(required = true, value_name = "SNAPSHOT", add = crate::complete::snapshots())]
        snapshots: Vec<String>,
        /// Print JSON, one object on each line
        #[arg(long)]
        json: bool,
    },
    /// List what a sandbox can be rolled back to, make a checkpoint, or have one made before each command
    Checkpoints {
        /// The sandbox
        #[arg(add = crate::complete::sandboxes())]
        sandbox: String,
        /// Make one now
        #[arg(long, conflicts_with_all = ["keep", "off"])]
        now: bool,
        /// A word about it
        #[arg(long, value_name = "TEXT", requires = "now")]
        note: Option<String>,
        /// From now on make one before each command, and keep so many
        #[arg(long, value_name = "N", conflicts_with = "off", value_parser = clap::value_parser!(u32).range(1..=1000))]
        keep: Option<u32>,
        /// With --keep: and none for longer than this
        #[arg(long = "for", value_name = "TIME", requires = "keep", value_parser = parse_duration)]
        keep_for: Option<std::time::Duration>,
        /// Make no more by themselves
        #[arg(long)]
        off: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show where a sandbox comes from, and its copies
    Lineage {
        /// The sandbox
        #[arg(add = crate::complete::sandboxes())]
        sandbox: String,
        /// Copies that are gone, too
        #[arg(long)]
        destroyed: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a snapshot as an image in a file, for `docker load` and for whoever reads OCI layouts
    Export {
        /// Its name or id, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::snapshots())]
        snapshot: String,
        /// The file; `-` is standard output
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Push a snapshot as an image to a registry; `cove template pushes` lists pushes
    #[command(after_help = "\
Example:
  cove snapshot push before registry.example/team/box:before")]
    Push {
        /// Its name or id, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::snapshots())]
        snapshot: String,
        #[command(flatten)]
        to: push::To,
    },
    /// Make a template of an image in a file: from `docker save`, an OCI layout as a tar, or the tar of a root
    Import {
        /// The file; `-` is standard input
        file: PathBuf,
        /// The template's name: `NAME` or `NAME:TAG`
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Create { sandbox, name, note, json } => {
                let mut body = Map::new();
                body.extend(name.iter().map(|name| ("name".to_owned(), json!(name))));
                body.extend(note.iter().map(|note| ("note".to_owned(), json!(note))));
                let call = format!("{}/snapshots", path(sandbox)?);
                let waits = format!("snapshot {sandbox}");
                let before = match name {
                    Some(name) => led_to(&client, name).await,
                    None => None,
                };
                let taken: Value = waiting(&waits, client.post(&call, &body)).await?;
                let called = called(name.as_deref(), &taken);
                match json {
                    true => print_json(&taken)?,
                    false => print(&called)?,
                }
                if let Some(before) = before {
                    let name = word(&taken, "name");
                    say(&format!("cove: {called} was another moment before, which is still there: {name}:{before}"));
                }
                say(&format!("hint: cove rollback {sandbox} {called}, or cove create --template {called}"));
                Ok(0)
            }
            Act::Ls { sandbox, json } => list(&client, sandbox.as_deref(), *json).await,
            Act::Show { snapshot, json } => show(&client, snapshot, *json).await,
            Act::Rm { snapshots, json } => remove(&client, snapshots, *json).await,
            Act::Checkpoints { sandbox, now, note, keep, keep_for, off, json } => {
                let call = format!("{}/checkpoints", path(sandbox)?);
                if let Some(keep) = keep {
                    let rule = json!({ "keep": keep, "keep_seconds": keep_for.map(|time| time.as_secs().max(1)) });
                    let request = client.request(Method::PUT, &call).json(&rule);
                    let time = keep_for.map(|time| format!(", none for longer than {}", show_duration(time)));
                    let line = format!("{sandbox} keeps {keep}{}", time.unwrap_or_default());
                    return set(&client, request, &line, *json).await;
                }
                if *off {
                    let request = client.request(Method::DELETE, &call);
                    return set(&client, request, &format!("{sandbox} makes none"), *json).await;
                }
                if *now {
                    let body = note.as_ref().map_or_else(|| json!({}), |note| json!({ "note": note }));
                    let made: Value = client.post(&call, &body).await?;
                    match json {
                        true => print_json(&made)?,
                        false => print(word(&made, "id"))?,
                    }
                    return Ok(0);
                }
                checkpoints(&client, sandbox, &client.get::<Vec<Value>>(&call).await?, *json).await
            }
            Act::Lineage { sandbox, destroyed, json } => lineage(&client, sandbox, *destroyed, *json).await,
            Act::Export { snapshot, file, json } => {
                export::run(&client, &format!("/snapshots/{}", segment(snapshot)), file, *json).await
            }
            Act::Push { snapshot, to } => push::run(&client, &format!("/snapshots/{}", segment(snapshot)), to).await,
            Act::Import { file, name, json } => {
                let started = order::send_archive(&client, name, file).await?;
                let build = follow::path(word(&started["template"], "id"), word(&started["build"], "id"));
                let ended = follow::or_cancelled(&client, &build).await?;
                follow::judge(&ended)?;
                match json {
                    true => print_json(&json!({ "template": started["template"], "build": ended }))?,
                    false => print(name)?,
                }
                Ok(0)
            }
        }
    })
}

/// What leads to the moment that was just kept.
fn called(asked: Option<&str>, taken: &Value) -> String {
    let name = word(taken, "name");
    match asked.and_then(|asked| asked.split_once(':')) {
        Some((_, tag)) if tag != "default" => format!("{name}:{}", tag.to_lowercase()),
        _ => name.to_owned(),
    }
}

/// The moment that `NAME` or `NAME:TAG` leads to now, if any.
async fn led_to(client: &Client, name: &str) -> Option<String> {
    let (alone, tag) = name.split_once(':').unwrap_or((name, "default"));
    let shown: Value = client.get(&format!("/snapshots/{}", segment(alone))).await.ok()?;
    let tags = shown["tags"].as_array()?;
    let found = tags.iter().find(|one| word(one, "tag") == tag.to_lowercase())?;
    Some(word(found, "build").to_owned())
}

/// All snapshots, of all pages.
pub async fn fetch(client: &Client, sandbox: Option<&str>) -> Result<Vec<Value>, Complaint> {
    let (mut all, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let mut pairs: Vec<(&str, &str)> = sandbox.map(|id| ("sandbox", id)).into_iter().collect();
        pairs.extend(cursor.as_str().map(|cursor| ("cursor", cursor)));
        let mut page: Value = client.get(&format!("/snapshots{}", query_string(&pairs))).await?;
        if let Value::Array(items) = page["items"].take() {
            all.extend(items);
        }
        cursor = page["next_cursor"].take();
        if cursor.is_null() {
            return Ok(all);
        }
    }
}

fn size(value: &Value) -> String {
    value["bytes"].as_u64().map_or_else(|| "-".to_owned(), show_size)
}

async fn list(client: &Client, sandbox: Option<&str>, as_json: bool) -> Result<u8, Complaint> {
    let id = match sandbox {
        Some(sandbox) => client.sandbox(sandbox).await?["id"].as_str().map(str::to_owned),
        None => None,
    };
    let all = fetch(client, id.as_deref()).await?;
    let names = if as_json || all.is_empty() { BTreeMap::new() } else { ls::names(client).await? };
    let called = |id: &str| names.get(id).map_or(id, String::as_str).to_owned();
    let headings = ["name", "tags", "id", "sandbox", "size", "created", "note"];
    List { headings, empty: "no snapshots\nhint: cove snapshot create box --name before" }.show(&all, as_json, |one| {
        [
            (if one["name"] == one["id"] { "-" } else { word(one, "name") }.to_owned(), Tone::Plain),
            (tags_of(one), Tone::Faint),
            (word(one, "id").to_owned(), Tone::Faint),
            (called(word(one, "sandbox")), Tone::Faint),
            (size(one), Tone::Plain),
            (moment(one, "created_at"), Tone::Plain),
            (word(one, "note").to_owned(), Tone::Faint),
        ]
    })
}

async fn show(client: &Client, snapshot: &str, as_json: bool) -> Result<u8, Complaint> {
    let shown: Value = client.get(&format!("/snapshots/{}", segment(snapshot))).await?;
    if as_json {
        print_json(&shown)?;
        return Ok(0);
    }
    let mut lines = Vec::new();
    for (name, value) in [
        ("name", word(&shown, "name").to_owned()),
        ("id", word(&shown, "id").to_owned()),
        ("sandbox", word(&shown, "sandbox").to_owned()),
        ("size", size(&shown)),
        ("created", moment(&shown, "created_at")),
        ("note", word(&shown, "note").to_owned()),
    ] {
        if !value.is_empty() {
            lines.push(format!("{name:<12} {value}"));
        }
    }
    for tag in shown["tags"].as_array().into_iter().flatten() {
        lines.push(format!("{:<12} {} → {}", "tag", word(tag, "tag"), word(tag, "build")));
    }
    print(&lines.join("\n"))?;
    let call = format!("/templates/{}/builds?limit=100", segment(word(&shown, "id")));
    let mut page: Value = client.get(&call).await?;
    let moments: Vec<Value> = serde_json::from_value(page["items"].take()).unwrap_or_default();
    if moments.len() < 2 {
        return Ok(0);
    }
    print("")?;
    let list = List { headings: ["moment", "size", "created", "note"], empty: "" };
    list.show(&moments, false, |one| {
        [
            (format!("{}:{}", word(&shown, "name"), word(one, "id")), Tone::Plain),
            (size(one), Tone::Plain),
            (moment(one, "created_at"), Tone::Plain),
            (word(one, "note").to_owned(), Tone::Faint),
        ]
    })
}

async fn remove(client: &Client, snapshots: &[String], as_json: bool) -> Result<u8, Complaint> {
    each_of(client, snapshots, async |client, snapshot| {
        client.delete(&format!("/snapshots/{}", segment(snapshot))).await?;
        match as_json {
            true => print(&json!({ "snapshot": snapshot, "state": "deleted" }).to_string()),
            false => print(snapshot),
        }
    })
    .await
}

async fn set(client: &Client, request: reqwest::RequestBuilder, line: &str, as_json: bool) -> Result<u8, Complaint> {
    let changed: Value = client.read(client.send(request).await?).await?;
    match as_json {
        true => print_json(&changed)?,
        false => print(line)?,
    }
    Ok(0)
}

async fn checkpoints(client: &Client, sandbox: &str, all: &[Value], as_json: bool) -> Result<u8, Complaint> {
    // Snapshots are among them, and have names.
    let names = if as_json || all.is_empty() { BTreeMap::new() } else { names_of(client, sandbox).await? };
    let list = List { headings: ["id", "made", "size", "created", "note"], empty: "no checkpoints and no snapshots" };
    list.show(all, as_json, |one| {
        let made = match (word(one, "origin"), names.get(word(one, "id"))) {
            (_, Some(name)) => format!("snapshot {name}"),
            ("automatic", None) => "by rule".to_owned(),
            ("undo", None) => "by a rollback".to_owned(),
            (_, None) => "on request".to_owned(),
        };
        [
            (word(one, "id").to_owned(), Tone::Plain),
            (made, Tone::Plain),
            (size(one), Tone::Plain),
            (moment(one, "created_at"), Tone::Plain),
            (word(one, "note").to_owned(), Tone::Faint),
        ]
    })
}

/// What snapshots of a sandbox are called, by the moment that the name leads to.
async fn names_of(client: &Client, sandbox: &str) -> Result<BTreeMap<String, String>, Complaint> {
    let found = client.sandbox(sandbox).await?;
    let mut names = BTreeMap::new();
    for snapshot in fetch(client, found["id"].as_str()).await? {
        for tag in snapshot["tags"].as_array().into_iter().flatten() {
            let name = called(Some(&format!("x:{}", word(tag, "tag"))), &snapshot);
            names.insert(word(tag, "build").to_owned(), name);
        }
    }
    Ok(names)
}

async fn lineage(client: &Client, sandbox: &str, destroyed: bool, as_json: bool) -> Result<u8, Complaint> {
    let query = if destroyed { "?destroyed=true" } else { "" };
    let told: Value = client.get(&format!("{}/lineage{query}", path(sandbox)?)).await?;
    if as_json {
        print_json(&told)?;
        return Ok(0);
    }
    let rows = |list: &str, is: &str| -> Vec<Value> {
        let all = told[list].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .map(|mut one| {
                one["is"] = json!(is);
                one
            })
            .collect()
    };
    let all = [rows("ancestors", "ancestor"), rows("forks", "fork")].concat();
    let list = List { headings: ["is", "name", "id", "state", "created"], empty: "no ancestors and no copies" };
    list.show(&all, false, |one| {
        [
            (word(one, "is").to_owned(), Tone::Plain),
            (one["name"].as_str().unwrap_or("-").to_owned(), Tone::Plain),
            (word(one, "id").to_owned(), Tone::Faint),
            (word(one, "state").to_owned(), Tone::Plain),
            (moment(one, "created_at"), Tone::Faint),
        ]
    })
}
