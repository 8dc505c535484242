//! `cove orphans`: files of sandboxes that nobody is known to own.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, block_on, segment};
use crate::complaint::Complaint;
use crate::quantity::show_size;
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// See, adopt or remove files of sandboxes that the database does not know
///
/// A power cut or a restored backup can leave files whose sandbox is in no database. The server ends their processes and
/// keeps them for a time (`orphans.keep_days`, 30 days). For operators.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove orphans ls
  cove orphans adopt ID --organisation acme --name found
  cove orphans rm ID")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List them, oldest first
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make one a stopped sandbox of an organisation
    Adopt {
        /// Its id
        id: String,
        /// Whose it becomes; your own organisation's if absent
        #[arg(long, value_name = "ID")]
        organisation: Option<String>,
        /// What it is called
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete its files for good
    Rm {
        /// Its id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Ls { json } => {
                let all: Vec<Value> = client.get("/orphans").await?;
                let headings = ["id", "since", "size", "removed", "why"];
                List { headings, empty: "no orphans" }.show(&all, *json, |one| {
                    [
                        (word(one, "id").to_owned(), Tone::Plain),
                        (moment(one, "since"), Tone::Plain),
                        (one["bytes"].as_u64().map_or("-".to_owned(), show_size), Tone::Plain),
                        (moment(one, "removed_at"), Tone::Plain),
                        (word(one, "reason").to_owned(), Tone::Faint),
                    ]
                })
            }
            Act::Adopt { id, organisation, name, json } => {
                let body = json!({ "organisation": organisation, "name": name });
                let adopted: Value = client.post(&format!("/orphans/{}/adopt", segment(id)), &body).await?;
                let called = adopted["name"].as_str().unwrap_or(word(&adopted, "id"));
                match json {
                    true => print_json(&adopted)?,
                    false => print(called)?,
                }
                say(&format!("hint: cove start {called}"));
                Ok(0)
            }
            Act::Rm { id, json } => {
                client.delete(&format!("/orphans/{}", segment(id))).await?;
                match json {
                    true => print_json(&json!({ "id": id, "state": "removed" }))?,
                    false => print(id)?,
                }
                Ok(0)
            }
        }
    })
}
