//! Carries one connection of the host from standard input and output to the guest's socket.
//!
//! Where the host has no path to the socket, it has the container's manager run this program once more inside, and speaks
//! through the streams of that:
//!
//! ```text
//!   host ══ exec, attached ══▶ cove-guest --through PATH ──▶ PATH, where PID 1 listens
//! ```
//! Bytes pass as they are. The end of each side is passed on as an end; when the guest has ended its side, this ends.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// How long the guest may go on after the host has ended its side. Whether the host has gone or only has nothing more to
/// say looks the same from here, because the manager keeps our output open.
const LINGER: Duration = Duration::from_secs(600);

pub fn carry(socket: &Path) -> io::Result<()> {
    // What passes is for the host and PID 1 alone.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let guest = UnixStream::connect(socket)
        .map_err(|error| io::Error::new(error.kind(), format!("connect to {}: {error}", socket.display())))?;
    let mut inwards = guest.try_clone()?;
    thread::Builder::new().spawn(move || {
        // An error means that one of the sides is gone, as its end does.
        let _ = io::copy(&mut io::stdin().lock(), &mut inwards);
        let _ = inwards.shutdown(Shutdown::Write);
        thread::sleep(LINGER);
        std::process::exit(0);
    })?;
    pass_on(&guest, &mut unbuffered()?)
}

/// Each piece at once: standard output of Rust waits for the end of a line.
fn unbuffered() -> io::Result<std::fs::File> {
    use std::os::fd::AsFd as _;
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

fn pass_on(mut from: &UnixStream, to: &mut impl io::Write) -> io::Result<()> {
    io::copy(&mut from, to)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_the_guest_says_is_passed_on_until_its_end() {
        let (mut guest, host) = UnixStream::pair().unwrap();
        guest.write_all(b"some bytes\0without a line").unwrap();
        drop(guest);
        let mut heard = Vec::new();
        pass_on(&host, &mut heard).unwrap();
        assert_eq!(heard, b"some bytes\0without a line");
    }
}
