//! Becoming the sandbox's first process.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use cove_sys::inherited;
use cove_sys::signal::Signals;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Signal, getpid, set_child_subreaper, set_dumpable_behavior, umask};

use crate::guest::{Configuration, Guest};
use crate::process::memory::Kills;
use crate::supervisor::Supervisor;

const LISTENER: i32 = 3;
const LEASH: i32 = 4;
const KILLS: i32 = 5;

/// Takes what the host left open, closes the doors to this process's memory and gathers orphans.
pub fn start() -> io::Result<Supervisor> {
    let Given { listener, leash, kills } = given(std::env::args_os().skip(1).collect())?;
    // Run by descriptor it would be called after the memory it came from.
    rustix::thread::set_name(c"cove-guest")?;
    // Processes in the sandbox must not read or write the memory of the guest, whatever their uid: ptrace(2) and
    // /proc/PID/mem are refused for a process that is not dumpable.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // PID 1 gets orphans by birth; elsewhere this does the same.
    set_child_subreaper(Some(getpid()))?;
    // Modes are said outright; children get the usual mask back.
    umask(Mode::empty());
    let signals = Signals::block(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw))?;
    let guest = Arc::new(Guest::new(configuration()?, Kills::new(kills))?);
    Supervisor::new(guest, listener, leash, signals)
}

fn configuration() -> io::Result<Configuration> {
    let Ok(text) = std::env::var("COVE_GUEST") else { return Ok(Configuration::default()) };
    serde_json::from_str(&text).map_err(|error| usage(&format!("COVE_GUEST: {error}")))
}

/// What the host left open.
struct Given {
    listener: UnixListener,
    leash: Option<OwnedFd>,
    kills: Option<OwnedFd>,
}

fn given(arguments: Vec<OsString>) -> io::Result<Given> {
    let mut arguments = arguments.into_iter();
    let Some(first) = arguments.next() else {
        let listener = inherited::take(LISTENER)?
            .ok_or_else(|| usage("descriptor 3 is not open; the host passes its listening socket there"))?;
        let (leash, kills) = (inherited::take(LEASH)?, inherited::take(KILLS)?);
        return Ok(Given { listener: listener.into(), leash, kills });
    };
    let path = match (first.to_str(), arguments.next()) {
        (Some("--socket"), Some(path)) => path,
        _ => return Err(usage("usage: cove-guest [--socket PATH [--leash]]")),
    };
    let leash = match arguments.next() {
        None => None,
        Some(word) if word == "--leash" => Some(io::stdin().as_fd().try_clone_to_owned()?),
        Some(_) => return Err(usage("usage: cove-guest [--socket PATH [--leash]]")),
    };
    let listener = UnixListener::bind(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("bind {}: {error}", path.display())))?;
    Ok(Given { listener, leash, kills: None })
}

fn usage(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
