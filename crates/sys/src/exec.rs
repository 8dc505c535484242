//! Executes another program, given by descriptor.

use std::convert::Infallible;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result, fcntl_dupfd_cloexec};

/// Replaces this process by `program` (`execveat` with `AT_EMPTY_PATH`: no path inside any root is needed). The new
/// program has `descriptors` as 0, 1, 2 …, and nothing else: `None` leaves that number closed.
///
/// After an error the process's descriptors are changed: it can only report the error and exit.
pub fn replace_process(
    program: BorrowedFd<'_>,
    arguments: &[&CStr],
    environment: &[&CStr],
    descriptors: &[Option<BorrowedFd<'_>>],
) -> Result<Infallible> {
    // Moves all sources above the targets first: a source may have another's target number.
    let above = descriptors.len() as i32 + 1;
    let program = fcntl_dupfd_cloexec(program, above)?;
    let copies = descriptors
        .iter()
        .map(|descriptor| descriptor.map(|fd| fcntl_dupfd_cloexec(fd, above)).transpose())
        .collect::<Result<Vec<_>>>()?;
    close_on_exec_from(0)?;
    for (number, copy) in copies.iter().enumerate() {
        if let Some(copy) = copy {
            // SAFETY: the numbers below `above` are about to belong to the new program; the caller exits if there is none.
            check(unsafe { libc::dup3(copy.as_raw_fd(), number as i32, 0) } as i64)?;
        }
    }
    let arguments: Vec<_> = arguments.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
    let environment: Vec<_> = environment.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: both arrays end with a null pointer and hold pointers to C strings that live across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    check(result)?;
    Err(Errno::NOEXEC)
}

/// Marks every descriptor from `first` on to be closed by the next exec.
pub fn close_on_exec_from(first: u32) -> Result<()> {
    // SAFETY: nothing is closed now, only marked.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_uint) };
    check(result)
}

/// Closes every descriptor from `first` on except `keep`. For a process that has just been forked and owns nothing else.
pub fn close_all_but(first: u32, keep: BorrowedFd<'_>) -> Result<()> {
    let keep = keep.as_raw_fd() as u32;
    if first < keep {
        close_range(first, keep - 1)?;
    }
    close_range(first.max(keep + 1), u32::MAX)
}

/// Closes every descriptor from `first` on. For a process that has just begun and has opened none of them itself.
pub fn close_from(first: u32) -> Result<()> {
    close_range(first, u32::MAX)
}

fn close_range(from: u32, to: u32) -> Result<()> {
    // SAFETY: called in a process that has just been forked or begun: nobody owns, or will use again, what it inherited.
    check(unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) })
}

fn check(result: i64) -> Result<()> {
    if result >= 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}
