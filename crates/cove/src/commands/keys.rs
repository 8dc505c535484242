//! `cove keys`: who may call the server.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::client::{Client, block_on, segment};
use crate::complaint::Complaint;
use crate::quantity::parse_duration;
use crate::render::{Rows, Tone, print, print_json, say};

/// Make, list and revoke API keys
#[derive(Debug, Args)]
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
    /// Make a key and print its secret, which is told this once
    Create {
        /// What it is for
        name: String,
        /// What it may do
        #[arg(long, value_enum, default_value = "write")]
        scope: Scope,
        /// It ends after this time
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
    },
    /// Revoke a key, by its id
    Revoke { id: String },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    /// Look
    Read,
    /// Make, use and remove sandboxes
    Write,
    /// Keys and settings of the organisation too
    Admin,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Ls { json } => list(client.get("/keys").await?, *json)?,
            Act::Create { name, scope, expires } => {
                let scope = scope.to_possible_value().map(|value| value.get_name().to_owned());
                let expires = expires.map(|time| time.as_secs_f64().ceil() as u64);
                let body = json!({ "name": name, "scope": scope, "expires_in_seconds": expires });
                let made: Value = client.post("/keys", &body).await?;
                print(made["secret"].as_str().unwrap_or_default())?;
                say("hint: keep it now: the server has only its hash");
            }
            Act::Revoke { id } => client.delete(&format!("/keys/{}", segment(id))).await?,
        }
        Ok(0)
    })
}

fn list(keys: Vec<Value>, as_json: bool) -> Result<(), Complaint> {
    if as_json {
        return print_json(&keys);
    }
    let mut rows = Rows::new(&["id", "name", "scope", "begins", "created", "state"]);
    for key in &keys {
        let word = |name: &str| key[name].as_str().unwrap_or_default();
        let state = if key["revoked_at"].is_null() { ("valid", Tone::Good) } else { ("revoked", Tone::Faint) };
        rows.add(&[
            (word("id"), Tone::Plain),
            (word("name"), Tone::Plain),
            (word("scope"), Tone::Plain),
            (word("prefix"), Tone::Faint),
            (word("created_at").split('T').next().unwrap_or_default(), Tone::Plain),
            state,
        ]);
    }
    rows.print()
}
