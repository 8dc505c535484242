//! `cove keys`: who may call the server.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::client::{Client, block_on, segment};
use crate::complaint::Complaint;
use crate::quantity::parse_duration;
use crate::render::{Rows, Tone, print, print_json, say};

/// Make, list, rotate and revoke API keys
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove keys create ci --scope write --expires 30d
  cove keys rotate ID
  cove keys revoke ID")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List the keys of your organisation, without their secrets
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a key and print its secret, which is shown only once
    Create {
        /// What it is for
        name: String,
        /// What it may do
        #[arg(long, value_enum, default_value = "write")]
        scope: Scope,
        /// It expires after this time
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
        /// For another organisation (operators)
        #[arg(long, value_name = "ID")]
        organisation: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace a key: make one with the same name, scope and remaining time, and revoke the old one
    Rotate {
        /// The old key's id
        id: String,
        /// Keep the old key valid; revoke it when nobody uses it any more
        #[arg(long)]
        keep: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key, by its id
    Revoke {
        id: String,
        /// Also the last one that may run the server
        #[arg(long)]
        force: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    /// Read
    Read,
    /// Make, use and remove sandboxes
    Write,
    /// Keys and settings of the organisation too
    Admin,
    /// The whole server: organisations, quotas, other operators
    Operator,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Ls { json } => list(client.get("/keys").await?, *json)?,
            Act::Create { name, scope, expires, organisation, json } => {
                let scope = scope.to_possible_value().map(|value| value.get_name().to_owned());
                let expires = expires.map(|time| time.as_secs_f64().ceil() as u64);
                let mut body = json!({ "name": name, "scope": scope, "expires_in_seconds": expires });
                if let Some(organisation) = organisation {
                    body["organisation"] = json!(organisation);
                }
                tell_new(&client.post("/keys", &body).await?, *json)?;
            }
            Act::Rotate { id, keep, json } => {
                let made = rotate(&client, id).await?;
                tell_new(&made, *json)?;
                if *keep {
                    say(&format!("hint: cove keys revoke {id}"));
                } else {
                    client.delete(&format!("/keys/{}", segment(id))).await?;
                }
            }
            Act::Revoke { id, force, json } => {
                if !force {
                    is_dispensable(&client, id).await?;
                }
                let force = if *force { "?force=true" } else { "" };
                client.delete(&format!("/keys/{}{force}", segment(id))).await?;
                let told = if *json { json!({ "id": id, "state": "revoked" }).to_string() } else { id.clone() };
                print(&told)?;
            }
        }
        Ok(0)
    })
}

/// Refuses the last key of an operator: with it the server could not be run any more.
async fn is_dispensable(client: &Client, id: &str) -> Result<(), Complaint> {
    let me: Value = client.get("/whoami").await?;
    let may_end_operators = me["scopes"].as_array().into_iter().flatten().any(|scope| scope == "operator");
    if !may_end_operators {
        return Ok(());
    }
    let keys: Vec<Value> = client.get("/keys").await?;
    let operators = keys.iter().filter(|key| key["scope"] == "operator" && state_of(key) == State::Valid);
    let operators: Vec<&str> = operators.filter_map(|key| key["id"].as_str()).collect();
    if operators != [id] {
        return Ok(());
    }
    Err(Complaint::failed(format!("{id} is the last operator key of your organisation: nobody could run the server"))
        .hint(format!("cove keys rotate {id} puts a new one in its place"))
        .hint(format!("cove keys revoke --force {id} revokes it all the same")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Revoked,
    Expired,
    Valid,
}

fn state_of(key: &Value) -> State {
    let end = key["expires_at"].as_str().and_then(|end| end.parse::<jiff::Timestamp>().ok());
    match end {
        _ if !key["revoked_at"].is_null() => State::Revoked,
        Some(end) if end <= jiff::Timestamp::now() => State::Expired,
        _ => State::Valid,
    }
}

fn tell_new(made: &Value, as_json: bool) -> Result<(), Complaint> {
    match as_json {
        true => print_json(made)?,
        false => print(made["secret"].as_str().unwrap_or_default())?,
    }
    say("hint: store it now: the server keeps only its hash");
    Ok(())
}

/// A key like another one.
async fn rotate(client: &Client, id: &str) -> Result<Value, Complaint> {
    let keys: Vec<Value> = client.get("/keys").await?;
    let Some(old) = keys.iter().find(|key| key["id"] == id && key["revoked_at"].is_null()) else {
        return Err(Complaint::failed(format!("there is no valid key `{id}`")).hint("`cove keys ls` lists the keys"));
    };
    let left = match old["expires_at"].as_str().and_then(|end| end.parse::<jiff::Timestamp>().ok()) {
        Some(end) => {
            let left = end.duration_since(jiff::Timestamp::now()).as_secs();
            if left <= 0 {
                return Err(Complaint::failed(format!("the key `{id}` has expired")).hint("cove keys create NAME"));
            }
            Some(left)
        }
        None => None,
    };
    let body = json!({ "name": old["name"], "scope": old["scope"], "expires_in_seconds": left });
    client.post("/keys", &body).await
}

fn list(keys: Vec<Value>, as_json: bool) -> Result<(), Complaint> {
    if as_json {
        return print_json(&keys);
    }
    let mut rows = Rows::new(&["id", "name", "scope", "begins", "created", "ends", "state"]);
    for key in &keys {
        let word = |name: &str| key[name].as_str().unwrap_or_default();
        let day = |name: &str| word(name).split('T').next().filter(|day| !day.is_empty()).unwrap_or("-").to_owned();
        let state = match state_of(key) {
            State::Revoked => ("revoked", Tone::Faint),
            State::Expired => ("expired", Tone::Faint),
            State::Valid => ("valid", Tone::Good),
        };
        rows.add(&[
            (word("id"), Tone::Plain),
            (word("name"), Tone::Plain),
            (word("scope"), Tone::Plain),
            (word("prefix"), Tone::Faint),
            (&day("created_at"), Tone::Plain),
            (&day("expires_at"), Tone::Plain),
            state,
        ]);
    }
    rows.print()
}
