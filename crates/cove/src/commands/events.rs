//! `cove events`.

use clap::Args;
use futures::StreamExt;
use reqwest::Method;
use serde_json::Value;

use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::render::{print, print_json};

/// Show what happened to sandboxes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove events -n 20
  cove events --sandbox box --json")]
pub struct Arguments {
    /// Continue, and show new events as they happen
    #[arg(short, long)]
    follow: bool,
    /// Only events of this sandbox, by name or id
    #[arg(long, value_name = "SANDBOX", add = crate::complete::sandboxes())]
    sandbox: Option<String>,
    /// How many of the newest
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Print JSON, one event on each line with --follow
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        let id = match &arguments.sandbox {
            Some(sandbox) => Some(client.id_also_destroyed(sandbox).await?),
            None => None,
        };
        let mut pairs: Vec<(&str, &str)> = id.as_deref().map(|id| ("sandbox", id)).into_iter().collect();
        if arguments.follow {
            return follow(&client, &query_string(&pairs), arguments.json).await;
        }
        let limit = arguments.limit.to_string();
        pairs.extend([("limit", limit.as_str()), ("newest", "true")]);
        let query = query_string(&pairs);
        let events: Vec<Value> = client.get(&format!("/events{query}")).await?;
        if arguments.json {
            print_json(&events)?;
        } else {
            events.iter().try_for_each(|event| print(&line(event)))?;
        }
        Ok(0)
    })
}

/// Server-sent events: lines of `data: …`, an empty line after each.
async fn follow(client: &Client, query: &str, as_json: bool) -> Result<u8, Complaint> {
    let request = client.request(Method::GET, &format!("/events/follow{query}")).header("accept", "text/event-stream");
    let mut stream = client.send(request).await?.bytes_stream();
    let mut pending = String::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| Complaint::failed(format!("the server went away: {error}")))?;
        pending.push_str(&String::from_utf8_lossy(&chunk));
        while let Some(end) = pending.find('\n') {
            let one: String = pending.drain(..=end).collect();
            let Some(data) = one.trim_end().strip_prefix("data:") else { continue };
            match serde_json::from_str(data.trim()) {
                Ok(Value::Array(events)) => events.iter().try_for_each(|event| tell(event, as_json))?,
                Ok(event) => tell(&event, as_json)?,
                Err(error) => return Err(Complaint::failed(format!("an event is not JSON: {error}"))),
            }
        }
    }
    Ok(0)
}

fn tell(event: &Value, as_json: bool) -> Result<(), Complaint> {
    if as_json { print(&event.to_string()) } else { print(&line(event)) }
}

/// Time, sandbox, event, reason.
fn line(event: &Value) -> String {
    let word = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let at = word("/at").split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ");
    let who = Some(word("/data/name")).filter(|name| !name.is_empty()).unwrap_or(word("/sandbox"));
    format!("{at}  {who:<20}  {:<18}  {}", word("/kind"), word("/data/cause/message")).trim_end().to_owned()
}
