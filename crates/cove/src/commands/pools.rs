//! `cove pools`: sandboxes made ahead.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Client, block_on, segment};
use crate::complaint::Complaint;
use crate::render::{List, Tone, number, print, print_json, word};

/// Keep sandboxes of a template ready, so that a creation does not wait
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove pools set base 5
  cove pools ls
  cove pools rm base")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List your pools: how many sandboxes are ready, and how often a creation found one
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Keep this many ready
    Set {
        /// The template's name
        template: String,
        /// How many
        #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
        size: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a pool and its sandboxes
    Rm {
        /// The template's name
        template: String,
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
                let pools: Vec<Value> = client.get("/pools").await?;
                let headings = ["template", "size", "ready", "warm", "hits", "misses"];
                let list = List { headings, empty: "no pools\nhint: cove pools set base 5" };
                list.show(&pools, *json, |pool| {
                    let count = |name| (number(pool, name), Tone::Plain);
                    let template = (word(pool, "template").to_owned(), Tone::Plain);
                    [template, count("size"), count("ready"), count("warm"), count("hits"), count("misses")]
                })
            }
            Act::Set { template, size, json } => {
                let request = client.request(Method::PUT, &format!("/pools/{}", segment(template)));
                let pool: Value = client.read(client.send(request.json(&json!({ "size": size }))).await?).await?;
                match json {
                    true => print_json(&pool)?,
                    false => print(&format!("{} {}", word(&pool, "template"), number(&pool, "size")))?,
                }
                Ok(0)
            }
            Act::Rm { template, json } => {
                client.delete(&format!("/pools/{}", segment(template))).await?;
                match json {
                    true => print_json(&json!({ "template": template, "state": "removed" }))?,
                    false => print(template)?,
                }
                Ok(0)
            }
        }
    })
}
