//! `cove completions`: a shell script that completes verbs, flags and names of sandboxes.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use crate::complaint::Complaint;

/// Print a completion script for your shell
///
/// The script asks this program for completions, so it also knows the names of your sandboxes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(cove completions bash)                       # in ~/.bashrc
  source <(cove completions zsh)                        # in ~/.zshrc
  cove completions fish | source                        # in ~/.config/fish/config.fish")]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let shell: &dyn EnvCompleter = match arguments.shell {
        Shell::Bash => &Bash,
        Shell::Elvish => &Elvish,
        Shell::Fish => &Fish,
        Shell::PowerShell => &Powershell,
        Shell::Zsh => &Zsh,
        other => return Err(Complaint::usage(format!("there is no script for {other}"))),
    };
    // The program's path as it was called: after an update at the same place the script still works.
    let program = crate::place::program()?;
    let mut script = Vec::new();
    shell.write_registration("COMPLETE", "cove", "cove", &program.to_string_lossy(), &mut script)?;
    io::stdout().lock().write_all(&script)?;
    Ok(0)
}
