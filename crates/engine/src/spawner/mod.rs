//! Small processes that clone sandboxes.
//!
//! The engine's own process is large, has threads and many descriptors: forking it is slow and unsafe. A spawner has
//! one thread, a few descriptors and an empty root; it gets everything by descriptor over one socket, one launch at a time, and exits
//! when the engine closes the socket. The sandboxes it cloned live on: they are children of the engine.

pub mod empty;
pub mod handle;
pub mod wire;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use cove_sys::clone::{SingleThreaded, Stack};

use crate::fence;
use crate::guest_program;
use crate::launch::{Born, Launcher, Means};
use crate::limits::Rlimits;
use crate::privilege;
use crate::refused::{Refused, Step};
use crate::seccomp::Filter;
use crate::settings::Settings;
use crate::user_namespace;
use wire::{Answer, Incoming, Outgoing, Request};

/// The hidden argument with which a program that links the engine becomes a spawner.
pub const ARGUMENT: &str = "__cove-spawner";

/// Runs the spawner whose socket is standard input. To be called by `main` before anything else when the first
/// argument is [`ARGUMENT`].
pub fn main() -> ! {
    let code = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => run(&socket, Guest::Given),
        Err(_) => 2,
    };
    std::process::exit(code)
}

/// Serves until the other side closes. A spawner that cannot start says so on every request.
pub(crate) fn run(socket: &OwnedFd, guest: Guest) -> i32 {
    let spawner = Spawner::start(guest);
    match serve(socket.as_fd(), spawner) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

/// Where a spawner gets the guest from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guest {
    /// By a message ([`Request::Guest`]): one copy in memory serves all.
    Given,
    /// It makes its own copy: it is the only one.
    Own,
}

struct Spawner {
    launcher: Launcher,
    settings: Settings,
    guest: Option<OwnedFd>,
}

impl Spawner {
    fn start(guest: Guest) -> Result<Spawner, Refused> {
        rustix::thread::set_name(c"cove-spawner").step("name the spawner")?;
        let privilege = privilege::held().ok_or_else(|| Refused::new("be root, or at home", Errno::PERM))?;
        let launcher = Launcher {
            alone: SingleThreaded::claim().step("be a process with one thread")?,
            stack: Stack::new().step("make a stack")?,
            means: Means { filter: Filter::new()?, rlimits: Rlimits::plan(), privilege },
        };
        let settings = Settings::new(empty::open_proc()?);
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        empty::move_in(privilege)?;
        let guest = if guest == Guest::Own { Some(guest_program::sealed()?) } else { None };
        Ok(Spawner { launcher, settings, guest })
    }

    fn answer(&mut self, request: Request, passed: Incoming) -> Result<(Answer, Vec<OwnedFd>), Refused> {
        match request {
            Request::Guest(slot) => {
                self.guest = Some(passed.get(slot)?.try_clone_to_owned().step("keep the guest")?);
                Ok((Answer::Ready, Vec::new()))
            }
            Request::UserNamespace(maps) => {
                let pair = user_namespace::make(&self.launcher.alone, self.settings.proc().as_fd(), &maps)?;
                Ok((Answer::Namespaces, vec![pair.user, pair.assembly]))
            }
            Request::Fence(fence) => {
                let pair = fence::make(&self.launcher.alone, self.settings.proc().as_fd(), &fence)?;
                Ok((Answer::Namespaces, vec![pair.user, pair.assembly]))
            }
            Request::Launch(launch) => {
                let guest = self.guest.as_ref().ok_or_else(|| Refused::new("find the guest", Errno::NOENT))?;
                Ok(match self.launcher.start(&launch, &passed, guest.as_fd())? {
                    Born::Guest(child, window) => {
                        (Answer::Started { pid: child.pid.as_raw_nonzero().get(), window }, vec![child.pidfd])
                    }
                    // With its descriptor: it is the engine's child, and stays a zombie until the engine has waited for it.
                    Born::Refused(child, refused) => (Answer::Refused(refused), vec![child.pidfd]),
                })
            }
        }
    }
}

fn serve(socket: BorrowedFd<'_>, mut spawner: Result<Spawner, Refused>) -> Result<(), Refused> {
    while let Some((request, passed)) = wire::receive(socket)? {
        let answered = match &mut spawner {
            Ok(spawner) => spawner.answer(request, passed),
            Err(refused) => Err(Refused { step: format!("start a spawner: {}", refused.step), ..refused.clone() }),
        };
        let (answer, descriptors) = answered.unwrap_or_else(|refused| (Answer::Refused(refused), Vec::new()));
        let mut outgoing = Outgoing::default();
        for descriptor in &descriptors {
            outgoing.add(descriptor.as_fd());
        }
        wire::send(socket, &answer, &outgoing)?;
    }
    Ok(())
}
