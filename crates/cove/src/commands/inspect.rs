//! `cove inspect`.

use clap::Args;

use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::print_json;

/// Show everything the server knows of a sandbox, as JSON
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its name or id
    sandbox: String,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    print_json(&block_on(client.sandbox(&arguments.sandbox))?)?;
    Ok(0)
}
