//! `cove extend`.

use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::change::Target;
use crate::complaint::Complaint;
use crate::quantity::{Span, parse_span};

/// Give a sandbox another lifetime, counted from now
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove extend box 2h
  cove extend box never")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// How long from now; `never` removes the end
    #[arg(value_name = "TIME", value_parser = parse_span)]
    time: Span,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let body = json!({ "lifetime_seconds": arguments.time.seconds() });
    arguments.target.set(Method::PATCH, "timers", &body, |sandbox| {
        let end = sandbox.timers.deadline.map(|end| format!("ends {}", end.strftime("%Y-%m-%d %H:%M:%S UTC")));
        format!("{} {}", sandbox.called(), end.as_deref().unwrap_or("never ends"))
    })
}
