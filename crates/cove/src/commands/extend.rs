//! `cove extend`.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::sandbox::{Sandbox, path};
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::quantity::parse_duration;
use crate::render::{print, print_json};

/// Give a sandbox another lifetime, counted from now
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its name or id
    sandbox: String,
    /// How long from now; `never` takes the end away
    #[arg(value_name = "TIME", value_parser = parse_lifetime)]
    time: Lifetime,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lifetime(Option<Duration>);

fn parse_lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" { Ok(Lifetime(None)) } else { parse_duration(text).map(Some).map(Lifetime) }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let seconds = arguments.time.0.map(|time| time.as_secs_f64().ceil() as u64);
    let client = Client::from_environment()?;
    let changed: Value = block_on(async {
        let request = client.request(Method::PATCH, &format!("{}/timers", path(&arguments.sandbox)?));
        let request = request.json(&json!({ "lifetime_seconds": seconds }));
        client.read(client.send(request).await?).await
    })?;
    if arguments.json {
        print_json(&changed)?;
        return Ok(0);
    }
    let sandbox = Sandbox::parse(changed)?;
    let end = sandbox
        .timers
        .deadline
        .map_or("never ends".to_owned(), |end| format!("ends {}", end.strftime("%Y-%m-%d %H:%M:%S UTC")));
    print(&format!("{} {end}", sandbox.called()))?;
    Ok(0)
}
