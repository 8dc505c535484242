//! Signals as a descriptor to poll.
//!
//! Ctrl-C must not end a program that has a sandbox half-way: its signals are blocked and read from a descriptor in the
//! same poll loop as its sockets (signalfd(2)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Blocked signals of the calling thread, readable here. Dropping it restores the thread's earlier mask; signals that
/// came in between and were not read then take their usual effect.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: Mask,
}

/// A set of signals, as a thread blocks them.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    pub fn of(signals: &[i32]) -> io::Result<Mask> {
        let mut mask = Mask::empty();
        for &signal in signals {
            mask.add(signal)?;
        }
        Ok(mask)
    }

    pub fn empty() -> Mask {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset writes the whole set it is given and cannot fail on a valid pointer.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            Mask(set.assume_init())
        }
    }

    fn add(&mut self, signal: i32) -> io::Result<()> {
        // SAFETY: the set is initialised and ours; a number that is no signal is answered with EINVAL.
        check(unsafe { libc::sigaddset(&mut self.0, signal) })
    }
}

/// A signal that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub signal: i32,
    /// Who sent it; 0 for the kernel (a key on the terminal, a resize).
    pub sender: u32,
}

impl Signals {
    /// Blocks `signals` for the calling thread and opens a descriptor that is readable when one of them came.
    pub fn block(signals: &[i32]) -> io::Result<Signals> {
        let mask = Mask::of(signals)?;
        let before = change(libc::SIG_BLOCK, &mask)?;
        // SAFETY: the mask is a valid set; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &mask.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            change(libc::SIG_SETMASK, &before)?;
            return Err(error);
        }
        // SAFETY: signalfd returned a descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, before })
    }

    /// The next signal, or `None` if there is none.
    pub fn next(&self) -> io::Result<Option<Received>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as long as the size that is passed.
        let count = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        if count as usize != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the kernel filled the whole structure.
        let info = unsafe { info.assume_init() };
        let sender = if info.ssi_code == libc::SI_USER || info.ssi_code == libc::SI_TKILL { info.ssi_pid } else { 0 };
        Ok(Some(Received { signal: info.ssi_signo as i32, sender }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Restoring an earlier mask cannot fail.
        let _ = change(libc::SIG_SETMASK, &self.before);
    }
}

/// Unblocks everything for the calling thread: for a program that must not pass its mask on.
pub fn unblock_all() -> io::Result<()> {
    change(libc::SIG_SETMASK, &Mask::empty()).map(drop)
}

fn change(how: i32, mask: &Mask) -> io::Result<Mask> {
    let mut before = Mask::empty();
    // SAFETY: both sets are valid and outlive the call.
    let code = unsafe { libc::pthread_sigmask(how, &mask.0, &mut before.0) };
    if code == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(code)) }
}

fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_instead_of_ending_the_process() {
        let signals = Signals::block(&[libc::SIGUSR1]).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        // SAFETY: the calling thread exists for the whole call.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        let received = signals.next().unwrap().unwrap();
        assert_eq!(received, Received { signal: libc::SIGUSR1, sender: std::process::id() });
    }

    #[test]
    fn a_number_that_is_no_signal_is_refused() {
        assert!(Signals::block(&[9999]).is_err());
    }
}
