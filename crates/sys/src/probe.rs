//! Asks the kernel what it can do, without changing the caller: each try runs in a throwaway child.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `_IO(0xAE, 0)` of `include/uapi/linux/kvm.h`.
const KVM_GET_API_VERSION: libc::Ioctl = 0xAE00;
const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
/// An errno that no kernel returns: the child did not finish.
const UNKNOWN: i32 = 255;

/// A process that does one thing and ends. It is waited for when dropped.
#[derive(Debug)]
pub struct Throwaway {
    pid: Option<Pid>,
}

impl Throwaway {
    /// Runs `work` in a child and nothing after it: no destructor of the parent's runs twice.
    ///
    /// The parent may have threads; the child then has only this one, and locks others held stay locked. So `work`
    /// makes system calls and allocates (glibc and musl make their allocators usable after fork), and touches nothing shared.
    pub fn spawn(work: impl FnOnce() -> io::Result<()>) -> io::Result<Throwaway> {
        // SAFETY: the child calls `work` and leaves by `_exit`; what `work` may do is said above and kept by its callers in
        // the engine's doctor.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                let code = match result {
                    Ok(Ok(())) => 0,
                    Ok(Err(error)) => error.raw_os_error().unwrap_or(UNKNOWN),
                    Err(_) => UNKNOWN,
                };
                exit(code)
            }
            pid => Ok(Throwaway { pid: Pid::from_raw(pid) }),
        }
    }

    /// Its pid in the parent's namespace.
    pub fn pid(&self) -> u32 {
        self.pid.map_or(0, |pid| pid.as_raw_nonzero().get() as u32)
    }

    /// The result of the work.
    pub fn wait(mut self) -> io::Result<()> {
        self.reap()
    }

    fn reap(&mut self) -> io::Result<()> {
        let Some(pid) = self.pid.take() else { return Ok(()) };
        let (_, status) = loop {
            match waitpid(Some(pid), WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.ok_or_else(|| io::Error::other("no child"))?,
            }
        };
        match status.exit_status() {
            Some(0) => Ok(()),
            Some(UNKNOWN) => Err(io::Error::other("the attempt failed in an unknown way")),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::Error::other("the attempt was ended by a signal")),
        }
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        // The result is not needed; this only reaps the zombie.
        let _ = self.reap();
    }
}

/// Runs `work` in a child and returns its result; see [`Throwaway::spawn`].
pub fn in_child(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    Throwaway::spawn(work)?.wait()
}

fn exit(code: i32) -> ! {
    // SAFETY: _exit has no preconditions and runs nothing of ours.
    unsafe { libc::_exit(code) }
}

/// Moves the calling process, a throwaway child, into new namespaces.
pub fn leave(kinds: UnshareFlags) -> io::Result<()> {
    if kinds.contains(UnshareFlags::FILES) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the call is unsafe for `CLONE_FILES` alone, which was refused above.
    unsafe { unshare_unsafe(kinds) }.map_err(io::Error::from)
}

/// Closes the child's copy of a descriptor that its parent owns.
pub fn close_in_child(descriptor: BorrowedFd<'_>) {
    // SAFETY: called in a throwaway child, which leaves by `_exit`: no destructor there closes the number again.
    unsafe { libc::close(descriptor.as_raw_fd()) };
}

/// Becomes another user for good, without any group; for a throwaway child.
pub fn become_user(id: u32) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(id))?;
    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(id))?;
    Ok(())
}

/// The version of Landlock's interface: 1 and up. EOPNOTSUPP where it is off, ENOSYS where it is not built in.
pub fn landlock_version() -> io::Result<u32> {
    // SAFETY: with the version flag the kernel wants a null attribute of size 0 and reads nothing (landlock_create_ruleset(2)).
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).map_err(|_| io::Error::last_os_error())
}

/// Whether a seccomp filter may answer a call with an errno.
pub fn seccomp_can_refuse() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: SECCOMP_GET_ACTION_AVAIL reads one u32 behind the pointer (seccomp(2)).
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0_u32, std::ptr::from_ref(&action)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The version of the KVM interface, of an open `/dev/kvm`.
pub fn kvm_version(kvm: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: KVM_GET_API_VERSION takes no argument; on any other file it answers ENOTTY.
    let version = unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_GET_API_VERSION, 0) };
    if version < 0 { Err(io::Error::last_os_error()) } else { Ok(version) }
}

/// Gives a detached mount the ids of a user namespace.
pub fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.as_raw_fd() as u64,
    };
    // SAFETY: mount_setattr reads one `mount_attr` of the size given and an empty path; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_tells_what_became_of_its_attempt() {
        in_child(|| Ok(())).unwrap();
        let refused = in_child(|| Err(io::Error::from_raw_os_error(libc::EPERM))).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(in_child(|| Err(io::Error::other("no number"))).is_err());
    }

    #[test]
    fn what_a_child_does_stays_in_the_child() {
        let before = std::env::current_dir().unwrap();
        in_child(|| std::env::set_current_dir("/proc")).unwrap();
        assert_eq!(std::env::current_dir().unwrap(), before);
    }
}
