//! Signals as data: blocked for the whole program and read from a descriptor.
//!
//! A handler runs at any moment in any thread; a descriptor is read when the loop is ready for it. PID 1 of a
//! namespace has a second reason: signals without a handler never reach it, blocked ones do (signalfd(2), `man 7
//! pid_namespaces`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub use libc::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGWINCH};

/// One signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    pub signal: i32,
    /// Who sent it, as this process's namespace numbers it; 0 from outside of it.
    pub pid: u32,
    pub uid: u32,
}

/// Blocks `signals` in this thread, and so in every thread it starts from now on, and opens a descriptor that yields
/// them. Non-blocking, close-on-exec. Call before the first thread is started.
pub fn open(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: `set` is an initialised signal set; the old mask is not wanted.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: `set` is an initialised signal set; -1 asks for a new descriptor.
    let number = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The next signal that has arrived, or `None` when there is none for now.
pub fn next(from: BorrowedFd<'_>) -> io::Result<Option<Arrived>> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: `info` is writable for `size` bytes.
    let read = unsafe { libc::read(from.as_raw_fd(), info.as_mut_ptr().cast(), size) };
    if read < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    if read as usize != size {
        return Ok(None);
    }
    // SAFETY: the kernel filled the whole struct, which has no invalid bit patterns.
    let info = unsafe { info.assume_init() };
    Ok(Some(Arrived { signal: info.ssi_signo as i32, pid: info.ssi_pid, uid: info.ssi_uid }))
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the call above.
    let mut set = unsafe { set.assume_init() };
    for &signal in signals {
        // SAFETY: `set` is initialised; a number that is no signal makes the call fail and changes nothing.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}
