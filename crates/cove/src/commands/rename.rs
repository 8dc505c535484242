//! `cove rename`.

use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::change::Target;
use crate::complaint::Complaint;

/// Give a sandbox another name
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove rename box lab
  cove rename lab --none      # only its id from now on")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The new name
    #[arg(value_name = "NAME", required_unless_present = "none", conflicts_with = "none")]
    name: Option<String>,
    /// Remove the name
    #[arg(long)]
    none: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let body = json!({ "name": arguments.name });
    arguments.target.set(Method::PUT, "name", &body, |sandbox| sandbox.called().to_owned())
}
