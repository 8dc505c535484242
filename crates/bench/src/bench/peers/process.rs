//! A program run and timed, from its start to its first byte and to its end.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_sys::namespace::{Kind, unshare};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use serde::{Deserialize, Serialize};

use super::Ground;

const UNIFIED: &str = "/sys/fs/cgroup/unified";

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Timed {
    pub first: Duration,
    pub whole: Duration,
}

/// Runs it to its end; it has to say something and to succeed.
pub fn run_timed(line: &[String], ground: Ground) -> Result<Timed, String> {
    on(ground, || {
        let began = Instant::now();
        let (mut child, complaints) = start(line, Stdio::piped(), &[])?;
        let mut byte = [0u8; 1];
        let stdout = child.stdout.as_mut().ok_or("no output")?;
        let got = stdout.read(&mut byte).map_err(|error| error.to_string())?;
        let first = began.elapsed();
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).map_err(|error| error.to_string())?;
        end(&mut child, line, complaints)?;
        if got == 0 { Err(format!("{} said nothing", line[0])) } else { Ok(Timed { first, whole: began.elapsed() }) }
    })
}

/// Runs it to its end; it has to succeed.
pub fn run_to_end(line: &[String], ground: Ground) -> Result<(), String> {
    on(ground, || {
        let (mut child, complaints) = start(line, Stdio::null(), &[])?;
        end(&mut child, line, complaints)
    })
}

/// The same with variables of its own: a key on a command line could be read by everybody on the machine.
pub fn run_with(line: &[String], variables: &[(&str, &str)]) -> Result<(), String> {
    let (mut child, complaints) = start(line, Stdio::null(), variables)?;
    end(&mut child, line, complaints)
}

fn start(line: &[String], stdout: Stdio, variables: &[(&str, &str)]) -> Result<(Child, File), String> {
    let (program, rest) = line.split_first().ok_or("no program")?;
    // Its complaints go to a file: a pipe that a detached grandchild holds open would never end.
    let complaints = tempfile::tempfile().map_err(|error| error.to_string())?;
    let copy = complaints.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(rest).envs(variables.iter().copied()).stdin(Stdio::null()).stdout(stdout).stderr(copy);
    let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    Ok((child, complaints))
}

fn end(child: &mut Child, line: &[String], mut complaints: File) -> Result<(), String> {
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    let read = complaints.rewind().and_then(|()| complaints.read_to_end(&mut said));
    let why = read.ok().and_then(|_| last_line(&said));
    Err(why.unwrap_or_else(|| format!("{}: {status}", line[0])))
}

/// A thread of its own has a mount namespace of its own; its children begin there. What is changed ends with it.
fn on<T: Send>(ground: Ground, act: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    match ground {
        Ground::Plain => act(),
        Ground::WithoutUnified => std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                leave_unified().map_err(|error| format!("hide the empty cgroup tree: {error}"))?;
                act()
            });
            thread.join().unwrap_or_else(|_| Err("a thread ended early".into()))
        }),
    }
}

fn leave_unified() -> rustix::io::Result<()> {
    unshare(Kind::Mount)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    unmount(UNIFIED, UnmountFlags::DETACH)
}

pub fn has_unified() -> bool {
    cove_engine::privilege::is_host_root() && Path::new(UNIFIED).join("cgroup.procs").exists()
}

pub fn last_line(said: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(160).collect())
}

/// Gives bytes to a program on its standard input.
pub fn feed(line: &[String], bytes: &[u8]) -> Result<(), String> {
    let (program, rest) = line.split_first().ok_or("no program")?;
    let mut command = Command::new(program);
    command.args(rest).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(bytes).map_err(|error| format!("{program}: {error}"))?;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}
