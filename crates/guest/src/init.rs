//! Becoming the sandbox's first process.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cove_sys::inherited;
use cove_sys::signal::Signals;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Signal, getpid, set_child_subreaper, set_dumpable_behavior, umask};

use crate::guest::{Configuration, Guest};
use crate::process::memory::Kills;
use crate::supervisor::Supervisor;
use crate::tunnel;

const LISTENER: i32 = 3;
const LEASH: i32 = 4;
const KILLS: i32 = 5;

const USAGE: &str = "usage: cove-guest [--socket PATH [--leash] [--tunnel PORT] | --through PATH]";

/// What a host must show at the tunnel.
const TUNNEL_TOKEN: &str = "COVE_TUNNEL_TOKEN";

/// Takes what the host left open, closes the doors to this process's memory and gathers orphans.
pub fn start() -> io::Result<Supervisor> {
    let Given { listener, leash, kills, tunnel } = given(std::env::args_os().skip(1).collect())?;
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
    if let Some((port, socket)) = tunnel {
        let token = std::env::var(TUNNEL_TOKEN)
            .ok()
            .filter(|token| !token.is_empty())
            .ok_or_else(|| usage(&format!("--tunnel needs a token in {TUNNEL_TOKEN}")))?;
        tunnel::open(port, token.into(), socket)?;
    }
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
    /// The port of the tunnel, and the socket that it leads to.
    tunnel: Option<(u16, PathBuf)>,
}

fn given(arguments: Vec<OsString>) -> io::Result<Given> {
    let mut arguments = arguments.into_iter();
    let Some(first) = arguments.next() else {
        let listener = inherited::take(LISTENER)?
            .ok_or_else(|| usage("descriptor 3 is not open; the host passes its listening socket there"))?;
        let (leash, kills) = (inherited::take(LEASH)?, inherited::take(KILLS)?);
        return Ok(Given { listener: listener.into(), leash, kills, tunnel: None });
    };
    let path = match (first.to_str(), arguments.next()) {
        (Some("--socket"), Some(path)) => PathBuf::from(path),
        _ => return Err(usage(USAGE)),
    };
    let (mut leash, mut tunnel) = (None, None);
    while let Some(word) = arguments.next() {
        match word.to_str() {
            Some("--leash") => leash = Some(io::stdin().as_fd().try_clone_to_owned()?),
            Some("--tunnel") => {
                let port = arguments.next().and_then(|port| port.to_str()?.parse().ok());
                tunnel = Some((port.ok_or_else(|| usage(USAGE))?, path.clone()));
            }
            _ => return Err(usage(USAGE)),
        }
    }
    let first = getpid().is_init();
    if first {
        // Nobody else runs yet: a socket of that name is left of an earlier life, and bind(2) would fail at it.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(beside("remove", &path, error)),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&path).map_err(|error| beside("bind", &path, error))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(|error| beside("close", &path, error))?;
    Ok(Given { listener, leash, kills: if first { own_kills() } else { None }, tunnel })
}

/// The kernel's count of those it killed here for want of memory, as a container sees its own control group: v2, then v1.
fn own_kills() -> Option<OwnedFd> {
    let files = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
    files.into_iter().find_map(|path| File::open(path).ok()).map(OwnedFd::from)
}

fn beside(step: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{step} {}: {error}", path.display()))
}

fn usage(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
