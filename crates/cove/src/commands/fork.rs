//! `cove fork`.

use clap::Args;
use serde_json::{Value, json};

use crate::client::sandbox::path;
use crate::client::{Client, block_on};
use crate::complaint::{Complaint, code};
use crate::progress::waiting;
use crate::render::{print, print_json, say, word};

/// Copy a sandbox, with all its files as they are now
///
/// The copies run at once, each with an id and a network of its own; the source goes on. Processes are not copied, and
/// volumes are shared. Prints the name of each copy, or its id where it has none.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove fork box
  cove fork box --count 3
  cove fork box --name try-a --name try-b")]
pub struct Arguments {
    /// Its name or id
    #[arg(value_name = "SANDBOX", add = crate::complete::sandboxes())]
    sandbox: String,
    /// How many copies
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    count: Option<u32>,
    /// What a copy is called; can be repeated; with --count more copies, the others have ids alone
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let mut body = json!({ "names": arguments.name });
    if let Some(count) = arguments.count {
        body["count"] = json!(count);
    }
    let forked: Value = block_on(async {
        let call = format!("{}/fork", path(&arguments.sandbox)?);
        waiting(&format!("fork {}", arguments.sandbox), client.post(&call, &body)).await
    })?;
    let forks = forked["forks"].as_array().cloned().unwrap_or_default();
    let failed = forks.iter().any(|fork| fork["sandbox"].is_null());
    if arguments.json {
        print_json(&forked)?;
    } else {
        for fork in &forks {
            match &fork["sandbox"] {
                Value::Null => say(&format!("error: {}", word(&fork["error"], "message"))),
                sandbox => print(sandbox["name"].as_str().unwrap_or(word(sandbox, "id")))?,
            }
        }
    }
    Ok(if failed { code::FAILED } else { 0 })
}
