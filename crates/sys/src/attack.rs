//! System calls that a sandbox must not be able to make, for trying them from inside. Only the probe uses this.
//!
//! Each call has arguments that do nothing if the call is allowed after all: null pointers, impossible descriptors,
//! empty flags. A call that a filter refuses answers EPERM or ENOSYS; one that reached the kernel's own code answers
//! EFAULT, EINVAL or EBADF, and that difference is what a probe looks for.

use std::io;

/// A system call with harmless arguments.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    pub name: &'static str,
    number: libc::c_long,
    arguments: [libc::c_long; 5],
}

const NOWHERE: libc::c_long = 0;
const NO_FD: libc::c_long = -1;

const fn attempt(name: &'static str, number: libc::c_long, arguments: [libc::c_long; 5]) -> Attempt {
    Attempt { name, number, arguments }
}

/// libc does not name it for musl on aarch64.
const KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "aarch64") { 294 } else { 320 };

/// Would sync a filesystem, but the descriptor is invalid.
pub const FLUSH: Attempt = attempt("syncfs", libc::SYS_syncfs, [NO_FD, 0, 0, 0, 0]);

/// Calls that must be refused for every caller, root inside included.
pub const FORBIDDEN: &[Attempt] = &[
    attempt("bpf", libc::SYS_bpf, [0, NOWHERE, 0, 0, 0]),
    attempt("perf_event_open", libc::SYS_perf_event_open, [NOWHERE, 0, -1, -1, 0]),
    attempt("keyctl", libc::SYS_keyctl, [0, -3, 0, 0, 0]),
    attempt("add_key", libc::SYS_add_key, [NOWHERE, NOWHERE, NOWHERE, 0, -3]),
    attempt("request_key", libc::SYS_request_key, [NOWHERE, NOWHERE, NOWHERE, 0, 0]),
    attempt("userfaultfd", libc::SYS_userfaultfd, [0x7fff_0000, 0, 0, 0, 0]),
    attempt("io_setup", libc::SYS_io_setup, [0, NOWHERE, 0, 0, 0]),
    attempt("io_uring_setup", libc::SYS_io_uring_setup, [0, NOWHERE, 0, 0, 0]),
    attempt("io_uring_enter", libc::SYS_io_uring_enter, [NO_FD, 0, 0, 0, 0]),
    attempt("io_uring_register", libc::SYS_io_uring_register, [NO_FD, 0, NOWHERE, 0, 0]),
    attempt("init_module", libc::SYS_init_module, [NOWHERE, 0, NOWHERE, 0, 0]),
    attempt("finit_module", libc::SYS_finit_module, [NO_FD, NOWHERE, 0, 0, 0]),
    attempt("delete_module", libc::SYS_delete_module, [NOWHERE, 0, 0, 0, 0]),
    attempt("kexec_load", libc::SYS_kexec_load, [0, 0, NOWHERE, 0xffff, 0]),
    attempt("kexec_file_load", KEXEC_FILE_LOAD, [NO_FD, NO_FD, 0, NOWHERE, 0xffff]),
    attempt("reboot", libc::SYS_reboot, [0, 0, 0, NOWHERE, 0]),
    attempt("swapon", libc::SYS_swapon, [NOWHERE, 0, 0, 0, 0]),
    attempt("swapoff", libc::SYS_swapoff, [NOWHERE, 0, 0, 0, 0]),
    attempt("acct", libc::SYS_acct, [1, 0, 0, 0, 0]),
    attempt("quotactl", libc::SYS_quotactl, [0, NOWHERE, 0, NOWHERE, 0]),
    attempt("open_by_handle_at", libc::SYS_open_by_handle_at, [NO_FD, NOWHERE, 0, 0, 0]),
    attempt("fanotify_init", libc::SYS_fanotify_init, [0x7fff_0000, 0, 0, 0, 0]),
    attempt("vmsplice", libc::SYS_vmsplice, [NO_FD, NOWHERE, 0, 0, 0]),
    attempt("memfd_secret", libc::SYS_memfd_secret, [0x7fff_0000, 0, 0, 0, 0]),
    attempt("pidfd_getfd", libc::SYS_pidfd_getfd, [NO_FD, 0, 0, 0, 0]),
    attempt("process_madvise", libc::SYS_process_madvise, [NO_FD, NOWHERE, 0, 0, 0]),
    attempt("mount", libc::SYS_mount, [NOWHERE, NOWHERE, NOWHERE, 0, NOWHERE]),
    attempt("umount2", libc::SYS_umount2, [NOWHERE, 0, 0, 0, 0]),
    attempt("pivot_root", libc::SYS_pivot_root, [NOWHERE, NOWHERE, 0, 0, 0]),
    attempt("fsopen", libc::SYS_fsopen, [NOWHERE, 0, 0, 0, 0]),
    attempt("fsmount", libc::SYS_fsmount, [NO_FD, 0, 0, 0, 0]),
    attempt("fsconfig", libc::SYS_fsconfig, [NO_FD, 0, NOWHERE, NOWHERE, 0]),
    attempt("fspick", libc::SYS_fspick, [NO_FD, NOWHERE, 0, 0, 0]),
    attempt("open_tree", libc::SYS_open_tree, [NO_FD, NOWHERE, 0, 0, 0]),
    attempt("move_mount", libc::SYS_move_mount, [NO_FD, NOWHERE, NO_FD, NOWHERE, 0]),
    attempt("mount_setattr", libc::SYS_mount_setattr, [NO_FD, NOWHERE, 0, NOWHERE, 0]),
    attempt("setns", libc::SYS_setns, [NO_FD, 0, 0, 0, 0]),
    attempt("syslog", libc::SYS_syslog, [3, NOWHERE, 0, 0, 0]),
    attempt("settimeofday", libc::SYS_settimeofday, [NOWHERE, 1, 0, 0, 0]),
    attempt("clock_settime", libc::SYS_clock_settime, [0, NOWHERE, 0, 0, 0]),
    attempt("clock_adjtime", libc::SYS_clock_adjtime, [0, NOWHERE, 0, 0, 0]),
    attempt("vhangup", libc::SYS_vhangup, [0, 0, 0, 0, 0]),
    attempt("kcmp", libc::SYS_kcmp, [1, 1, 99, 0, 0]),
    attempt("migrate_pages", libc::SYS_migrate_pages, [0, 0, NOWHERE, NOWHERE, 0]),
    attempt("move_pages", libc::SYS_move_pages, [0, 0, NOWHERE, NOWHERE, NOWHERE]),
    #[cfg(target_arch = "x86_64")]
    attempt("iopl", libc::SYS_iopl, [3, 0, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    attempt("ioperm", libc::SYS_ioperm, [0, 1, 1, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    attempt("modify_ldt", libc::SYS_modify_ldt, [1, NOWHERE, 0, 0, 0]),
];

impl Attempt {
    /// Makes the call.
    pub fn make(&self) -> io::Result<i64> {
        let [a, b, c, d, e] = self.arguments;
        // SAFETY: every entry of FORBIDDEN passes null pointers, bad descriptors or flags that no kernel knows, so a
        // kernel that lets it through reads and writes no memory of ours. The table is the only maker of an Attempt.
        let answer = unsafe { libc::syscall(self.number, a, b, c, d, e) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
    }
}

/// `unshare(2)` with these flags; in the probe's own process, which ends right after.
pub fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: touches no memory; the probe is single-threaded and expects to be refused.
    let answer = unsafe { libc::unshare(flags) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `clone3` with an empty argument block: refused as ENOSYS by the filter, as EINVAL by the kernel.
pub fn clone3() -> io::Result<()> {
    // SAFETY: a null block of size 0 is refused by every kernel before it is read.
    let answer = unsafe { libc::syscall(libc::SYS_clone3, 0, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `chroot(2)`.
pub fn chroot(path: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: `path` is a C string that lives through the call.
    let answer = unsafe { libc::chroot(path.as_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `mknod(2)` of a device.
pub fn make_device(path: &std::ffi::CStr, kind: u32, major: u32, minor: u32) -> io::Result<()> {
    // SAFETY: `path` is a C string that lives through the call.
    let answer = unsafe { libc::mknod(path.as_ptr(), kind | 0o600, libc::makedev(major, minor)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `ptrace(PTRACE_SEIZE)`: attaches without stopping.
pub fn seize(pid: i32) -> io::Result<()> {
    // SAFETY: PTRACE_SEIZE passes no pointer; the tracee, if we got one, is let go when the probe ends.
    let answer = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a byte of another process at an address that no process maps: EFAULT means that the read was allowed.
pub fn read_memory_of(pid: i32) -> io::Result<()> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(16), iov_len: 1 };
    // SAFETY: `local` describes one byte of ours; the remote address is never dereferenced by us.
    let answer = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `kill(2)`.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: touches no memory.
    let answer = unsafe { libc::kill(pid, signal) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `socket(2)`, closed again at once.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    // SAFETY: touches no memory; the descriptor is ours alone.
    let fd = unsafe { libc::socket(family, kind, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was opened above and is used nowhere else.
    unsafe { libc::close(fd) };
    Ok(())
}

/// `socketpair(2)`, closed again at once.
pub fn socket_pair(family: i32, kind: i32) -> io::Result<()> {
    let mut pair = [-1; 2];
    // SAFETY: `pair` has room for the two descriptors and outlives the call.
    let answer = unsafe { libc::socketpair(family, kind, 0, pair.as_mut_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    for fd in pair {
        // SAFETY: both were opened above and are used nowhere else.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Attaches a classic BPF program to a socket: it accepts every packet.
pub fn attach_filter(socket: std::os::fd::BorrowedFd<'_>, option: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // RET 0xffff.
    let mut code = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0xffff };
    let program = libc::sock_fprog { len: 1, filter: &raw mut code };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: pointer and length describe `program`, whose one instruction outlives the call.
    let answer =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const program).cast(), size) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `sethostname(2)`.
pub fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe `name`.
    let answer = unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Raises the hard limit of core dumps, which is 0 in a sandbox.
pub fn raise_core_limit() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: `limit` lives through the call.
    let answer = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks for a real-time priority, with which a process could starve its neighbours.
pub fn real_time() -> io::Result<()> {
    // SAFETY: sched_param is a plain struct of integers (more of them in musl); all zeros is a value of it.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = 10;
    // SAFETY: `parameter` lives through the call.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `nice(2)`, upwards.
pub fn raise_priority() -> io::Result<()> {
    // SAFETY: touches no memory.
    let answer = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Inserts a byte into our own terminal's input queue (TIOCSTI), as if it had been typed.
pub fn type_into(terminal: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let byte = b'x';
    // SAFETY: TIOCSTI reads one byte from a pointer that lives through the call.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSTI, &raw const byte) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `getpid` by the 32-bit entry, in a child: a filter for one architecture kills it or refuses.
#[cfg(target_arch = "x86_64")]
pub fn getpid_by_32_bit_entry() -> i32 {
    let answer: i32;
    // SAFETY: int 0x80 with call 20 (getpid) takes no pointers; rbx is not touched.
    unsafe { std::arch::asm!("int 0x80", inlateout("eax") 20 => answer, options(nostack)) };
    answer
}

/// `getpid` by its x32 number.
#[cfg(target_arch = "x86_64")]
pub fn getpid_by_x32_number() -> io::Result<i64> {
    const X32: libc::c_long = 0x4000_0000;
    // SAFETY: getpid takes no arguments.
    let answer = unsafe { libc::syscall(X32 + libc::SYS_getpid) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
