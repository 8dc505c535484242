//! Start and Connect: a process's output as a stream of events.
//!
//! A client that goes away never ends a process. What the process wrote meanwhile is kept by the guest, up to a bound,
//! and a client that connects gets all of it from the beginning: the original drops what nobody read.

use cove_protocol::process::{Command, Exit, OnDisconnect, Spec, Stdio};
use cove_protocol::{Event as GuestEvent, FailureKind, Reply, Request as Ask};

use super::super::connect::stream::Outgoing;
use super::super::connect::{Code, Ending, RpcError};
use super::super::envd::{Envd, unexpected};
use super::super::message::process::{
    DataEvent, Empty, EndEvent, Event, EventResponse, Output, ProcessConfig, ProcessRequest, StartEvent, StartRequest,
};
use super::{of_process, selector, terminal_size};
use crate::guest::{GuestError, Item, Operation};

pub async fn start(envd: Envd, user: Option<String>, request: StartRequest, outgoing: Outgoing) -> Result<(), Ending> {
    let config = request.process.unwrap_or_default();
    if config.cmd.is_empty() {
        return Err(RpcError::new(Code::InvalidArgument, "no command was given").into());
    }
    let cwd = match config.cwd.as_deref().filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(envd.resolve(user.as_deref(), cwd).await?),
        None => {
            envd.check_user(user.as_deref()).await?;
            None
        }
    };
    let stdio = match (&request.pty, request.stdin) {
        (Some(pty), _) => Stdio::Terminal(terminal_size(pty)?),
        (None, Some(false)) => Stdio::Closed,
        // Clients from before the switch existed say nothing and write.
        (None, Some(true) | None) => Stdio::Piped,
    };
    let ProcessConfig { cmd, args, envs, .. } = config;
    let spec = Spec {
        command: Command::Argv(std::iter::once(cmd.clone()).chain(args).collect()),
        env: envd.birth_marks().into_iter().chain(envs).collect(),
        cwd: cwd.clone(),
        user,
        stdio,
        tag: request.tag,
        copy_of: None,
        // The guest holds the deadline too: it must not depend on this connection.
        timeout_ms: outgoing.deadline.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        on_disconnect: OnDisconnect::Keep,
    };
    match envd.guest.open(&Ask::Start(spec)).await {
        Ok((reply, operation)) => relay(reply, operation, outgoing).await,
        Err(error) => Err(not_started(&envd, error, &cmd, cwd.as_deref()).await),
    }
}

pub async fn connect(envd: Envd, request: ProcessRequest, outgoing: Outgoing) -> Result<(), Ending> {
    let process = selector(request.process)?;
    let ask = Ask::Attach { process: process.clone(), from: Some(0) };
    match envd.guest.open(&ask).await {
        Ok((reply, operation)) => relay(reply, operation, outgoing).await,
        Err(error) => Err(of_process(error, &process)),
    }
}

/// Passes on what the guest streams, until the end or until the sandbox is gone.
async fn relay(reply: Reply, mut operation: Operation, outgoing: Outgoing) -> Result<(), Ending> {
    let Reply::Started { pid, .. } = reply else { return Err(unexpected().into()) };
    let ping = EventResponse::from(Event::Keepalive(Empty {}));
    outgoing.send(&EventResponse::from(Event::Start(StartEvent { pid }))).await?;
    loop {
        let output = match outgoing.keeping_alive(&ping, operation.from.next()).await?? {
            Some(Item::Stdout(bytes)) => Output::Stdout(bytes),
            Some(Item::Stderr(bytes)) => Output::Stderr(bytes),
            Some(Item::Pty(bytes)) => Output::Pty(bytes),
            // A client would mistake this end for an exit and miss the timeout: report the timeout instead.
            Some(Item::Event(GuestEvent::Exited { exit })) if exit.timed_out => {
                return Err(RpcError::deadline().into());
            }
            Some(Item::Event(GuestEvent::Exited { exit })) => {
                return outgoing.send(&EventResponse::from(Event::End(ending(exit)))).await;
            }
            Some(Item::Event(_) | Item::Data(_)) => continue,
            None => return Err(RpcError::new(Code::Internal, "the process's stream ended without its exit").into()),
        };
        outgoing.send(&EventResponse::from(Event::Data(DataEvent { output: Some(output) }))).await?;
    }
}

/// With the original's message, which clients show to people.
fn ending(exit: Exit) -> EndEvent {
    let status = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal: {}", signal_words(signal)),
        (None, None) => "exit status unknown".to_owned(),
    };
    let exit_code = exit.code.unwrap_or(-1);
    let error = (exit_code != 0).then(|| match exit.out_of_memory {
        true => format!("{status}: out of memory"),
        false => status.clone(),
    });
    EndEvent { exit_code, exited: exit.code.is_some(), status, error }
}

fn signal_words(signal: i32) -> String {
    match signal {
        1 => "hangup".into(),
        2 => "interrupt".into(),
        3 => "quit".into(),
        4 => "illegal instruction".into(),
        6 => "aborted".into(),
        8 => "floating point exception".into(),
        9 => "killed".into(),
        11 => "segmentation fault".into(),
        13 => "broken pipe".into(),
        14 => "alarm clock".into(),
        15 => "terminated".into(),
        31 => "bad system call".into(),
        other => format!("signal {other}"),
    }
}

async fn not_started(envd: &Envd, error: GuestError, cmd: &str, cwd: Option<&str>) -> Ending {
    let GuestError::Failed(failure) = &error else { return error.into() };
    if let Some(cwd) = cwd {
        let ask = Ask::Stat { path: cwd.to_owned(), user: Some(super::super::envd::ROOT.into()), follow: true };
        if matches!(envd.guest.call(&ask).await, Err(GuestError::Failed(inner)) if inner.kind == FailureKind::NotFound)
        {
            return RpcError::new(Code::InvalidArgument, format!("cwd '{cwd}' does not exist")).into();
        }
    }
    match failure.kind {
        FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::PermissionDenied => {
            RpcError::new(Code::InvalidArgument, format!("error starting process '{cmd}': {}", failure.message)).into()
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: Option<i32>, signal: Option<i32>) -> Exit {
        Exit { code, signal, timed_out: false, out_of_memory: false }
    }

    #[test]
    fn an_end_reads_as_the_original_writes_it() {
        assert_eq!(
            ending(exit(Some(0), None)),
            EndEvent { exit_code: 0, exited: true, status: "exit status 0".into(), error: None }
        );
        assert_eq!(
            ending(exit(Some(3), None)),
            EndEvent {
                exit_code: 3,
                exited: true,
                status: "exit status 3".into(),
                error: Some("exit status 3".into())
            }
        );
        let killed = ending(exit(None, Some(9)));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
        assert_eq!(killed.error.as_deref(), Some("signal: killed"));
    }
}
