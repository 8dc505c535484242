//! Descriptors that the program was started with, by number.
//!
//! A parent hands over a descriptor by leaving it open at a number both know. Only one part of the program may own it,
//! so each number can be taken only once, and programs take theirs at the start of `main`.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers taken so far, as bits.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Takes ownership of descriptor `number` (3 to 63) and marks it close-on-exec. `None` where it is not open.
///
/// # Errors
/// `InvalidInput` for a number out of range or taken before.
pub fn take(number: RawFd) -> io::Result<Option<OwnedFd>> {
    if !(3..64).contains(&number) || TAKEN.fetch_or(1 << number, Ordering::SeqCst) & (1 << number) != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} cannot be taken")));
    }
    // SAFETY: F_SETFD touches no memory; on a number that is not open it fails with EBADF.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Ok(None);
    }
    // SAFETY: the number is open (checked above) and ours alone: the bit in TAKEN admits one caller, and callers
    // take before they open anything, so the number cannot belong to an object made by this program.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }))
}
