//! `cove reset`: removes everything that Cove keeps on this machine.
//!
//! Files that an ordinary user's sandboxes wrote belong to ids that this user has only inside a user namespace, so `rm
//! -rf` fails. This enters the namespace first (`privilege::enter`), ends what runs, and removes the rest. It leaves
//! and reports files that Cove does not make: they may be the person's own.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use cove_control::serve::{Held, alone};
use cove_engine::{Config, Engine, Spawning, privilege};
use serde_json::json;

use super::run::engine_complaint;
use super::settings;
use crate::complaint::{Complaint, doing};
use crate::place::{Files, Place, is_root};
use crate::render::{print, print_json, say};

/// The hidden verb that removes directories of a measurement.
pub use cove_bench::measure::own_directory::REMOVE;

/// What Cove makes in a data directory.
const OURS: &[&str] = &[
    "address",
    "api-key",
    "archive",
    "base",
    "boot",
    "build",
    "cove.db",
    "cradles",
    "database-id",
    "gone",
    "layers",
    "lock",
    "pool",
    "realm",
    "run",
    "run-on-disk",
    "sandboxes",
    "server-id",
    "server.log",
    "snapshots",
    "spool",
    "storage",
    "templates",
    "tls",
    "trash",
    "uppers",
    "volumes",
];

/// Remove everything that Cove keeps on this machine: sandboxes, templates, keys
///
/// Ends running sandboxes. Stop a server on the same data directory first. An ordinary user needs this verb: files that
/// sandboxes wrote belong to ids of a user namespace, so `rm -rf` fails.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove reset
  cove reset --data ./data --yes")]
pub struct Arguments {
    /// The data directory [env: COVE_DATA] [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let data = settings::data_directory(arguments.data.as_deref())?;
    let place = Place::new(Some(data.clone()).filter(|data| *data != Place::usual().data()));
    let runs = [Files::InMemory, Files::OnDisk].map(|files| place.ephemeral(files));
    if !runs.iter().chain([&data]).any(|place| place.exists()) {
        match arguments.json {
            true => print_json(&json!({ "data": data, "removed": false, "left": [] }))?,
            false => print(&format!("nothing is kept in {}", data.display()))?,
        }
        return Ok(0);
    }
    let _alone = hold(&data)?;
    if let Some(run) = runs.iter().find(|run| has_a_live_one(run)) {
        return Err(Complaint::failed(format!("a `cove run` still uses {}", run.display()))
            .hint("end it, or wait for it, and try again"));
    }
    if !arguments.yes {
        confirm(&data)?;
    }
    // Before the first thread.
    privilege::enter(data.exists().then_some(&data))
        .map_err(|error| Complaint::failed(error.to_string()).hint("`cove doctor` shows what this machine lacks"))?;
    for place in runs.iter().chain([&data]).filter(|place| place.join("sandboxes").exists()) {
        end_sandboxes(place)?;
    }
    let mut others = Vec::new();
    for place in runs.iter().chain([&data]).filter(|place| place.exists()) {
        others.extend(empty(place)?);
    }
    if arguments.json {
        print_json(&json!({ "data": data, "removed": true, "left": others }))?;
        return Ok(0);
    }
    print(&format!("removed {}", data.display()))?;
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(|path| path.display().to_string()).collect();
        say(&format!("left alone, because Cove does not make them: {}", names.join(", ")));
    }
    Ok(0)
}

/// Locks the directory.
fn hold(data: &Path) -> Result<Option<Held>, Complaint> {
    if !data.exists() {
        return Ok(None);
    }
    let mut entries = fs::read_dir(data)
        .map_err(|error| Complaint::failed(format!("look into {}: {error}", data.display())).hint(way_out(data)))?;
    // Every engine writes its realm; a server's data has none where only `cove run` was used.
    let is_ours = ["", "run", "run-on-disk"].iter().any(|place| data.join(place).join("realm").exists());
    if !is_ours && entries.next().is_some() {
        return Err(Complaint::usage(format!("{} is not a data directory of Cove", data.display()))
            .hint("--data names the one that `cove serve` was started with"));
    }
    alone(data).map(Some).map_err(|error| match &error {
        cove_control::Error::Conflict(why) => {
            Complaint::failed(why.clone()).hint("stop that server first, and wait until its process is gone")
        }
        other => Complaint::failed(other.detail().map_or_else(|| other.to_string(), str::to_owned)).hint(way_out(data)),
    })
}

/// A guest that has ended refuses the connection.
fn has_a_live_one(run: &Path) -> bool {
    let sandboxes = fs::read_dir(run.join("sandboxes")).into_iter().flatten().flatten();
    sandboxes.into_iter().any(|sandbox| UnixStream::connect(sandbox.path().join("guest.sock")).is_ok())
}

fn confirm(data: &Path) -> Result<(), Complaint> {
    if !io::stdin().is_terminal() {
        return Err(Complaint::usage("reset asks before it removes, but standard input is not a terminal")
            .hint("--yes removes without asking"));
    }
    let count = |name: &str| fs::read_dir(data.join(name)).into_iter().flatten().flatten().count();
    let sandboxes = match count("sandboxes") {
        1 => "1 sandbox".to_owned(),
        count => format!("{count} sandboxes"),
    };
    let mut stderr = io::stderr().lock();
    write!(stderr, "Remove {}: {sandboxes}, templates, keys and everything else? [y/N] ", data.display())?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(doing("read the answer"))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Complaint::failed("nothing was removed")),
    }
}

/// Destroys the sandboxes. Dropping the engine empties its trash and releases mounts and control groups.
fn end_sandboxes(data: &Path) -> Result<(), Complaint> {
    let spawning = Spawning::Processes { count: NonZeroUsize::MIN, program: crate::place::program()? };
    let config = Config { data: data.to_owned(), spawning, pool: 0, layers: None, waived: Vec::new() };
    let engine = Engine::open(config).map_err(engine_complaint)?;
    // Sandboxes of an earlier engine must be adopted before they can be ended.
    engine.found().and_then(|_| engine.sweep(&|_| false)).map(drop).map_err(engine_complaint)
}

/// Removes what is ours, and the directory if nothing else is in it; returns what else there is.
fn empty(directory: &Path) -> Result<Vec<PathBuf>, Complaint> {
    let entries = fs::read_dir(directory).map_err(doing(format!("list {}", directory.display())))?;
    let (ours, others): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.flatten().map(|entry| entry.path()).partition(|path| is_ours(path));
    for path in ours {
        remove(&path)?;
    }
    if others.is_empty() {
        // A directory that the system made for us, or a mount point, stays; it is empty.
        let _ = fs::remove_dir(directory);
    }
    Ok(others)
}

/// `cove.db-wal`, `pool.btrfs`, `realm.cove-0a1b…` belong to what they are named after.
fn is_ours(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    OURS.iter().any(|&ours| name.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-'])))
}

fn remove(path: &Path) -> Result<(), Complaint> {
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let removed = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Complaint::failed(format!("remove {}: {error}", path.display())).hint(way_out(path)))
        }
        _ => Ok(()),
    }
}

fn way_out(path: &Path) -> String {
    if is_root() {
        "`cove doctor` shows what this machine lacks".to_owned()
    } else {
        format!("some of it may belong to root: sudo rm -rf {}", path.display())
    }
}

/// As `cove __remove DIR…`: removes directories of a measurement, whose files an ordinary user can remove only from the
/// home namespace.
pub fn remove_at_home(mut directories: impl Iterator<Item = OsString>) -> Result<u8, Complaint> {
    privilege::enter(None).map_err(|error| Complaint::failed(error.to_string()))?;
    directories.try_for_each(|directory| remove(Path::new(&directory))).map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cove_makes_is_removed() {
        for name in
            ["cove.db", "cove.db-wal", "pool.btrfs", "realm.cove-0a1b2c3d", "run", "run-on-disk", "sandboxes", "spool"]
        {
            assert!(is_ours(&Path::new("/data").join(name)), "{name}");
        }
        for name in ["notes", "runner", "pools", "Documents", ".ssh", "cove.dbx"] {
            assert!(!is_ours(&Path::new("/data").join(name)), "{name}");
        }
    }
}
