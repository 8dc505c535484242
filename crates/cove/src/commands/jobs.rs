//! `cove jobs`: what the server does in the background.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::render::{List, Tone, moment, number, word};

/// List the server's background work: archiving, restoring, deliveries
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove jobs --state failed")]
pub struct Arguments {
    /// Only jobs in this state
    #[arg(short, long, value_name = "STATE", value_parser = ["queued", "running", "done", "failed"])]
    state: Option<String>,
    /// How many of the newest
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let limit = arguments.limit.to_string();
    let mut pairs = vec![("limit", limit.as_str())];
    pairs.extend(arguments.state.as_deref().map(|state| ("state", state)));
    let jobs: Vec<Value> = block_on(client.get(&format!("/jobs{}", query_string(&pairs))))?;
    let headings = ["id", "kind", "subject", "state", "runs", "tries", "error"];
    List { headings, empty: "no jobs" }.show(&jobs, arguments.json, |job| {
        let tone = match word(job, "state") {
            "failed" => Tone::Bad,
            "done" => Tone::Faint,
            _ => Tone::Good,
        };
        [
            (word(job, "id").to_owned(), Tone::Faint),
            (word(job, "kind").to_owned(), Tone::Plain),
            (word(job, "subject").to_owned(), Tone::Plain),
            (word(job, "state").to_owned(), tone),
            (moment(job, "run_at"), Tone::Plain),
            (number(job, "attempts"), Tone::Plain),
            (word(job, "error").to_owned(), Tone::Bad),
        ]
    })
}
