//! `cove completions`: the script that teaches a shell our verbs and flags.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::complaint::Complaint;

/// Print a completion script for your shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove completions bash > ~/.local/share/bash-completion/completions/cove
  cove completions zsh > ~/.zfunc/_cove
  cove completions fish > ~/.config/fish/completions/cove.fish")]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    // Into memory first: the generator panics on a pipe that is closed half-way.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "cove", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(0)
}
