//! The engine's end of its spawners.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};

use cove_sys::clone::SingleThreaded;

use super::wire::{self, Answer, Incoming, Outgoing, Request};
use crate::refused::{Refused, Step};

/// One spawner process.
#[derive(Debug)]
pub struct Spawner {
    /// Closed first when dropped, which ends the process.
    socket: Option<OwnedFd>,
    pid: Pid,
}

impl Spawner {
    /// Starts `program` again with the hidden argument.
    pub fn exec(program: &Path) -> Result<Spawner, Refused> {
        let (ours, theirs) = sockets()?;
        let child = Command::new(program)
            .arg(super::ARGUMENT)
            // Out of the terminal's foreground group: a Ctrl-C is meant for the engine's program, not for what it started.
            .process_group(0)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .step(&format!("start {} as a spawner", program.display()))?;
        let pid =
            Pid::from_raw(child.id().cast_signed()).ok_or_else(|| Refused::new("start a spawner", Errno::CHILD))?;
        Ok(Spawner { socket: Some(ours), pid })
    }

    /// Forks the calling process, which must have one thread. It has the guest already, and gets ready while its parent does
    /// other things.
    pub fn fork(alone: &SingleThreaded) -> Result<Spawner, Refused> {
        let (ours, theirs) = sockets()?;
        let pid = cove_sys::clone::fork(alone, || {
            let closed = cove_sys::exec::close_all_but(3, theirs.as_fd());
            // As above; a fresh fork leads no group, so this cannot fail.
            let apart = rustix::process::setsid();
            if closed.is_ok() && apart.is_ok() { super::run(&theirs, super::Guest::Own) } else { 2 }
        })
        .step("fork a spawner")?;
        Ok(Spawner { socket: Some(ours), pid })
    }

    pub fn call(&self, request: &Request, descriptors: &Outgoing<'_>) -> Result<(Answer, Incoming), Refused> {
        self.ask(request, descriptors)?;
        self.hear()
    }

    fn ask(&self, request: &Request, descriptors: &Outgoing<'_>) -> Result<(), Refused> {
        wire::send(self.socket()?, request, descriptors)
    }

    /// The answer to what was asked.
    fn hear(&self) -> Result<(Answer, Incoming), Refused> {
        match wire::receive(self.socket()?)? {
            Some((Answer::Refused(refused), dead)) => {
                dead.0.iter().for_each(|pidfd| take_note(pidfd.as_fd()));
                Err(refused)
            }
            Some(answered) => Ok(answered),
            None => Err(Refused::new("hear from a spawner, which has died", Errno::PIPE)),
        }
    }

    fn socket(&self) -> Result<BorrowedFd<'_>, Refused> {
        self.socket.as_ref().map(AsFd::as_fd).ok_or_else(|| Refused::new("reach a spawner", Errno::PIPE))
    }

    /// It ends by itself, now; nobody waits for it yet.
    fn retire(&mut self) {
        self.socket = None;
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.retire();
        // Waiting leaves no zombie.
        let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// A process of a launch that was refused has exited and is this process's child.
fn take_note(pidfd: BorrowedFd<'_>) {
    let wait = || rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED);
    // Whoever it belonged to, it is gone.
    let _ = rustix::io::retry_on_intr(wait);
}

fn sockets() -> Result<(OwnedFd, OwnedFd), Refused> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .step("make a spawner's socket")
}

/// Spawners that wait for work; a caller borrows one for a request and its answer.
pub struct Spawners {
    idle: Mutex<Vec<Spawner>>,
    returned: Condvar,
    /// Makes another in the place of one that died.
    again: Arc<Again>,
}

/// Makes a spawner.
pub type Again = dyn Fn() -> Result<Spawner, Refused> + Send + Sync;

/// Whether a call failed because its spawner is no more.
pub fn is_death(refused: &Refused) -> bool {
    [Errno::PIPE, Errno::CONNRESET].iter().any(|errno| errno.raw_os_error() == refused.errno)
}

impl std::fmt::Debug for Spawners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawners").field("idle", &self.idle).finish_non_exhaustive()
    }
}

/// A request under way.
pub struct Asked<'a> {
    spawners: &'a Spawners,
    spawner: Option<Spawner>,
    sent: Result<(), Refused>,
}

impl Asked<'_> {
    pub fn answer(mut self) -> Result<(Answer, Incoming), Refused> {
        self.finish().unwrap_or_else(|| Err(Refused::new("hear from a spawner twice", Errno::ALREADY)))
    }

    fn finish(&mut self) -> Option<Result<(Answer, Incoming), Refused>> {
        let spawner = self.spawner.take()?;
        let answer = std::mem::replace(&mut self.sent, Ok(())).and_then(|()| spawner.hear());
        self.spawners.give_back(spawner, &answer);
        Some(answer)
    }
}

impl Drop for Asked<'_> {
    /// The next request must not get this one's answer.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl Spawners {
    pub fn new(spawners: Vec<Spawner>, again: Arc<Again>) -> Spawners {
        Spawners { idle: Mutex::new(spawners), returned: Condvar::new(), again }
    }

    pub fn call(&self, request: &Request, descriptors: &Outgoing<'_>) -> Result<(Answer, Incoming), Refused> {
        self.ask(request, descriptors).answer()
    }

    /// Has a spawner begin; whoever asked has time for something else until it takes the answer.
    pub fn ask(&self, request: &Request, descriptors: &Outgoing<'_>) -> Asked<'_> {
        let spawner = self.borrow();
        let sent = spawner.ask(request, descriptors);
        Asked { spawners: self, spawner: Some(spawner), sent }
    }

    /// No request follows: all end, while their engine does something else.
    pub fn retire(&self) {
        self.lock().iter_mut().for_each(Spawner::retire);
    }

    fn give_back(&self, mut spawner: Spawner, answer: &Result<(Answer, Incoming), Refused>) {
        // Killed by somebody: this request is lost, the next shall not be. Where no other can be had the dead one goes
        // back, and the next caller tries again.
        if matches!(answer, Err(refused) if is_death(refused))
            && let Ok(another) = (self.again)()
        {
            spawner = another;
        }
        self.lock().push(spawner);
        self.returned.notify_one();
    }

    fn borrow(&self) -> Spawner {
        let mut idle = self.lock();
        loop {
            if let Some(spawner) = idle.pop() {
                return spawner;
            }
            idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Spawner>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
