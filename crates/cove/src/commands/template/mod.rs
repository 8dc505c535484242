//! `cove template`: templates, built on this machine.

mod build;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{Rows, Tone, print_json};

/// Build and list templates
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove template ls
  cove template build code-interpreter")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    Build(build::Arguments),
    /// List the server's templates
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    match &arguments.act {
        Act::Build(arguments) => build::run(arguments),
        Act::Ls { json } => list(*json),
    }
}

fn list(as_json: bool) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let templates: Vec<Value> = block_on(async { client.get("/templates").await })?;
    if as_json {
        print_json(&templates)?;
        return Ok(0);
    }
    let mut rows = Rows::new(&["name", "aliases", "description"]);
    for template in &templates {
        let word = |name: &str| template[name].as_str().unwrap_or_default();
        let aliases: Vec<&str> =
            template["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (told, tone) = match template["note"].as_str() {
            Some(note) => (note, Tone::Faint),
            None => (word("description"), Tone::Plain),
        };
        rows.add(&[(word("name"), Tone::Plain), (&aliases.join(", "), Tone::Faint), (told, tone)]);
    }
    rows.print()?;
    Ok(0)
}
