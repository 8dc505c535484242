//! `cove providers`.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{List, Tone, say, word};

/// List the providers, and what each can do
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove providers")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let providers: Vec<Value> = block_on(client.get("/providers"))?;
    let headings =
        ["name", "kind", "default", "isolation", "pause", "resize", "files stay", "network policy", "archive"];
    List { headings, empty: "no providers" }.show(&providers, arguments.json, |provider| {
        let can = |name: &str| match provider[name].as_bool() {
            Some(true) => ("yes".to_owned(), Tone::Good),
            _ => ("no".to_owned(), Tone::Faint),
        };
        [
            (word(provider, "name").to_owned(), Tone::Plain),
            (word(provider, "kind").to_owned(), Tone::Plain),
            can("default"),
            (word(provider, "isolation").to_owned(), Tone::Plain),
            can("pause"),
            can("resize"),
            can("persistent"),
            can("network_policy"),
            can("archive"),
        ]
    })?;
    if !arguments.json {
        for provider in &providers {
            for refusal in provider["refusals"].as_array().into_iter().flatten() {
                let (ability, reason) = (word(refusal, "ability").replace('_', " "), word(refusal, "reason"));
                say(&format!("hint: {} has no {ability}: {reason}", word(provider, "name")));
            }
        }
    }
    Ok(0)
}
