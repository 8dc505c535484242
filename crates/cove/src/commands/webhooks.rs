//! `cove webhooks`: events for other programs.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, block_on, segment};
use crate::complaint::Complaint;
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// Send events to a URL of yours
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove webhooks create https://hooks.example.com/cove
  cove webhooks create https://hooks.example.com/made --kind sandbox.created
  cove webhooks ls
  cove webhooks rm ID")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List your webhooks
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make one and print the secret that signs its deliveries, which is shown only once
    Create {
        /// Where events go
        url: String,
        /// Only events of this kind; can be repeated
        #[arg(long, value_name = "KIND")]
        kind: Vec<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove one, by its id
    Rm {
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
                let hooks: Vec<Value> = client.get("/webhooks").await?;
                let headings = ["id", "url", "kinds", "created"];
                let list = List { headings, empty: "no webhooks\nhint: cove webhooks create https://…" };
                list.show(&hooks, *json, |hook| {
                    let kinds: Vec<&str> =
                        hook["kinds"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                    let kinds = if kinds.is_empty() { "all".to_owned() } else { kinds.join(" ") };
                    [
                        (word(hook, "id").to_owned(), Tone::Plain),
                        (word(hook, "url").to_owned(), Tone::Plain),
                        (kinds, Tone::Faint),
                        (moment(hook, "created_at"), Tone::Plain),
                    ]
                })
            }
            Act::Create { url, kind, json } => {
                let made: Value = client.post("/webhooks", &json!({ "url": url, "kinds": kind })).await?;
                match json {
                    true => print_json(&made)?,
                    false => print(&format!("{}  {}", word(&made, "id"), word(&made, "secret")))?,
                }
                say("hint: store the secret now: the server does not show it again");
                Ok(0)
            }
            Act::Rm { id, json } => {
                client.delete(&format!("/webhooks/{}", segment(id))).await?;
                match json {
                    true => print_json(&json!({ "id": id, "state": "removed" }))?,
                    false => print(id)?,
                }
                Ok(0)
            }
        }
    })
}
