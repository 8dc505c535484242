//! `cove link`.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::change::Target;
use crate::client::sandbox::path;
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::quantity::parse_duration;
use crate::render::{moment, print, print_json, say, word};

/// Make a link to a port of a sandbox, for a browser
///
/// The link carries a token of its own and needs no API key.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove link box 8000
  cove link box 8000 --expires 10m
  cove link box 8000 --public         # its ports are open to all from now on
  curl -s \"$(cove link box 8000)\"")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The port that something listens on inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How long the link opens it
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
    /// Open all ports of the sandbox to everybody who knows the address
    #[arg(long, conflicts_with = "private")]
    public: bool,
    /// Ask for a token again
    #[arg(long)]
    private: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let (target, port) = (&arguments.target, arguments.port);
    let expires = arguments.expires.map(|time| (time.as_secs_f64().ceil() as u64).to_string());
    let link: Value = block_on(async {
        if arguments.public || arguments.private {
            let body = json!({ "public": arguments.public });
            let _: Value = client.set(&target.sandbox, Method::PUT, "visibility", &body).await?;
        }
        let query: Vec<_> = expires.as_deref().map(|seconds| ("expires_in_seconds", seconds)).into_iter().collect();
        client.get(&format!("{}/ports/{port}/link{}", path(&target.sandbox)?, query_string(&query))).await
    })?;
    if target.json {
        print_json(&link)?;
        return Ok(0);
    }
    print(word(&link, "url"))?;
    say(&format!("hint: it opens port {port} until {}", moment(&link, "expires_at")));
    Ok(0)
}
