//! The engine without HTTP, warm, as the server has it: in a process of its own, which times itself.
//!
//! An ordinary user's engine lives in a user namespace. This process cannot move there, because the others have to be measured outside; a child
//! can, and is asked over a pipe, a line of JSON each way. It ends with its standard input.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cove_engine::{SandboxId, privilege};
use cove_terminal::complaint::Complaint;
use serde::{Deserialize, Serialize};

use super::ours::InProcess;
use super::peers::Timed;
use super::suites::rate;

/// The word that makes this program the child.
pub const WORD: &str = "__engine";

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Launch, first output of a command, gone.
    Once(Vec<String>),
    /// A command in one sandbox that lives.
    Again(Vec<String>),
    /// Made and removed, by so many callers for so long.
    Rate { callers: usize, time: Duration },
}

#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Ready,
    Timed(Timed),
    Rate(f64),
}

pub struct EngineProcess {
    child: Child,
    line: Mutex<(Option<ChildStdin>, BufReader<ChildStdout>)>,
}

impl EngineProcess {
    pub fn start(program: &Path, data: &Path) -> Result<EngineProcess, String> {
        let mut command = Command::new(program);
        // Ctrl-C is for us: it ends when we let go of it.
        command.arg(WORD).arg(data).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let stdout = child.stdout.take().ok_or("no output")?;
        let line = Mutex::new((child.stdin.take(), BufReader::new(stdout)));
        let engine = EngineProcess { child, line };
        let first = engine.hear(&mut engine.line.lock().unwrap_or_else(PoisonError::into_inner).1);
        first.map(|_| engine)
    }

    pub fn once(&self, words: &[&str]) -> Result<Timed, String> {
        self.timed(&Ask::Once(owned(words)))
    }

    pub fn again(&self, words: &[&str]) -> Result<Duration, String> {
        self.timed(&Ask::Again(owned(words))).map(|timed| timed.first)
    }

    pub fn rate(&self, callers: usize, time: Duration) -> Result<f64, String> {
        match self.ask(&Ask::Rate { callers, time })? {
            Told::Rate(rate) => Ok(rate),
            other => Err(format!("it answered {other:?}")),
        }
    }

    fn timed(&self, ask: &Ask) -> Result<Timed, String> {
        match self.ask(ask)? {
            Told::Timed(timed) => Ok(timed),
            other => Err(format!("it answered {other:?}")),
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Told, String> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_string(ask).map_err(|error| error.to_string())? + "\n";
        line.0.as_mut().ok_or("it has ended")?.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        self.hear(&mut line.1)
    }

    fn hear(&self, stdout: &mut BufReader<ChildStdout>) -> Result<Told, String> {
        let mut text = String::new();
        stdout.read_line(&mut text).map_err(|error| error.to_string())?;
        if text.is_empty() {
            return Err("the engine's process has ended".into());
        }
        serde_json::from_str::<Result<Told, String>>(&text).map_err(|error| error.to_string())?
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.line.get_mut().unwrap_or_else(PoisonError::into_inner).0.take();
        // It clears away its sandboxes first.
        let _ = self.child.wait();
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// As `cove __engine DIR`.
pub fn at_home(mut words: impl Iterator<Item = OsString>) -> Result<u8, Complaint> {
    let data = words.next().map(PathBuf::from).ok_or_else(|| Complaint::usage("no directory"))?;
    let opened = std::fs::create_dir_all(&data).map_err(|error| error.to_string());
    let opened = opened.and_then(|()| privilege::enter(None).map_err(|error| error.to_string()));
    let opened = opened.and_then(|_| InProcess::open(&std::env::current_exe().unwrap_or_default(), &data));
    let engine = match opened {
        Ok(engine) => engine,
        Err(why) => return tell(&Err(why)).map(|()| 0),
    };
    tell(&Ok(Told::Ready))?;
    let mut live: Option<SandboxId> = None;
    for line in std::io::stdin().lock().lines() {
        let ask = serde_json::from_str(&line?).map_err(|error| Complaint::usage(error.to_string()))?;
        tell(&answer(&engine, &mut live, ask))?;
    }
    live.map_or(Ok(()), |id| engine.destroy(&id)).map(|()| 0).map_err(Complaint::failed)
}

fn answer(engine: &InProcess, live: &mut Option<SandboxId>, ask: Ask) -> Result<Told, String> {
    match ask {
        Ask::Once(line) => engine.once(&line.iter().map(String::as_str).collect::<Vec<_>>()).map(Told::Timed),
        Ask::Again(line) => {
            let id = match live {
                Some(id) => id,
                None => live.insert(engine.launch()?),
            };
            let began = Instant::now();
            engine.first_output(id, &line.iter().map(String::as_str).collect::<Vec<_>>())?;
            Ok(Told::Timed(Timed { first: began.elapsed(), whole: began.elapsed() }))
        }
        Ask::Rate { callers, time } => {
            let once = || engine.launch().and_then(|id| engine.destroy(&id));
            rate(callers, time, &once).map(Told::Rate)
        }
    }
}

fn tell(told: &Result<Told, String>) -> Result<(), Complaint> {
    let text = serde_json::to_string(told).map_err(|error| Complaint::failed(error.to_string()))?;
    cove_terminal::render::print(&text)
}
