//! `cove`: the program people install.
//!
//! # Layout
//! * [`cli`]: the verbs; [`commands`]: one file for each
//! * [`complaint`]: errors with hints and exit codes, printed here and nowhere else; [`usage`]: those of the command line
//! * [`render`], [`progress`], [`quantity`], [`terminal`]: what people see and write
//! * [`measure`]: a server for one measurement, and reports of it; from `cove-bench`, as `bench` and `loadtest` are
//! * [`telemetry`]: the server's log, and traces for a collector
//! * [`client`]: talks to a server; [`place`]: where files are; [`background`]: a server that nobody watches
//! * [`landing`], [`interrupt`]: files that arrive completely or not at all; [`reachable`]: what a sandbox may reach;
//!   [`complete`]: TAB

#![forbid(unsafe_code)]

mod background;
mod cli;
mod client;
mod commands;
mod complete;
mod ending;
mod interrupt;
mod place;
mod progress;
mod reachable;
mod telemetry;
mod usage;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use cli::{Cli, Verb};
use complaint::{Complaint, code};
use cove_bench::measure;
// What `cove-bench` has in common with this program; `crate::complaint` and the others are these.
use cove_terminal::{complaint, landing, quantity, render, terminal};

/// musl's allocator makes threads wait for each other.
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A spawner is this program with one argument. It must have done nothing else before.
    if std::env::args_os().nth(1).is_some_and(|word| word == cove_engine::spawner::ARGUMENT) {
        cove_engine::spawner_main();
    }
    // A worker that reads a TypeScript cell is, too.
    if std::env::args_os().nth(1).is_some_and(|word| word == cove_control::interpreter::typescript::ARGUMENT) {
        return cove_control::interpreter::typescript::main();
    }
    // Inside a sandbox this program is the red team's probe.
    if std::env::args().nth(1).is_some_and(|word| word == commands::redteam::PROBE) {
        return cove_probe::battery::main(&[commands::redteam::PROBE], &std::env::args().skip(2).collect::<Vec<_>>());
    }
    // The shell asks for completions.
    if std::env::var_os("COMPLETE").is_some() {
        clap_complete::CompleteEnv::with_factory(cli::command).complete();
    }
    // Parts of `reset` and `bench` that an ordinary user's process can do only after it has moved into its user namespace:
    // they start this program again with a word of their own.
    let mut words = std::env::args_os().skip(1);
    let result = match words.next() {
        Some(word) if word == commands::reset::REMOVE => commands::reset::remove_at_home(words),
        Some(word) if word == commands::bench::ENGINE => commands::bench::engine_at_home(words),
        _ => parse().and_then(|cli| run(&cli.verb)),
    };
    ExitCode::from(result.unwrap_or_else(|complaint| {
        if !complaint.is_silent() {
            render::say(&complaint.to_string());
        }
        complaint.code()
    }))
}

fn run(verb: &Verb) -> Result<u8, Complaint> {
    match verb {
        Verb::Run(arguments) => commands::run::run(arguments),
        Verb::Doctor(arguments) => commands::doctor::run(arguments),
        Verb::Redteam(arguments) => commands::redteam::run(arguments),
        Verb::Bench(arguments) => commands::bench::run(arguments),
        Verb::Loadtest(arguments) => commands::loadtest::run(arguments),
        Verb::Serve(arguments) => commands::serve::run(arguments),
        Verb::Config(arguments) => commands::config::run(arguments),
        Verb::Setup(arguments) => commands::setup::run(arguments),
        Verb::Up(arguments) => commands::up::run(arguments),
        Verb::Down(arguments) => commands::down::run(arguments),
        Verb::Status(arguments) => commands::status::run(arguments),
        Verb::Upkeep(arguments) => commands::upkeep::run(arguments),
        Verb::Migrate(arguments) => commands::migrate::run(arguments),
        Verb::Create(arguments) => commands::create::run(arguments),
        Verb::Ls(arguments) => commands::ls::run(arguments),
        Verb::Start(arguments) => commands::start::run(arguments),
        Verb::Stop(arguments) => commands::stop::run(arguments),
        Verb::Pause(arguments) => commands::pause::run(arguments),
        Verb::Resume(arguments) => commands::resume::run(arguments),
        Verb::Rm(arguments) => commands::rm::run(arguments),
        Verb::Inspect(arguments) => commands::inspect::run(arguments),
        Verb::Explain(arguments) => commands::explain::run(arguments),
        Verb::Cp(arguments) => commands::cp::run(arguments),
        Verb::Events(arguments) => commands::events::run(arguments),
        Verb::Exec(arguments) => commands::exec::run(arguments),
        Verb::Extend(arguments) => commands::extend::run(arguments),
        Verb::Keys(arguments) => commands::keys::run(arguments),
        Verb::Template(arguments) => commands::template::run(arguments),
        Verb::Logs(arguments) => commands::logs::run(arguments),
        Verb::Shell(arguments) => commands::shell::run(arguments),
        Verb::Tls(arguments) => commands::tls::run(arguments),
        Verb::Top(arguments) => commands::top::run(arguments),
        Verb::Reset(arguments) => commands::reset::run(arguments),
        Verb::Completions(arguments) => commands::completions::run(arguments),
        Verb::Archive(arguments) => commands::archive::run(arguments),
        Verb::Audit(arguments) => commands::audit::run(arguments),
        Verb::Jobs(arguments) => commands::jobs::run(arguments),
        Verb::Snapshot(arguments) => commands::snapshot::run(arguments),
        Verb::Rollback(arguments) => commands::rollback::run(arguments),
        Verb::Fork(arguments) => commands::fork::run(arguments),
        Verb::Fsck(arguments) => commands::fsck::run(arguments),
        Verb::Volume(arguments) => commands::volume::run(arguments),
        Verb::Label(arguments) => commands::label::run(arguments),
        Verb::Link(arguments) => commands::link::run(arguments),
        Verb::Network(arguments) => commands::network::run(arguments),
        Verb::Orgs(arguments) => commands::orgs::run(arguments),
        Verb::Orphans(arguments) => commands::orphans::run(arguments),
        Verb::Pools(arguments) => commands::pools::run(arguments),
        Verb::Ports(arguments) => commands::ports::run(arguments),
        Verb::Providers(arguments) => commands::providers::run(arguments),
        Verb::Recover(arguments) => commands::recover::run(arguments),
        Verb::Rename(arguments) => commands::rename::run(arguments),
        Verb::Resize(arguments) => commands::resize::run(arguments),
        Verb::Sessions(arguments) => commands::sessions::run(arguments),
        Verb::Timers(arguments) => commands::timers::run(arguments),
        Verb::Usage(arguments) => commands::usage::run(arguments),
        Verb::Webhooks(arguments) => commands::webhooks::run(arguments),
        Verb::Whoami(arguments) => commands::whoami::run(arguments),
    }
}

/// Help and version go to stdout with code 0; a wrong command line is a complaint.
fn parse() -> Result<Cli, Complaint> {
    if let Some(cli) = cli::run_alone(std::env::args_os().skip(1)) {
        return Ok(cli);
    }
    let parsed = cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // Without a verb: lists the verbs, and fails, so that a script without its verb notices.
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return error.print().map_or_else(Complaint::from, |()| Complaint::silent().with_code(code::USAGE));
        }
        if error.use_stderr() {
            let all = cli::command();
            let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
            let (verb, part) = usage::about(&all, words);
            return usage::complaint(&error, &all, verb, part.as_deref());
        }
        error.print().map_or_else(Complaint::from, |()| Complaint::silent())
    })
}
