//! Making processes: children that borrow the caller's memory until they exec, and plain forks.
//!
//! A child made with `CLONE_VM | CLONE_VFORK` costs the same however large its parent is (measured: 77 µs against 22 ms
//! for a fork at 1 GiB), and can leave its result in the parent's memory. The parent sleeps until the child execs or
//! exits, so the two never run at the same time.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// Flags of clone(2) that callers may add.
pub mod flags {
    pub const FILES: u64 = libc::CLONE_FILES as u64;
    pub const PARENT: u64 = libc::CLONE_PARENT as u64;
    pub const NEW_MOUNT: u64 = libc::CLONE_NEWNS as u64;
    pub const NEW_PID: u64 = libc::CLONE_NEWPID as u64;
    pub const NEW_IPC: u64 = libc::CLONE_NEWIPC as u64;
    pub const NEW_UTS: u64 = libc::CLONE_NEWUTS as u64;
    pub const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
    pub const NEW_NET: u64 = libc::CLONE_NEWNET as u64;

    pub(super) const ALLOWED: u64 = FILES | PARENT | NEW_MOUNT | NEW_PID | NEW_IPC | NEW_UTS | NEW_USER | NEW_NET;
}

/// A promise of the caller, checked when it is made, that its process has one thread and will start no other: a child
/// would otherwise inherit locks that nobody releases.
pub struct SingleThreaded {
    _here: std::marker::PhantomData<*const ()>,
}

impl SingleThreaded {
    /// `EBUSY` in a process with several threads.
    pub fn claim() -> Result<SingleThreaded> {
        if std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) > 1 {
            return Err(Errno::BUSY);
        }
        Ok(SingleThreaded { _here: std::marker::PhantomData })
    }
}

/// A stack for children that share memory; reused from one to the next.
pub struct Stack {
    memory: *mut libc::c_void,
}

impl Stack {
    const SIZE: usize = 256 << 10;
    const GUARD: usize = 4096;

    pub fn new() -> Result<Stack> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing of ours.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(last_error());
        }
        let stack = Stack { memory };
        // SAFETY: the page is the lowest of the mapping just made; an overflow faults there instead of corrupting.
        if unsafe { libc::mprotect(memory, Self::GUARD, libc::PROT_NONE) } != 0 {
            return Err(last_error());
        }
        Ok(stack)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this size and nothing else refers to it: children that used it
        // have exec'ed or exited, because their parent slept until then.
        unsafe { libc::munmap(self.memory, Self::SIZE) };
    }
}

/// A process just made.
#[derive(Debug)]
pub struct Child {
    pub pid: Pid,
    pub pidfd: OwnedFd,
}

/// The layout of `struct clone_args`, version 2 (Linux 5.7: with `cgroup`).
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Runs `body` in a new process that shares this one's memory; returns when it has exec'ed or exited with what `body`
/// returned.
///
/// With `FILES` in `flags` the table of descriptors is shared too, and what `body` opens stays open.
pub fn share_memory<F: FnOnce() -> i32>(
    _alone: &SingleThreaded,
    stack: &mut Stack,
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    body: F,
) -> Result<Child> {
    if flags & !flags::ALLOWED != 0 {
        return Err(Errno::INVAL);
    }
    let mut pidfd: libc::c_int = -1;
    let mut arguments = CloneArguments {
        flags: flags | (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64,
        pidfd: &raw mut pidfd as u64,
        // With CLONE_PARENT the kernel insists on 0 and the child signals as its sibling would.
        exit_signal: if flags & flags::PARENT != 0 { 0 } else { libc::SIGCHLD as u64 },
        stack: stack.memory as u64 + Stack::GUARD as u64,
        stack_size: (Stack::SIZE - Stack::GUARD) as u64,
        ..CloneArguments::default()
    };
    if let Some(directory) = cgroup {
        arguments.flags |= 0x2_0000_0000; // CLONE_INTO_CGROUP
        arguments.cgroup = directory.as_raw_fd() as u64;
    }
    let mut body = Some(body);
    // SAFETY: the stack is ours, large enough, and used by nobody while the child runs. The parent sleeps until the
    // child has exec'ed or exited (CLONE_VFORK), so `body` and `pidfd` outlive their use and memory has one user.
    let result = unsafe { clone3_call(&arguments, trampoline::<F>, (&raw mut body).cast()) };
    if result < 0 {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    let pid = Pid::from_raw(result as i32).ok_or(Errno::CHILD)?;
    // SAFETY: the kernel stored a fresh descriptor there for CLONE_PIDFD; with FILES it lies in the shared table,
    // otherwise in the parent's.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid, pidfd })
}

extern "C" fn trampoline<F: FnOnce() -> i32>(argument: *mut libc::c_void) -> ! {
    // SAFETY: `share_memory` passes a pointer to its `Option<F>`, which lives until this process is done with it.
    let body = unsafe { (*argument.cast::<Option<F>>()).take() };
    let code = body.map_or(125, |body| body());
    exit_now(code)
}

/// Ends this process without destructors and without flushing buffers: they belong to the parent, whose memory this is.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: exit_group has no preconditions.
    unsafe { libc::syscall(libc::SYS_exit_group, code) };
    // SAFETY: the call above does not return.
    unsafe { std::hint::unreachable_unchecked() }
}

/// clone3(2) on a stack of the child's own, which then calls `entry(argument)`.
///
/// # Safety
/// `arguments` name a stack that nobody uses; `entry` must not return.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3_call(
    arguments: &CloneArguments,
    entry: extern "C" fn(*mut libc::c_void) -> !,
    argument: *mut libc::c_void,
) -> i64 {
    let result: i64;
    // SAFETY: the parent's registers and stack are as the system call leaves them; the child runs on its own stack,
    // 16-byte aligned before the call as the ABI wants, and never comes back here.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") arguments,
            in("rsi") size_of::<CloneArguments>(),
            in("r12") entry,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// clone3(2) on a stack of the child's own, which then calls `entry(argument)`.
///
/// # Safety
/// `arguments` name a stack that nobody uses; `entry` must not return.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3_call(
    arguments: &CloneArguments,
    entry: extern "C" fn(*mut libc::c_void) -> !,
    argument: *mut libc::c_void,
) -> i64 {
    let result: i64;
    // SAFETY: as on x86_64.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") arguments as *const CloneArguments as i64 => result,
            in("x1") size_of::<CloneArguments>(),
            in("x20") entry,
            in("x21") argument,
        );
    }
    result
}

/// Runs `body` in a forked copy of this process, which exits with what it returns.
pub fn fork<F: FnOnce() -> i32>(_alone: &SingleThreaded, body: F) -> Result<Pid> {
    // SAFETY: the process has one thread, so the copy is complete.
    match unsafe { libc::fork() } {
        -1 => Err(last_error()),
        0 => exit_now(body()),
        pid => Pid::from_raw(pid).ok_or(Errno::CHILD),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
