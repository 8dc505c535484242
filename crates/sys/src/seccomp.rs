//! seccomp(2): installing a filter.

use rustix::io::{Errno, Result};

/// One instruction of classic BPF, as the kernel lays it out (`struct sock_filter`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub value: u32,
}

/// From now on `program` filters every system call of this thread and its children. Needs `no_new_privs` or
/// CAP_SYS_ADMIN in the caller's user namespace.
pub fn install(program: &[Instruction]) -> Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    // `struct sock_filter` has the layout of `Instruction`.
    let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads `length` instructions and checks each; memory is valid across the call.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0 as libc::c_uint, &raw const filter)
    };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}
