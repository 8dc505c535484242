//! `cove resize`.

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::change::{Target, object_of};
use crate::complaint::Complaint;
use crate::quantity::{parse_cpus, parse_size, show_size};

/// Change a sandbox's limits, also while it runs
///
/// Other limits stay as they are. A disk can grow but not shrink.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove resize box --memory 2G --cpus 2")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    limits: Limits,
}

/// The same for `create` and `resize`.
#[derive(Debug, Args)]
pub struct Limits {
    /// Processors; 0.5 is half of one
    #[arg(long, value_name = "N", value_parser = parse_cpus, help_heading = "Limits")]
    cpus: Option<f64>,
    /// Memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    memory: Option<u64>,
    /// Disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    disk: Option<u64>,
    /// Processes and threads
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pids: Option<u32>,
}

impl Limits {
    /// `None` where no flag was given.
    pub fn body(&self) -> Option<Value> {
        object_of([
            ("cpus", self.cpus.map(|cpus| json!(cpus))),
            ("memory", self.memory.map(|bytes| json!(bytes))),
            ("disk", self.disk.map(|bytes| json!(bytes))),
            ("pids", self.pids.map(|pids| json!(pids))),
        ])
    }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let Some(body) = arguments.limits.body() else {
        return Err(Complaint::usage("no limit is named").hint("for example: cove resize box --memory 2G"));
    };
    arguments.target.set(Method::PATCH, "limits", &body, |sandbox| {
        let limits = &sandbox.limits;
        let disk = limits.disk.map_or("no limit".to_owned(), show_size);
        let memory = show_size(limits.memory);
        format!("{}: {} cpus, {memory} memory, {disk} disk, {} processes", sandbox.called(), limits.cpus, limits.pids)
    })
}
