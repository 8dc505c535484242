//! `process.Process`: the calls that ask once. Streams of output are in [`start`], input is in [`input`].

pub mod input;
pub mod start;

use cove_protocol::process::{self as guest, Command, TerminalSize};
use cove_protocol::{FailureKind, Reply, Request as Ask};

use super::connect::{Code, Ending, RpcError};
use super::envd::{Envd, unexpected};
use super::message::process::{
    Empty, ListResponse, ProcessConfig, ProcessInfo, ProcessSelector, Pty, Selector, SendSignalRequest, Signal,
    UpdateRequest,
};
use crate::guest::GuestError;
use crate::interpreter;

/// Running processes. The dialect does not list ended ones, nor interpreters, which have calls of their own.
pub async fn list(envd: &Envd, _: Empty) -> Result<ListResponse, Ending> {
    let Reply::Processes { processes } = envd.guest.call(&Ask::Processes).await? else {
        return Err(unexpected().into());
    };
    let is_ours = |process: &guest::Info| process.tag.as_deref().is_some_and(interpreter::is_tag);
    let running = processes.into_iter().filter(|process| process.exit.is_none() && !is_ours(process));
    Ok(ListResponse { processes: running.map(describe).collect() })
}

fn describe(info: guest::Info) -> ProcessInfo {
    let mut words = match info.command {
        Command::Argv(words) => words,
        Command::Shell(line) => vec!["/bin/bash".into(), "-l".into(), "-c".into(), line],
    };
    let cmd = if words.is_empty() { String::new() } else { words.remove(0) };
    let config = ProcessConfig { cmd, args: words, envs: info.env.into_iter().collect(), cwd: info.cwd };
    ProcessInfo { config: Some(config), pid: info.pid, tag: info.tag }
}

/// To the process alone, not to its group.
pub async fn signal(envd: &Envd, request: SendSignalRequest) -> Result<Empty, Ending> {
    let signal = match Signal::try_from(request.signal) {
        Ok(signal @ (Signal::Sigkill | Signal::Sigterm)) => signal as i32,
        Ok(Signal::Unspecified) | Err(_) => {
            return Err(RpcError::new(Code::Unimplemented, format!("invalid signal: {}", request.signal)).into());
        }
    };
    let process = selector(request.process)?;
    let ask = Ask::Signal { process: process.clone(), signal, group: false };
    match envd.guest.call(&ask).await {
        Ok(_) => Ok(Empty {}),
        Err(error) => Err(of_process(error, &process)),
    }
}

pub async fn update(envd: &Envd, request: UpdateRequest) -> Result<Empty, Ending> {
    let process = selector(request.process)?;
    let Some(size) = request.pty.as_ref().map(terminal_size).transpose()? else { return Ok(Empty {}) };
    let ask = Ask::Resize { process: process.clone(), size };
    match envd.guest.call(&ask).await {
        Ok(_) => Ok(Empty {}),
        Err(error) => Err(of_process(error, &process)),
    }
}

fn terminal_size(pty: &Pty) -> Result<TerminalSize, RpcError> {
    let size = pty.size.clone().unwrap_or_default();
    let fit = |number: u32, otherwise: u16| match number {
        0 => Ok(otherwise),
        number => u16::try_from(number)
            .map_err(|_| RpcError::new(Code::InvalidArgument, format!("a terminal has no {number} rows or columns"))),
    };
    Ok(TerminalSize { rows: fit(size.rows, 24)?, columns: fit(size.cols, 80)? })
}

fn selector(selector: Option<ProcessSelector>) -> Result<guest::Selector, RpcError> {
    match selector.and_then(|selector| selector.selector) {
        Some(Selector::Pid(pid)) => Ok(guest::Selector::Pid(pid)),
        Some(Selector::Tag(tag)) => Ok(guest::Selector::Tag(tag)),
        None => Err(RpcError::new(Code::InvalidArgument, "no process was named: give a pid or a tag")),
    }
}

/// A guest's refusal in the dialect's form. An ended process is treated like an unknown one.
fn of_process(error: GuestError, process: &guest::Selector) -> Ending {
    match &error {
        GuestError::Failed(failure) if matches!(failure.kind, FailureKind::NotFound | FailureKind::WrongState) => {
            let message = match process {
                guest::Selector::Pid(pid) => format!("process with pid {pid} not found"),
                guest::Selector::Tag(tag) | guest::Selector::Living(tag) => format!("process with tag {tag} not found"),
            };
            RpcError::new(Code::NotFound, message).into()
        }
        _ => error.into(),
    }
}
