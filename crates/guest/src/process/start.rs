//! Starting a process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cove_protocol::process::{Spec, Stdio, TerminalSize};
use cove_protocol::{Failure, FailureKind, Reply};
use cove_sys::program::{self, Program, Started, Step, Streams};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, fchown, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid, getuid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::output::Stream;
use super::stream::Follower;
use super::table::Due;
use super::{Asked, Ends, Process, copy, environment, signal};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno};
use crate::guest::{Guest, ONE_ID};
use crate::users::{User, Users};

/// Starts the process and streams it to its end or to the host's.
pub fn start(guest: &Arc<Guest>, connection: &mut Connection, spec: Spec) -> Result<()> {
    let on_disconnect = spec.on_disconnect;
    let follower = launch(guest, spec)?;
    if let Err(failure) = connection.reply(&Reply::Started { pid: follower.process.pid, output_start: 0 }) {
        follower.abandon(guest, on_disconnect);
        return Err(failure);
    }
    follower.follow(guest, connection, on_disconnect)
}

fn launch(guest: &Guest, spec: Spec) -> Result<Follower> {
    let user = guest.user(&Users::load(), spec.user.as_deref())?;
    let configuration = guest.configuration().clone();
    let variables = environment::compose(&user, spec.stdio, &configuration.env, &spec.env)?;
    let words = environment::words(&spec.command, &variables)?;
    let environment = environment::encode(&variables)?;
    let directories = environment::directories(&user, spec.cwd.as_deref(), configuration.default_cwd.as_deref())?;
    let identity = guest.identity(&user);
    let (ends, theirs) = ends(spec.stdio, &user).during("open the process's streams")?;
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).during("follow the process")?);

    let program = Program {
        candidates: &words.candidates,
        arguments: &words.arguments,
        environment: &environment,
        directories: &directories,
        identity: identity.as_ref(),
        streams: theirs.streams(),
        open_files: guest.open_files,
        oom_score_adj: &guest.oom_score_adj,
    };
    let kills_before = guest.kills.count();
    let begin = || guest.births.lock().unwrap_or_else(PoisonError::into_inner);
    let (birth, started) = match &spec.copy_of {
        None => {
            let birth = begin();
            let started = program::start(&program, &guest.newborn)
                .map_err(|failed| explain(&failed, &user, &words.program, &directories))?;
            (birth, started)
        }
        Some(tag) => {
            // A copy takes as long as its original likes: the reaper must not wait for that.
            let pid = copy::make(guest, tag, &user, &variables, &directories, theirs.streams())?;
            let birth = begin();
            copy::check(pid)?;
            // A copy leads a session, see there.
            (birth, Started { pid, group: pid })
        }
    };
    let asked = Asked {
        command: spec.command,
        env: spec.env,
        cwd: spec.cwd,
        user: spec.user,
        tag: spec.tag,
        terminal: matches!(spec.stdio, Stdio::Terminal(_)),
        started_at_ms: now_ms(),
    };
    let mut table = guest.table();
    let process = Arc::new(Process::new(table.next_id(), started, asked, ends, kills_before, table.account()));
    let (key, _) = process.join(Some(0), Arc::clone(&wake));
    table.insert(Arc::clone(&process));
    if let Some(timeout) = spec.timeout_ms
        && let Some(at) = Instant::now().checked_add(Duration::from_millis(timeout))
    {
        table.schedule(at, process.id, Due::Timeout);
    }
    drop(table);
    drop(birth);
    if spec.timeout_ms.is_some() || guest.reaper_waits.swap(false, Ordering::SeqCst) {
        guest.wake();
    }
    if let Err(errno) = process.watch(&guest.epoll) {
        signal::kill_group(guest, &process);
        return Err(from_errno(errno, "watch the process's output"));
    }
    Ok(Follower { process, key, wake })
}

/// What the child gets of its streams; closed here once it runs.
enum Theirs {
    Separate { input: OwnedFd, output: OwnedFd, error: OwnedFd },
    Terminal(OwnedFd),
}

impl Theirs {
    fn streams(&self) -> Streams<'_> {
        match self {
            Theirs::Separate { input, output, error } => {
                Streams::Separate { input: input.as_fd(), output: output.as_fd(), error: error.as_fd() }
            }
            Theirs::Terminal(terminal) => Streams::Terminal(terminal.as_fd()),
        }
    }
}

fn ends(stdio: Stdio, user: &User) -> std::result::Result<(Ends, Theirs), Errno> {
    if let Stdio::Terminal(size) = stdio {
        return terminal(size, user);
    }
    let (output, their_output) = pipe_with(PipeFlags::CLOEXEC)?;
    let (error, their_error) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut original = None;
    let (input, their_input) = match stdio {
        Stdio::Piped => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            (Some(ours), theirs)
        }
        Stdio::Socket => {
            let (ours, theirs) = copy::link()?;
            original = Some(copy::Original::new(ours.try_clone().map_err(|_| Errno::MFILE)?, user.uid));
            (Some(ours), theirs)
        }
        _ => match open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(null) => (None, null),
            // A pipe that nobody writes to is as empty, in a sandbox that has lost its devices.
            Err(_) => (None, pipe_with(PipeFlags::CLOEXEC)?.0),
        },
    };
    // A pipe is its maker's alone, but programs open theirs again by name (`> /dev/stderr`, /proc/PID/fd). Refused where
    // the id has no place in the sandbox, and then the program could not have run as that user anyway.
    for theirs in [&their_output, &their_error].into_iter().chain(input.is_some().then_some(&their_input)) {
        let _ = fchown(theirs, Some(Uid::from_raw(user.uid)), None::<Gid>);
    }
    // Only our ends: the flag belongs to the open file, and programs do not expect it on theirs.
    for ours in [Some(&output), Some(&error), input.as_ref()].into_iter().flatten() {
        fcntl_setfl(ours, OFlags::NONBLOCK)?;
    }
    let ends = Ends {
        sources: [Some((Stream::Output, output)), Some((Stream::Error, error))],
        input,
        terminal: None,
        original,
    };
    Ok((ends, Theirs::Separate { input: their_input, output: their_output, error: their_error }))
}

fn terminal(size: TerminalSize, user: &User) -> std::result::Result<(Ends, Theirs), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    set_size(&ours, size)?;
    // Programs open their terminal by its name again (tmux, sudo). Refused where the id has no place in the sandbox,
    // and then the program could not have run as that user anyway.
    let _ = fchown(&theirs, Some(Uid::from_raw(user.uid)), None::<Gid>);
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    let ends = Ends { sources: [None, None], input: None, terminal: Some(Arc::new(ours)), original: None };
    Ok((ends, Theirs::Terminal(theirs)))
}

pub fn set_size(terminal: &OwnedFd, size: TerminalSize) -> std::result::Result<(), Errno> {
    tcsetwinsize(terminal, Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 })
}

fn explain(failed: &program::Failed, user: &User, program: &str, directories: &[std::ffi::CString]) -> Failure {
    let directory = directories.first().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let step = match failed.step {
        Step::Clone => "start a process".to_owned(),
        Step::Joining => "make a process group".to_owned(),
        Step::Session => "start a session".to_owned(),
        Step::Terminal => "take the terminal".to_owned(),
        Step::Streams => "connect the process's streams".to_owned(),
        Step::Limits => "set the limit of open files".to_owned(),
        Step::Groups => format!("take the groups of user {}", user.name),
        Step::Group => format!("become group {} of user {}", user.gid, user.name),
        Step::User => format!("become user {} ({})", user.name, user.uid),
        Step::Directory => format!("enter the working directory {directory}"),
        Step::Execute => format!("run {program}"),
    };
    let errno = Errno::from_io_error(&failed.error).unwrap_or(Errno::IO);
    let mut failure = from_errno(errno, step);
    // setresuid(2): an id without a place in the user namespace.
    if matches!(failed.step, Step::Groups | Step::Group | Step::User) {
        match errno {
            Errno::INVAL => {
                failure.message.push_str(": the sandbox's user namespace has no place for this id");
                if !getuid().is_root() {
                    failure.message = format!("{}: {ONE_ID}", failure.message);
                }
            }
            Errno::PERM if !getuid().is_root() => failure.message = format!("{}: {ONE_ID}", failure.message),
            _ => {}
        }
    }
    // ENOTDIR on the way to a program means that it is not there.
    if failed.step == Step::Execute && errno == Errno::NOTDIR {
        failure.kind = FailureKind::NotFound;
    }
    failure
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
