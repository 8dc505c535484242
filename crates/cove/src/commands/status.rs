//! `cove status`: whether a server is up on this machine, and how it does.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::settings;
use crate::background;
use crate::client::{Client, block_on};
use crate::complaint::{Complaint, code};
use crate::place::Place;
use crate::render::{Rows, Tone, print_json, say, word};

/// Tell whether the server of this machine is up, and how its providers do
///
/// The exit code is 0 where it is up, and 1 where it is not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove status
  cove status --json")]
pub struct Arguments {
    /// The data directory of the server [env: COVE_DATA] [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let data = settings::data_directory(arguments.data.as_deref())?;
    let pid = background::server_of(&data)?;
    let url = Place::new(Some(data.clone())).server().filter(|_| pid.is_some());
    let key = std::fs::read_to_string(data.join("api-key")).ok().map(|key| key.trim().to_owned());
    let key = std::env::var("COVE_API_KEY").ok().filter(|key| !key.is_empty()).or(key);
    // What it says of itself needs a key; that it is up does not.
    let providers: Option<Vec<Value>> = match (&url, key) {
        (Some(url), Some(key)) => block_on(Client::at(url, &key)?.get("/providers")).ok(),
        _ => None,
    };
    if arguments.json {
        print_json(&json!({
            "up": pid.is_some(),
            "pid": pid,
            "url": url,
            "data": data,
            "log": background::log_of(&data),
            "providers": providers,
        }))?;
    } else {
        tell(&data.display().to_string(), pid, url.as_deref(), providers.as_deref())?;
    }
    Ok(if pid.is_some() { 0 } else { code::FAILED })
}

fn tell(data: &str, pid: Option<u32>, url: Option<&str>, providers: Option<&[Value]>) -> Result<(), Complaint> {
    let mut rows = Rows::new(&["what", "is"]);
    match pid {
        Some(_) => rows.add(&[("server", Tone::Plain), ("up", Tone::Good)]),
        None => rows.add(&[("server", Tone::Plain), ("down", Tone::Warning)]),
    }
    let number = pid.map(|pid| pid.to_string());
    for (name, value) in [("process", number.as_deref()), ("url", url), ("data", Some(data))] {
        if let Some(value) = value {
            rows.add(&[(name, Tone::Plain), (value, Tone::Plain)]);
        }
    }
    for provider in providers.unwrap_or_default() {
        let (state, tone) = match word(&provider["health"], "state") {
            "ill" => ("ill", Tone::Bad),
            _ => ("well", Tone::Good),
        };
        rows.add(&[(&format!("provider {}", word(provider, "name")), Tone::Plain), (state, tone)]);
    }
    rows.print()?;
    if pid.is_none() {
        say("hint: cove up starts it");
    }
    Ok(())
}
