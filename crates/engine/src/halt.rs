//! Holds the processes of a sandbox still by signals, where the host gives it no control group that could be frozen.
//!
//! SIGSTOP cannot be caught, and its way back is SIGCONT. It is weaker than the freezer: a program that arranges for a
//! timer to send SIGCONT moves on in the middle of a copy, and gets a copy of its own files with half of something in
//! it. Nothing else depends on it: whoever copies follows no link of the source, whether it stands still or not.
//!
//! Parents are stopped before their children and go on after them: no shell sees that a job of its own was stopped.

use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::Error;
use crate::refused::Refused;

/// For all of them together.
const PATIENCE: Duration = Duration::from_secs(2);
/// For one, before the others have their turn.
const MOMENT: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_micros(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Tells it from a later one with the same pid.
    start_time: u64,
}

/// Processes that were stopped, parents before their children; none of those that stood still before.
#[derive(Debug, Default)]
pub struct Halted(Vec<Process>);

/// Stops a process and all below it. `None`: one of them did not come to rest in time, and all of them go on.
pub fn stop(first: u32) -> Result<Option<Halted>, Error> {
    let mut halted = Halted::default();
    let end = Instant::now() + PATIENCE;
    let mut before = Vec::new();
    loop {
        let all = family(first);
        // Twice the same: one that was just forked, and has a lower number than its parent, is seen the second time.
        if all == before && all.iter().all(Process::is_still) {
            return Ok(Some(halted));
        }
        if Instant::now() > end {
            halted.release()?;
            return Ok(None);
        }
        for process in all.iter().filter(|process| !process.is_still()) {
            if let Err(error) = process.signal(Signal::STOP) {
                // The first error is the one to tell.
                let _ = halted.release();
                return Err(error);
            }
            if !halted.0.contains(process) {
                halted.0.push(*process);
            }
            let moment = Instant::now() + MOMENT;
            while !process.is_still() && Instant::now() < moment {
                sleep(LOOK_AGAIN);
            }
        }
        before = all;
    }
}

/// A process and all below it go on, for whoever finds them stopped and does not know by whom.
pub fn release(first: u32) -> Result<(), Error> {
    Halted(family(first)).release()
}

impl Halted {
    /// They go on, children first. All are tried; the first error is returned.
    pub fn release(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for process in self.0.iter().rev() {
            let sent = process.signal(Signal::CONT);
            outcome = outcome.and(sent);
        }
        outcome
    }
}

impl Process {
    /// Whether none of its threads moves; also where it is gone.
    fn is_still(&self) -> bool {
        if self.is_gone() {
            return true;
        }
        let threads = format!("/proc/{}/task", self.pid);
        numbers(&threads).into_iter().all(|thread| {
            // Stopped, stopped by a tracer, or dead.
            Told::of(&format!("{threads}/{thread}/stat")).is_none_or(|told| matches!(told.state, 'T' | 't' | 'Z' | 'X'))
        })
    }

    fn is_gone(&self) -> bool {
        Told::of(&format!("/proc/{}/stat", self.pid)).is_none_or(|told| told.start_time != self.start_time)
    }

    /// Already gone: nothing to do.
    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return Ok(()) };
        let sent = pidfd_open(pid, PidfdFlags::empty()).and_then(|pidfd| {
            // Looked at after it was opened: the number may have become another's before.
            if self.is_gone() { Ok(()) } else { pidfd_send_signal(&pidfd, signal) }
        });
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(Refused::new("hold a process of the sandbox still", errno).into()),
        }
    }
}

/// What `/proc/PID/stat` says.
struct Told {
    state: char,
    parent: u32,
    start_time: u64,
}

impl Told {
    fn of(path: &str) -> Option<Told> {
        let text = fs::read(path).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name, field 2, may hold anything; it ends with the last parenthesis.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // Field 22.
        let start_time = fields.nth(17)?.parse().ok()?;
        Some(Told { state, parent, start_time })
    }
}

/// A process and all below it, parents before their children. Those whose parent ended belong to the first process of
/// their pid namespace: nothing of a sandbox is missing.
fn family(first: u32) -> Vec<Process> {
    let (mut found, mut children) = (Vec::new(), HashMap::<u32, Vec<Process>>::new());
    for pid in numbers("/proc") {
        let Some(told) = Told::of(&format!("/proc/{pid}/stat")) else { continue };
        let process = Process { pid, start_time: told.start_time };
        if pid == first {
            found.push(process);
        } else {
            children.entry(told.parent).or_default().push(process);
        }
    }
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|process| process.pid) {
        found.extend(children.remove(&parent).unwrap_or_default());
        next += 1;
    }
    found
}

/// The entries of a directory that are numbers.
fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    /// A shell with two children, the second of which has stopped itself; and their numbers.
    fn shell() -> (Child, [u32; 2]) {
        let script = "sleep 1000 & echo $!; sh -c 'kill -STOP $$; exec sleep 1000' & echo $!; wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let mut number = || lines.next().unwrap().unwrap().parse().unwrap();
        (shell, [number(), number()])
    }

    fn state(pid: u32) -> char {
        Told::of(&format!("/proc/{pid}/stat")).map_or('X', |told| told.state)
    }

    fn wait_for(pid: u32, is_it: impl Fn(char) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !is_it(state(pid)) {
            assert!(Instant::now() < end, "process {pid} is in state {}", state(pid));
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_family_stands_still_and_goes_on_but_for_who_was_stopped_before() {
        let (mut shell, [child, stopped]) = shell();
        wait_for(stopped, |state| state == 'T');
        let halted = stop(shell.id()).unwrap().expect("all of them come to rest");
        assert_eq!((state(shell.id()), state(child), state(stopped)), ('T', 'T', 'T'));
        let order: Vec<u32> = halted.0.iter().map(|process| process.pid).collect();
        assert_eq!(order, [shell.id(), child], "parents first, and none that stood still by itself");
        halted.release().unwrap();
        wait_for(shell.id(), |state| state != 'T');
        wait_for(child, |state| state != 'T');
        assert_eq!(state(stopped), 'T');
        // An engine that does not know who was stopped lets all of them go on.
        release(shell.id()).unwrap();
        wait_for(stopped, |state| state != 'T');
        for process in family(shell.id()).iter().rev() {
            process.signal(Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(stop(shell.id()).unwrap().is_some(), "what is gone stands still");
    }
}
