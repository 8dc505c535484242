//! The one thread that is always there.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;

use cove_protocol::{Failure, FailureKind};
use cove_sys::signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitOptions, wait};

use crate::connection::Connection;
use crate::guest::Guest;
use crate::serve::serve;

/// Room for a connection's deepest call; only what is touched costs memory.
const STACK: usize = 256 << 10;

pub struct Supervisor {
    guest: Arc<Guest>,
    listener: UnixListener,
    leash: Option<OwnedFd>,
    signals: OwnedFd,
}

impl Supervisor {
    pub fn new(
        guest: Arc<Guest>,
        listener: UnixListener,
        leash: Option<OwnedFd>,
        signals: OwnedFd,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Supervisor { guest, listener, leash, signals })
    }

    pub fn run(self) -> io::Result<()> {
        loop {
            let mut sources =
                vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            if let Some(leash) = &self.leash {
                sources.push(PollFd::new(leash, PollFlags::IN));
            }
            match poll(&mut sources, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if sources.get(2).is_some_and(|leash| !leash.revents().is_empty()) {
                return Ok(());
            }
            while let Some(arrived) = signals::next(self.signals.as_fd())? {
                match arrived.signal {
                    signals::SIGTERM | signals::SIGINT => return Ok(()),
                    _ => while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {},
                }
            }
            while let Ok((socket, _)) = self.listener.accept() {
                self.admit(socket);
            }
        }
    }

    fn admit(&self, socket: UnixStream) {
        let guest = Arc::clone(&self.guest);
        let Ok(spare) = socket.try_clone() else { return };
        let started = thread::Builder::new().stack_size(STACK).spawn(move || serve(&guest, Connection::new(socket)));
        if let Err(error) = started {
            Connection::new(spare).fail(&Failure::new(FailureKind::Exhausted, format!("start a thread: {error}")));
        }
    }
}
