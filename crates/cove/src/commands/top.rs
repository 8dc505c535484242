//! `cove top`: what the running sandboxes use, again and again.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::client::sandbox::{Sandbox, path};
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::quantity::show_size;
use crate::render::{Rows, Tone, print, print_json};

/// Show what running sandboxes use
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove top --once")]
pub struct Arguments {
    /// Show it once and end; the default when the output is not a terminal
    #[arg(long)]
    once: bool,
    /// Print JSON, once
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Sample {
    cpu_percent: f64,
    memory: u64,
    memory_limit: u64,
    disk: u64,
    processes: u64,
    network_received: u64,
    network_sent: u64,
}

const EVERY: Duration = Duration::from_secs(2);
const RECENT: Duration = Duration::from_secs(60);

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let repeat = !arguments.once && !arguments.json && io::stdout().is_terminal();
    block_on(async {
        loop {
            let lines = sample(&client).await?;
            if arguments.json {
                let all: Vec<_> = lines.into_iter().map(|(sandbox, _, raw)| serde_json::json!({ "sandbox": sandbox.id, "name": sandbox.name, "usage": raw })).collect();
                print_json(&all)?;
                return Ok(0);
            }
            if repeat {
                // Moves home and clears what is below: no flicker, and the scroll-back is kept.
                write!(io::stdout(), "\x1b[H\x1b[J")?;
            }
            table(&lines)?;
            if !repeat {
                return Ok(0);
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = tokio::signal::ctrl_c() => return Ok(130),
            }
        }
    })
}

type Line = (Sandbox, Sample, Value);

async fn sample(client: &Client) -> Result<Vec<Line>, Complaint> {
    let mut lines = Vec::new();
    for value in super::ls::fetch(client, &[("state", "running")]).await? {
        let sandbox = Sandbox::parse(value)?;
        // Only the newest sample is needed.
        let since = (jiff::Timestamp::now() - RECENT).to_string();
        let recent = format!("{}/metrics{}", path(&sandbox.id)?, query_string(&[("from", &since)]));
        let samples: Vec<Value> = match client.get(&recent).await {
            Ok(samples) => samples,
            // It ended between the two requests.
            Err(_) => continue,
        };
        let raw = samples.last().cloned().unwrap_or(Value::Null);
        let latest: Sample = serde_json::from_value(raw.clone()).unwrap_or_default();
        lines.push((sandbox, latest, raw));
    }
    lines.sort_by(|(_, a, _), (_, b, _)| b.cpu_percent.total_cmp(&a.cpu_percent));
    Ok(lines)
}

fn table(lines: &[Line]) -> Result<(), Complaint> {
    if lines.is_empty() {
        return print("no sandbox runs");
    }
    let mut rows = Rows::new(&["sandbox", "cpu %", "memory", "of", "disk", "processes", "received", "sent"]);
    for (sandbox, sample, _) in lines {
        let tight = sample.memory_limit > 0 && sample.memory * 10 > sample.memory_limit * 9;
        rows.add(&[
            (sandbox.called(), Tone::Plain),
            (&format!("{:.1}", sample.cpu_percent), Tone::Plain),
            (&known(sample.memory, show_size), if tight { Tone::Bad } else { Tone::Plain }),
            (&show_size(sample.memory_limit), Tone::Faint),
            (&show_size(sample.disk), Tone::Plain),
            (&known(sample.processes, |count| count.to_string()), Tone::Plain),
            (&show_size(sample.network_received), Tone::Plain),
            (&show_size(sample.network_sent), Tone::Plain),
        ]);
    }
    rows.print()
}

/// What runs has a process and some memory: nothing means that nobody counts it, as on an ordinary user's server without
/// control groups.
fn known(amount: u64, show: impl Fn(u64) -> String) -> String {
    if amount == 0 { "-".to_owned() } else { show(amount) }
}
