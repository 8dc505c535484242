//! What a pidfd reports about a process that is not our child (`PIDFD_GET_INFO`, Linux 6.13; exit status since 6.15).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// `struct pidfd_info`, first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const GET_INFO: libc::c_ulong = 0xc040_ff0b; // _IOWR(0xff, 11, 64 bytes)
const EXIT: u64 = 1 << 3;

/// How the process ended, as wait(2) encodes it. `None` while it runs, until its parent has reaped it, and on kernels
/// that do not keep it.
pub fn exit_status(pidfd: BorrowedFd<'_>) -> Result<Option<i32>> {
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: the kernel writes at most the 64 bytes that the request number announces, which is the struct's size.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut info) };
    if result == 0 {
        return Ok((info.mask & EXIT != 0).then_some(info.exit_code));
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::NOTTY | Errno::INVAL | Errno::SRCH) | None => Ok(None),
        Some(errno) => Err(errno),
    }
}
