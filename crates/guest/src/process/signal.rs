//! Signals, and the terminal's size, which causes one.

use std::sync::atomic::Ordering;

use cove_protocol::process::{Selector, TerminalSize};
use cove_protocol::{Failure, FailureKind, Reply};
use rustix::process::{
    Pid, Signal, getpgid, kill_process, kill_process_group, test_kill_process, test_kill_process_group,
};

use super::{Process, start};
use crate::connection::Connection;
use crate::failure::{During, Result, invalid};
use crate::guest::Guest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Process,
    Group,
}

impl Target {
    pub fn of(group: bool) -> Self {
        if group { Target::Group } else { Target::Process }
    }
}

pub fn signal(
    guest: &Guest,
    connection: &mut Connection,
    selector: &Selector,
    signal: i32,
    target: Target,
) -> Result<()> {
    let process = guest.table().find(selector)?;
    send(guest, &process, signal, target)?;
    connection.reply(&Reply::Done)
}

/// Sends it under the table's lock: the pid cannot pass to a stranger meanwhile.
pub fn send(guest: &Guest, process: &Process, number: i32, target: Target) -> Result<()> {
    let table = guest.table();
    if !table.is_alive(process) {
        return Err(Failure::new(FailureKind::WrongState, format!("process {} has ended", process.pid)));
    }
    let pid = Pid::from_raw(process.pid.cast_signed()).ok_or_else(|| invalid("process 0 does not exist"))?;
    let sent = match (number, target) {
        (0, Target::Process) => test_kill_process(pid),
        (0, Target::Group) => with_group(process, pid, test_kill_process_group, test_kill_process),
        (number, target) => {
            let signal = Signal::from_named_raw(number)
                .ok_or_else(|| invalid(format!("{number} is not a signal: use 1 to 31")))?;
            if signal == Signal::KILL {
                process.killed.store(true, Ordering::SeqCst);
            }
            match target {
                Target::Process => kill_process(pid, signal),
                Target::Group => {
                    with_group(process, pid, |group| kill_process_group(group, signal), |pid| kill_process(pid, signal))
                }
            }
        }
    };
    sent.during(format!("signal process {}", process.pid))
}

/// Acts on the process's group: the one it began in, or the one it has made its own since (`setsid`, `timeout`). One that has
/// gone over to a third is acted on alone: who else is in there is not ours to end, and the number of the first may be
/// somebody else's by now.
fn with_group(
    process: &Process,
    pid: Pid,
    on_group: impl FnOnce(Pid) -> rustix::io::Result<()>,
    on_process: impl FnOnce(Pid) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let group = getpgid(Some(pid))?;
    if group == pid || group.as_raw_pid() == process.group.cast_signed() { on_group(group) } else { on_process(pid) }
}

/// Ends the process group at once; a process that has ended needs none.
pub fn kill_group(guest: &Guest, process: &Process) {
    let _ = send(guest, process, Signal::KILL.as_raw(), Target::Group);
}

/// The process has had its time.
pub fn time_out(guest: &Guest, process: &Process) {
    process.timed_out.store(true, Ordering::SeqCst);
    kill_group(guest, process);
}

pub fn resize(guest: &Guest, connection: &mut Connection, selector: &Selector, size: TerminalSize) -> Result<()> {
    let process = guest.table().find(selector)?;
    let Some(terminal) = process.terminal() else {
        let message = if process.asked.terminal {
            format!("process {} has ended", process.pid)
        } else {
            format!("process {} has no terminal", process.pid)
        };
        return Err(Failure::new(FailureKind::WrongState, message));
    };
    start::set_size(&terminal, size).during("resize the terminal")?;
    connection.reply(&Reply::Done)
}
