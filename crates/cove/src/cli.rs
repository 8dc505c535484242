//! The command line: which verbs there are, and how they are listed. Each verb's own flags are in its file.

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands;

const START_HERE: &str = "Start here:
  cove run -- python3 -c 'print(6*7)'    one command in a sandbox of its own; needs no server
  cove doctor                            what this machine can do, and how to get the rest
  cove serve                             sandboxes that live on, over HTTP, for many

`cove help VERB` tells everything about one. Exit codes: 0 done, 1 failed, 2 wrong command line,
124 --timeout, 125 no sandbox, 126 and 127 program not executable or not there, 128+N ended by
signal N (Ctrl-C: 130).";

/// The verbs, grouped as people look for them. A test checks that each verb is in one group.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Without a server", &["run", "doctor", "redteam", "bench", "loadtest", "reset", "completions"]),
    ("A server", &["setup", "up", "down", "status", "serve", "config", "tls", "migrate"]),
    (
        "Sandboxes",
        &[
            "create", "ls", "exec", "shell", "cp", "logs", "start", "stop", "pause", "resume", "archive", "recover",
            "rm",
        ],
    ),
    ("Their files", &["template", "snapshot", "rollback", "fork", "volume", "fsck"]),
    ("Their settings", &["label", "rename", "resize", "network", "timers", "extend", "ports", "link"]),
    ("What happens", &["inspect", "explain", "events", "top", "usage", "audit", "jobs", "orphans", "upkeep"]),
    ("For an organisation", &["whoami", "keys", "orgs", "pools", "webhooks", "sessions", "providers"]),
];

/// Runs AI agents' code in isolated, stateful sandboxes on your own machines
#[derive(Debug, Parser)]
#[command(name = "cove", version, subcommand_required = true, arg_required_else_help = true, after_help = START_HERE)]
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
    Setup(Box<commands::setup::Arguments>),
    Up(Box<commands::up::Arguments>),
    Down(commands::down::Arguments),
    Status(commands::status::Arguments),
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
    Archive(commands::archive::Arguments),
    Recover(commands::recover::Arguments),
    Rm(commands::rm::Arguments),
    Snapshot(commands::snapshot::Arguments),
    Rollback(commands::rollback::Arguments),
    Fork(commands::fork::Arguments),
    Fsck(commands::fsck::Arguments),
    Volume(commands::volume::Arguments),
    Label(commands::label::Arguments),
    Rename(commands::rename::Arguments),
    Resize(commands::resize::Arguments),
    Network(commands::network::Arguments),
    Timers(commands::timers::Arguments),
    Extend(commands::extend::Arguments),
    Ports(commands::ports::Arguments),
    Link(commands::link::Arguments),
    Inspect(commands::inspect::Arguments),
    Explain(commands::explain::Arguments),
    Events(commands::events::Arguments),
    Top(commands::top::Arguments),
    Usage(commands::usage::Arguments),
    Audit(commands::audit::Arguments),
    Jobs(commands::jobs::Arguments),
    Whoami(commands::whoami::Arguments),
    Keys(commands::keys::Arguments),
    Orgs(commands::orgs::Arguments),
    Orphans(commands::orphans::Arguments),
    Upkeep(commands::upkeep::Arguments),
    Migrate(Box<commands::migrate::Arguments>),
    Pools(commands::pools::Arguments),
    Webhooks(commands::webhooks::Arguments),
    Sessions(commands::sessions::Arguments),
    Providers(commands::providers::Arguments),
    Tls(commands::tls::Arguments),
    Template(commands::template::Arguments),
    Reset(commands::reset::Arguments),
    Completions(commands::completions::Arguments),
}

/// `cove run …` where it is well formed, without describing every other verb first: that takes a third of a millisecond, and
/// `run` is what people wait for. Anything else, help and mistakes too, is for [`command`], which words the answer.
pub fn run_alone(mut words: impl Iterator<Item = OsString>) -> Option<Cli> {
    words.next().filter(|word| word == "run")?;
    let command = commands::run::Arguments::augment_args(clap::Command::new("run").no_binary_name(true));
    let matches = command.try_get_matches_from(words).ok()?;
    let arguments = commands::run::Arguments::from_arg_matches(&matches).ok()?;
    Some(Cli { verb: Verb::Run(Box::new(arguments)) })
}

/// The whole command line, with its verbs listed by group.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let mut lines = String::new();
    for (group, verbs) in GROUPS {
        lines.push_str(&format!("\n{group}:\n"));
        for verb in verbs {
            let about = command.find_subcommand(verb).and_then(|verb| verb.get_about()).map(ToString::to_string);
            lines.push_str(&format!("  {verb:<12} {}\n", about.unwrap_or_default()));
        }
    }
    // What comes after has an empty line before it.
    let lines = lines.trim_end();
    command.help_template(format!("{{about}}\n\n{{usage-heading}} cove VERB …\n{lines}{{after-help}}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_listed_once() {
        let command = Cli::command();
        let mut verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        verbs.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, verbs);
    }

    #[test]
    fn a_run_is_read_alone_as_it_is_among_all_verbs() {
        let read = |line: &str| {
            let words = || line.split(' ').map(OsString::from);
            let alone = run_alone(words().skip(1)).map(|cli| format!("{cli:?}"));
            let among_all = command().try_get_matches_from(words()).and_then(|matches| Cli::from_arg_matches(&matches));
            (alone, among_all.map(|cli| format!("{cli:?}")).ok())
        };
        for line in [
            "cove run -- true",
            "cove run true --json",
            "cove run -it --memory 256M --timeout 30s --mount /tmp:/data -e A=1 -- sh -c id",
        ] {
            let (alone, among_all) = read(line);
            assert!(alone.is_some() && alone == among_all, "{line}: {alone:?}, {among_all:?}");
        }
        // The whole tree words what follows.
        for line in ["cove run", "cove run --help", "cove run --no-such-flag -- true", "cove run --memory lots -- true"]
        {
            assert_eq!(read(line), (None, None), "{line}");
        }
        assert!(read("cove ls").0.is_none());
    }

    #[test]
    fn every_verb_and_its_parts_can_print_json() {
        // They print a script, a terminal, or lines for `eval`.
        const WITHOUT: [&str; 3] = ["completions", "shell", "tls env"];
        fn check(command: &clap::Command, path: &str) {
            let own: Vec<_> = command.get_subcommands().filter(|one| one.get_name() != "help").collect();
            for part in &own {
                check(part, format!("{path} {}", part.get_name()).trim_start());
            }
            let json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            assert!(json || !own.is_empty() || WITHOUT.contains(&path), "{path} has no --json");
        }
        check(&Cli::command(), "");
    }

    #[test]
    fn every_verb_has_an_example() {
        for verb in Cli::command().get_subcommands() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example") && help.contains("cove "), "{} has none", verb.get_name());
        }
    }
}
