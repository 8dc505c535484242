//! `cove run`: a fresh sandbox, the command, its output, its exit code, gone again. Needs no server.
//!
//! The engine is opened in this process, which has one thread and launches by itself. The sandbox hangs on a leash: if
//! this process dies, whatever the reason, the sandbox ends too.

mod arguments;
mod connection;
mod foreground;
mod leftovers;
mod sandbox;

use std::io::{self, IsTerminal};
use std::path::Path;

pub use arguments::{Arguments, NetworkKind, is_variable, parse_target};
use connection::{CallError, call, send};
use cove_control::provider::local;
use cove_engine::spec::Storage;
use cove_engine::state::LargestProcess;
use cove_engine::{Config, Engine, Spawning};
use cove_protocol::file::WriteMode;
use cove_protocol::process::{Command, OnDisconnect, Spec, Stdio, TerminalSize};
use cove_protocol::{Failure, FailureKind, Request};
use cove_sys::signal::Signals;
use foreground::{Foreground, Input, Outcome, SIGNALS};
pub use sandbox::complaint as engine_complaint;

use crate::client::transcript::Transcript;
use crate::complaint::{Complaint, code};
use crate::place::{Place, is_root};
use crate::quantity::{show_duration, show_size};
use crate::reachable::Reachable;
use crate::render::{print_json, say};
use crate::terminal;

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let (command, input) = (command(arguments)?, input(arguments)?);
    let reachable = Reachable::read(&arguments.allow)?;
    // Templates are the server's; the sandbox itself has another directory.
    let templates = Place::new(None).data();
    let root = sandbox::root(&templates, &arguments.template)?;
    let sandbox = sandbox::spec(arguments, &reachable, local::engine_root(&root))?;

    // From here on no signal ends us between making a sandbox and removing it.
    let signals = Signals::block(&SIGNALS.map(|signal| signal.as_raw()))
        .map_err(|error| Complaint::engine(format!("block signals: {error}")))?;
    let data = Place::new(arguments.data.clone()).ephemeral(sandbox::files(arguments));
    let (layers, waived) = (Some(Place::new(None).data()), arguments.waived());
    let config = Config { data: data.clone(), spawning: Spawning::Inline, pool: 0, layers, waived };
    let engine = Engine::open(config).map_err(sandbox::complaint)?;
    let running = engine.begin(&sandbox).map_err(sandbox::complaint)?;
    sandbox::tell_what_is_weaker(&engine, &sandbox);

    let mut transcript = Transcript::default();
    let outcome = make_workdir(&running.socket, arguments)
        .and_then(|()| name_inside(&running.socket, &reachable))
        .and_then(|()| {
            Foreground::start(&running.socket, &signals, command, input, arguments.timeout)
                .and_then(|begun| begun.settling(&engine).keeping(arguments.json.then_some(&mut transcript)).run())
                .map_err(|error| Complaint::failed(error.to_string()))
        });
    let shortage = outcome.as_ref().ok().and_then(|outcome| Shortage::behind(outcome, &engine, &sandbox));
    let full = outcome.as_ref().ok().filter(|_| shortage.is_none());
    let full = full.map(|outcome| Full::behind(outcome, &engine, &sandbox)).unwrap_or_default();
    let removed = engine.destroy(&sandbox.id).map_err(sandbox::complaint);
    let cleaned = leftovers::clean(engine, &data);

    full.tell(&sandbox);
    let outcome = outcome?;
    let timed_out = outcome == Outcome::TimedOut;
    let ended = report(arguments, outcome, shortage.as_ref());
    if ended.is_ok() {
        removed?;
        cleaned?;
    }
    if arguments.json {
        let mut told = transcript.to_json();
        told["exit_code"] = ended.as_ref().map_or_else(Complaint::code, |code| *code).into();
        told["timed_out"] = timed_out.into();
        told["out_of_memory"] = shortage.is_some().into();
        if let Err(complaint) = &ended {
            told["error"] = complaint.message().into();
        }
        print_json(&told)?;
    }
    ended
}

fn command(arguments: &Arguments) -> Result<Spec, Complaint> {
    let mut env = arguments.environment()?;
    let stdio = if arguments.tty {
        if !io::stdin().is_terminal() {
            return Err(Complaint::usage("-t needs a terminal, and standard input is none")
                .hint("leave out -t; a pipe on standard input reaches the command without it"));
        }
        for name in ["TERM", "COLORTERM"] {
            if let Ok(value) = std::env::var(name) {
                env.entry(name.to_owned()).or_insert(value);
            }
        }
        Stdio::Terminal(terminal::size().unwrap_or(TerminalSize { rows: 24, columns: 80 }))
    } else if input(arguments)? == Input::Forwarded {
        Stdio::Piped
    } else {
        Stdio::Closed
    };
    Ok(Spec {
        env,
        cwd: arguments.workdir.clone(),
        user: arguments.user.clone(),
        stdio,
        on_disconnect: OnDisconnect::Kill,
        ..Spec::new(Command::Argv(arguments.command.clone()))
    })
}

/// A pipe or a file is always passed on; a keyboard only when asked for, so that a script's own reads are left alone.
fn input(arguments: &Arguments) -> Result<Input, Complaint> {
    if arguments.interactive || !io::stdin().is_terminal() {
        return Ok(Input::Forwarded);
    }
    if arguments.tty {
        return Err(Complaint::usage("-t without -i is a terminal that nobody can type into")
            .hint(format!("cove run -it -- {}", arguments.command.join(" "))));
    }
    Ok(Input::Closed)
}

/// `--workdir` need not be there yet. What is made belongs to the user who works in it.
fn make_workdir(socket: &Path, arguments: &Arguments) -> Result<(), Complaint> {
    let Some(path) = arguments.workdir.clone() else { return Ok(()) };
    let as_root = Some("root".to_owned());
    let ask = |request: &Request| {
        call(socket, request).map_err(|error| match error {
            CallError::Failed(failure) => Complaint::engine(format!("make --workdir: {}", failure.message)),
            CallError::Lost(why) => Complaint::engine(format!("sandbox was lost: {why}")),
        })
    };
    let made = ask(&Request::MakeDirectory { path: path.clone(), user: as_root.clone(), mode: None })?;
    if !matches!(made, cove_protocol::Reply::Made { existed: false, .. }) {
        return Ok(());
    }
    let (owner, group) = match arguments.user.as_deref().unwrap_or(sandbox::DEFAULT_USER).split_once(':') {
        Some((owner, group)) => (owner.to_owned(), Some(group.to_owned())),
        None => (arguments.user.clone().unwrap_or(sandbox::DEFAULT_USER.into()), None),
    };
    ask(&Request::SetAttributes { path, user: as_root, mode: None, owner: Some(owner), group }).map(drop)
}

/// Has the names that were allowed resolve inside.
fn name_inside(socket: &Path, reachable: &Reachable) -> Result<(), Complaint> {
    let Some(lines) = reachable.hosts() else { return Ok(()) };
    let request = Request::Write {
        path: "/etc/hosts".into(),
        user: Some("root".into()),
        how: WriteMode::Append,
        mode: None,
        parents: false,
    };
    match send(socket, &request, lines.as_bytes()) {
        Ok(_) => Ok(()),
        Err(CallError::Failed(failure)) => Err(Complaint::engine(format!("--allow: {}", failure.message))),
        Err(CallError::Lost(why)) => Err(Complaint::engine(format!("sandbox was lost: {why}"))),
    }
}

/// Memory ran out, as the host's account has it.
struct Shortage {
    peak: u64,
    /// Bytes of files that are in memory.
    files: u64,
    largest: Option<LargestProcess>,
}

impl Shortage {
    /// Asked only where the end looks like one: the account costs a few reads that most runs can do without.
    fn behind(outcome: &Outcome, engine: &Engine, sandbox: &cove_engine::Spec) -> Option<Shortage> {
        let id = &sandbox.id;
        let suspicious = match outcome {
            Outcome::Exited(exit) => exit.out_of_memory || exit.status() == KILLED,
            Outcome::Lost(_) => true,
            _ => false,
        };
        let usage = suspicious.then(|| engine.usage(id).ok()).flatten()?;
        let files = if sandbox.storage == Storage::Memory { usage.disk } else { 0 };
        let largest = || engine.largest_process(id);
        (usage.memory_kills > 0).then(|| Shortage { peak: usage.memory_peak, files, largest: largest() })
    }

    fn tell(&self, arguments: &Arguments) {
        let memory = arguments.memory.unwrap_or(sandbox::DEFAULT_MEMORY);
        let (peak, limit) = (show_size(self.peak.min(memory)), show_size(memory));
        if self.files > memory / 2 {
            let files = show_size(self.files);
            say(&format!("cove: out of memory: {peak} of {limit} used, {files} of it by files that the command wrote"));
            let disk = show_size(memory.saturating_mul(4)).replace(' ', "");
            say(&match is_root() {
                true => format!("hint: --disk {} keeps files on disk", disk.trim_end_matches("iB")),
                false => format!("hint: --memory {}", disk.trim_end_matches("iB")),
            });
            return;
        }
        let largest = match &self.largest {
            Some(process) => format!("; the largest process was {} with {}", process.name, show_size(process.memory)),
            None => String::new(),
        };
        say(&format!("cove: out of memory: {peak} of {limit} used{largest}"));
        let more = show_size(memory.saturating_mul(2)).replace(' ', "");
        say(&format!("hint: --memory {}", more.trim_end_matches("iB")));
    }
}

/// Limits other than memory that the command met.
#[derive(Default)]
struct Full {
    processes: bool,
    /// Bytes that its files took.
    disk: Option<u64>,
}

impl Full {
    /// Asked only where the command failed; otherwise it found another way.
    fn behind(outcome: &Outcome, engine: &Engine, sandbox: &cove_engine::Spec) -> Full {
        if !matches!(outcome, Outcome::Exited(exit) if exit.status() != 0) {
            return Full::default();
        }
        let used = engine.usage(&sandbox.id).map_or(0, |usage| usage.disk);
        // The last blocks go to the filesystem itself.
        let is_full = |limit: &u64| used >= limit - limit / 32;
        let disk = sandbox.limits.disk.filter(is_full).map(|_| used);
        Full { processes: engine.refused_processes(&sandbox.id) > 0, disk }
    }

    fn tell(&self, sandbox: &cove_engine::Spec) {
        if self.processes {
            let most = sandbox.limits.pids;
            say(&format!("cove: no more processes: all {most} that the sandbox may have were in use"));
            say(&format!("hint: --pids {}", most.saturating_mul(2)));
        }
        if let (Some(used), Some(limit)) = (self.disk, sandbox.limits.disk) {
            say(&format!("cove: disk full: {} of {} used", show_size(used.min(limit)), show_size(limit)));
            let more = show_size(limit.saturating_mul(2)).replace(' ', "");
            say(&format!("hint: --disk {}", more.trim_end_matches("iB")));
        }
    }
}

/// The exit code that a shell reports for SIGKILL.
const KILLED: i32 = 137;

/// The exit code, and on stderr what a person would otherwise wonder about.
fn report(arguments: &Arguments, outcome: Outcome, shortage: Option<&Shortage>) -> Result<u8, Complaint> {
    let shell_code = |code: i32| u8::try_from(code & 0xff).unwrap_or(code::FAILED);
    if let Some(shortage) = shortage {
        shortage.tell(arguments);
    }
    match outcome {
        Outcome::Exited(exit) => Ok(shell_code(exit.status())),
        Outcome::TimedOut => {
            let after = arguments.timeout.map(show_duration).unwrap_or_default();
            say(&format!("cove: ended after {after} (--timeout)"));
            Ok(code::TIMED_OUT)
        }
        Outcome::Interrupted(signal) => Ok(shell_code(128 + signal)),
        // As the shell sees a program that SIGPIPE ended.
        Outcome::BrokenPipe => Ok(141),
        Outcome::Refused(failure) => Err(refused(arguments, &failure)),
        Outcome::Lost(_) if shortage.is_some() => Ok(shell_code(KILLED)),
        Outcome::Lost(why) => Err(Complaint::engine(format!("sandbox ended before its command: {why}"))),
    }
}

fn refused(arguments: &Arguments, failure: &Failure) -> Complaint {
    let complaint = Complaint::engine(failure.message.clone());
    // The guest names the step; only that of the program itself has codes of its own.
    if !failure.message.starts_with("run ") {
        return complaint;
    }
    let program = arguments.command.first().map(String::as_str).unwrap_or_default();
    match failure.kind {
        FailureKind::NotFound if program.contains(' ') => {
            complaint.with_code(code::NOT_FOUND).hint("a line for a shell goes to one: cove run -- sh -c '…'")
        }
        FailureKind::NotFound => complaint
            .with_code(code::NOT_FOUND)
            .hint("the sandbox sees the programs of this machine's /usr; others can be shown with --mount"),
        _ => complaint.with_code(code::NOT_EXECUTABLE),
    }
}
