//! The command line: which verbs there are. Each verb's own flags are in its file.

use clap::{Parser, Subcommand};

use crate::commands;

const START_HERE: &str = "Start here:
  cove run -- python3 -c 'print(6*7)'    one command in a sandbox of its own; needs no server
  cove doctor                            what this machine can do, and how to get the rest
  cove serve                             sandboxes that live on, over HTTP, for many";

/// Runs AI agents' code in isolated, stateful sandboxes on your own machines
#[derive(Debug, Parser)]
#[command(
    name = "cove",
    version,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = START_HERE
)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    Run(Box<commands::run::Arguments>),
    Doctor(commands::doctor::Arguments),
    Redteam(commands::redteam::Arguments),
    Bench(commands::bench::Arguments),
    Loadtest(commands::loadtest::Arguments),
    Serve(Box<commands::serve::Arguments>),
    Config(commands::config::Arguments),
    Create(Box<commands::create::Arguments>),
    Exec(commands::exec::Arguments),
    Shell(commands::shell::Arguments),
    Cp(commands::cp::Arguments),
    Logs(commands::logs::Arguments),
    Ls(commands::ls::Arguments),
    Start(commands::start::Arguments),
    Stop(commands::stop::Arguments),
    Pause(commands::pause::Arguments),
    Resume(commands::resume::Arguments),
    Rm(commands::rm::Arguments),
    Extend(commands::extend::Arguments),
    Inspect(commands::inspect::Arguments),
    Explain(commands::explain::Arguments),
    Events(commands::events::Arguments),
    Top(commands::top::Arguments),
    Keys(commands::keys::Arguments),
    Tls(commands::tls::Arguments),
    Template(commands::template::Arguments),
    Reset(commands::reset::Arguments),
    Completions(commands::completions::Arguments),
}
