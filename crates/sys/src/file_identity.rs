//! Whose files a thread may touch.
//!
//! The kernel checks file permissions against a thread's filesystem ids (credentials(7)), not its user ids. Changing
//! only those keeps the thread safe from that user: whoever has the *user* id of a thread may signal it, and through
//! it the whole process. Leaving filesystem uid 0 also drops the capabilities over files from the effective set
//! (capabilities(7), "Effect of user ID changes").

use std::io;

/// Sets the calling thread's filesystem uid.
///
/// # Errors
/// `PermissionDenied` where the kernel did not take it: no privilege, or no place in the user namespace.
pub fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: touches no memory; the raw call affects the calling thread alone.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    // setfsuid(2) cannot report failure; with an impossible id it changes nothing and returns the current id. SAFETY:
    // as above.
    let now = unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) };
    if now == i64::from(uid) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// Sets the calling thread's filesystem gid; errors as [`set_user`].
pub fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: touches no memory; the raw call affects the calling thread alone.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    // SAFETY: as above.
    let now = unsafe { libc::syscall(libc::SYS_setfsgid, u32::MAX) };
    if now == i64::from(gid) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}
