//! `cove audit`.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::render::{List, Tone, moment, number, word};

/// Show who changed what, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove audit -n 20
  cove audit --before 1200        # the page before that number")]
pub struct Arguments {
    /// How many of the newest
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only entries before this number
    #[arg(long, value_name = "SEQ")]
    before: Option<i64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let limit = arguments.limit.to_string();
    let before = arguments.before.map(|before| before.to_string());
    let mut pairs = vec![("limit", limit.as_str())];
    pairs.extend(before.as_deref().map(|before| ("before", before)));
    let entries: Vec<Value> = block_on(client.get(&format!("/audit{}", query_string(&pairs))))?;
    let list = List { headings: ["seq", "when", "key", "action", "subject"], empty: "nothing was changed" };
    list.show(&entries, arguments.json, |entry| {
        [
            (number(entry, "seq"), Tone::Faint),
            (moment(entry, "at"), Tone::Plain),
            (word(entry, "key").to_owned(), Tone::Faint),
            (word(entry, "action").to_owned(), Tone::Plain),
            (word(entry, "subject").to_owned(), Tone::Plain),
        ]
    })
}
