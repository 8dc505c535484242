//! `cove usage`: what was used, and what it cost.

use clap::Args;
use serde_json::Value;

use crate::client::sandbox::path;
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::render::{Rows, Tone, print_json};

/// Show what your organisation or one sandbox used and cost
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove usage
  cove usage box
  cove usage --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z --json")]
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
    let place = match &arguments.sandbox {
        Some(sandbox) => path(sandbox)?,
        None => String::new(),
    };
    let report: Value = block_on(client.get(&format!("{place}/usage{}", query_string(&pairs))))?;
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
                row(sandbox, amount, Tone::Plain);
            }
            row("all", total, Tone::Good);
        }
    }
    rows.print()?;
    Ok(0)
}
