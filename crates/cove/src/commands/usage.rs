//! `cove usage`: what was used, and what it cost.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::Value;

use super::ls;
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::render::{Rows, Tone, print_json};

/// Show what your organisation or one sandbox was given and what it cost
///
/// What counts is what a sandbox may use, not what it does use: processors and memory while it runs, memory while it is
/// paused, its disk until it is destroyed. TIME has all of these.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove usage
  cove usage box
  cove usage --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z --json

COST is by [prices] of the server's configuration, in whatever currency these are.
Sandboxes that are gone are listed by their ids.
`cove top` shows what sandboxes use now.")]
pub struct Arguments {
    /// One sandbox, by name or id [default: all]
    #[arg(add = crate::complete::sandboxes())]
    sandbox: Option<String>,
    /// From this time on
    #[arg(long, value_name = "TIME")]
    from: Option<jiff::Timestamp>,
    /// Until this time
    #[arg(long, value_name = "TIME")]
    to: Option<jiff::Timestamp>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let (from, to) = (arguments.from.map(|at| at.to_string()), arguments.to.map(|at| at.to_string()));
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    pairs.extend(from.as_deref().map(|at| ("from", at)));
    pairs.extend(to.as_deref().map(|at| ("to", at)));
    let what = format!("/usage{}", query_string(&pairs));
    let (report, names): (Value, BTreeMap<String, String>) = block_on(async {
        match &arguments.sandbox {
            Some(sandbox) => Ok((client.ask_also_destroyed(sandbox, &what).await?, BTreeMap::new())),
            None if arguments.json => Ok((client.get(&what).await?, BTreeMap::new())),
            None => Ok((client.get(&what).await?, ls::names(&client).await?)),
        }
    })?;
    if arguments.json {
        print_json(&report)?;
        return Ok(0);
    }
    let mut rows = Rows::new(&["what", "time", "cpu seconds", "memory GiB·h", "disk GiB·h", "cost"]);
    let mut row = |what: &str, amount: &Value, tone: Tone| {
        let figure = |name: &str, unit: f64| format!("{:.2}", amount[name].as_f64().unwrap_or_default() / unit);
        let time = std::time::Duration::try_from_secs_f64(amount["seconds"].as_f64().unwrap_or_default());
        rows.add(&[
            (what, tone),
            (&time.map(crate::quantity::show_duration).unwrap_or_default(), Tone::Plain),
            (&figure("cpu_seconds", 1.0), Tone::Plain),
            (&figure("memory_gib_seconds", 3600.0), Tone::Plain),
            (&figure("disk_gib_seconds", 3600.0), Tone::Plain),
            (&format!("{:.4}", amount["cost"].as_f64().unwrap_or_default()), Tone::Plain),
        ]);
    };
    let total = report.get("total").unwrap_or(&report);
    match &arguments.sandbox {
        Some(sandbox) => row(sandbox, total, Tone::Plain),
        None => {
            for (sandbox, amount) in report["by_sandbox"].as_object().into_iter().flatten() {
                row(names.get(sandbox).unwrap_or(sandbox), amount, Tone::Plain);
            }
            row("all", total, Tone::Good);
        }
    }
    rows.print()?;
    Ok(0)
}
