//! Starting a program as another user from a process with threads.
//!
//! `fork` in a threaded process leaves the child with locks that nobody will release, and copies page tables. So the
//! child is made as `posix_spawn` makes it: it shares its parent's memory and the calling thread sleeps until the
//! child has called execve (`CLONE_VM | CLONE_VFORK`). In between the child makes raw system calls only: no
//! allocation, no lock, no library call that would touch its parent's threads (libc's own `setuid` signals all of
//! them).
//!
//! While the child has the new user's id and the old memory, that user must not trace it: the caller has made itself
//! not dumpable (prctl(2) `PR_SET_DUMPABLE`), which the kernel checks for the shared memory. That user can stop it,
//! though, and with it the calling thread: `newborn` shows its pid from birth on, so that another thread can send
//! SIGCONT.
//!
//! A program with a terminal leads a session, which the terminal belongs to. Any other leads nothing, as programs that a
//! shell starts in a pipe lead nothing: `setsid` forks where its caller leads a group, and whoever waits for the program would
//! wait for the wrong process. It is in a process group of its own all the same, so that it and its children can be
//! signalled together. A group's number is its first member's: a process that ends at once gives it, and the number stays taken
//! as long as the group has a member (`free_pid` in the kernel's pid.c).

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Who the program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; `None` leaves them, for namespaces where setgroups(2) is forbidden.
    pub groups: Option<Vec<u32>>,
}

/// The three standard streams, all at descriptors above 2.
#[derive(Debug, Clone, Copy)]
pub enum Streams<'a> {
    Separate {
        input: BorrowedFd<'a>,
        output: BorrowedFd<'a>,
        error: BorrowedFd<'a>,
    },
    /// A terminal that becomes the controlling one of the new session.
    Terminal(BorrowedFd<'a>),
}

/// All that is needed to start a program. It has a process group of its own, and with a terminal a session too.
#[derive(Debug)]
pub struct Program<'a> {
    /// Paths to try, in order, as execvp(3) does.
    pub candidates: &'a [CString],
    pub arguments: &'a [CString],
    pub environment: &'a [CString],
    /// The first of these that can be entered becomes the working directory.
    pub directories: &'a [CString],
    pub identity: Option<&'a Identity>,
    pub streams: Streams<'a>,
    /// Soft and hard limit of open files, where they should differ from the caller's.
    pub open_files: Option<(u64, u64)>,
    /// Text for `/proc/self/oom_score_adj`; a failure to write it is ignored.
    pub oom_score_adj: &'a CStr,
}

/// The step at which the child failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    Clone = 1,
    /// Its process group.
    Joining,
    Session,
    Terminal,
    Streams,
    Limits,
    Groups,
    Group,
    User,
    Directory,
    Execute,
}

#[derive(Debug)]
pub struct Failed {
    pub step: Step,
    pub error: io::Error,
}

/// The child's stack: it calls a few functions deep and has no big locals.
const STACK: usize = 32 << 10;

/// The kernel's struct sigaction with all fields zero is SIG_DFL; its size is 32 bytes on 64-bit machines.
const DEFAULT_ACTION: [u64; 4] = [0; 4];

/// The kernel's signal set is 8 bytes, whatever libc's is.
const SIGNAL_SET: usize = 8;

/// A program that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    pub pid: u32,
    /// Its process group when it began.
    pub group: u32,
}

struct Plan<'a> {
    program: &'a Program<'a>,
    /// The group that waits for its first member; 0 where the child must lead its own.
    group: c_int,
    /// The child leads its group.
    leads: bool,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    failed_step: Step,
    failed_errno: c_int,
}

/// Starts the program and returns once it runs. `newborn` holds its pid already while the child is on its way, and 0
/// before and after. The caller must not reap children meanwhile.
pub fn start(program: &Program<'_>, newborn: &AtomicI32) -> Result<Started, Failed> {
    let mut plan = Plan {
        program,
        group: 0,
        leads: false,
        arguments: pointers(program.arguments),
        environment: pointers(program.environment),
        failed_step: Step::Clone,
        failed_errno: 0,
    };
    let mut stack: Vec<u128> = Vec::new();
    if stack.try_reserve_exact(STACK / size_of::<u128>()).is_err() {
        return Err(Failed { step: Step::Clone, error: io::Error::from_raw_os_error(libc::ENOMEM) });
    }
    // No handler may run in the child while it shares our memory.
    let old_mask = block_all_signals();
    // SAFETY: the pointer stays within (one past the end of) the reserved allocation, and u128 aligns it to 16.
    let top = unsafe { stack.as_mut_ptr().add(STACK / size_of::<u128>()) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    let in_pipes = matches!(program.streams, Streams::Separate { .. });
    if in_pipes {
        // No signal reports its end: nobody but us waits for it.
        let silent = flags & !libc::SIGCHLD;
        // SAFETY: `founder` upholds the rules of a vfork child: one system call and out. Its stack outlives it, as below.
        let pid = unsafe { libc::clone(founder, top.cast(), silent, std::ptr::null_mut(), newborn.as_ptr()) };
        // Without room for it, or where it was killed too soon, the program leads its group: better than none.
        plan.group = pid.max(0);
    }
    // SAFETY: `child` upholds the rules of a vfork child (see there); its stack and the plan outlive it, because
    // CLONE_VFORK suspends this thread until the child has executed or exited; `newborn` is a valid place for the pid. The
    // founder has exited when its own call returned, so nobody else uses the stack.
    let pid = unsafe { libc::clone(child, top.cast(), flags, (&raw mut plan).cast::<c_void>(), newborn.as_ptr()) };
    let clone_error = io::Error::last_os_error();
    newborn.store(0, Ordering::SeqCst);
    if plan.group > 0 {
        reap(plan.group);
    }
    restore_signals(&old_mask);
    drop(stack);
    if pid < 0 {
        return Err(Failed { step: Step::Clone, error: clone_error });
    }
    if plan.failed_errno != 0 {
        reap(pid);
        return Err(Failed { step: plan.failed_step, error: io::Error::from_raw_os_error(plan.failed_errno) });
    }
    let group = if plan.leads { pid } else { plan.group };
    Ok(Started { pid: pid.cast_unsigned(), group: group.cast_unsigned() })
}

/// Takes the exit of a child of ours that has ended or is about to.
fn reap(pid: c_int) {
    let mut status = 0;
    // SAFETY: waits for our own child, also for one without a signal at its end (__WALL); the status is ours.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Gives its number to a new process group, which exists until it is reaped or for as long as it has another member.
extern "C" fn founder(_: *mut c_void) -> c_int {
    call(libc::SYS_setpgid, [0; 4]);
    // SAFETY: leaves at once, without the exit handlers that belong to the parent.
    unsafe { libc::_exit(0) }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

fn block_all_signals() -> [u64; 2] {
    let all = [u64::MAX; 2];
    let mut old = [0u64; 2];
    // SAFETY: both sets are SIGNAL_SET bytes or more; the raw call also blocks the signals libc keeps for itself.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr(), SIGNAL_SET);
    }
    old
}

fn restore_signals(old: &[u64; 2]) {
    // SAFETY: the set is one that the kernel gave us.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            old.as_ptr(),
            std::ptr::null_mut::<u64>(),
            SIGNAL_SET,
        );
    }
}

/// The child's whole life before execve.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `start` passed its plan, which lives on; its thread sleeps, so nobody else uses it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    if let Err(errno) = join_group(plan) {
        plan.failed_step = Step::Joining;
        plan.failed_errno = errno;
        // SAFETY: leaves at once, without the exit handlers that belong to the parent.
        unsafe { libc::_exit(127) }
    }
    let (step, errno) = prepare_and_execute(plan);
    plan.failed_step = step;
    plan.failed_errno = errno;
    // SAFETY: leaves at once, without the exit handlers that belong to the parent.
    unsafe { libc::_exit(127) }
}

/// Into the group that was founded for it, or one of its own; a session of its own brings one along.
fn join_group(plan: &mut Plan<'_>) -> Result<(), c_int> {
    if let Streams::Terminal(_) = plan.program.streams {
        plan.leads = true;
        return Ok(());
    }
    if plan.group > 0 && check(call(libc::SYS_setpgid, [0, plan.group.into(), 0, 0])).is_ok() {
        return Ok(());
    }
    plan.leads = true;
    check(call(libc::SYS_setpgid, [0; 4])).map(drop)
}

/// Returns only what failed. Raw system calls alone, no allocation, no panic.
fn prepare_and_execute(plan: &Plan<'_>) -> (Step, c_int) {
    let program = plan.program;
    for signal in 1..=64 {
        // Fails for SIGKILL and SIGSTOP, which need no reset.
        call(libc::SYS_rt_sigaction, [signal, DEFAULT_ACTION.as_ptr() as c_long, 0, SIGNAL_SET as c_long]);
    }
    let [input, output, error] = match program.streams {
        Streams::Separate { input, output, error } => [input.as_raw_fd(), output.as_raw_fd(), error.as_raw_fd()],
        Streams::Terminal(terminal) => {
            if let Err(errno) = check(call(libc::SYS_setsid, [0; 4])) {
                return (Step::Session, errno);
            }
            let request = c_long::try_from(libc::TIOCSCTTY).unwrap_or(0x540e);
            if let Err(errno) = check(call(libc::SYS_ioctl, [terminal.as_raw_fd().into(), request, 0, 0])) {
                return (Step::Terminal, errno);
            }
            [terminal.as_raw_fd(); 3]
        }
    };
    for (source, target) in [(input, 0), (output, 1), (error, 2)] {
        if let Err(errno) = check(call(libc::SYS_dup3, [source.into(), target, 0, 0])) {
            return (Step::Streams, errno);
        }
    }
    // 5.9 and later; before, every descriptor of the caller must be close-on-exec, and it is.
    call(libc::SYS_close_range, [3, c_long::from(u32::MAX), 0, 0]);
    write_oom_score(program.oom_score_adj);
    call(libc::SYS_umask, [0o022, 0, 0, 0]);
    if let Some((soft, hard)) = program.open_files {
        let limit = [soft, hard];
        let place = limit.as_ptr() as c_long;
        if let Err(errno) = check(call(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as c_long, place, 0])) {
            return (Step::Limits, errno);
        }
    }
    if let Some(identity) = program.identity
        && let Err(failed) = become_user(identity)
    {
        return failed;
    }
    if let Err(errno) = enter(program.directories) {
        return (Step::Directory, errno);
    }
    restore_signals(&[0; 2]);
    (Step::Execute, execute(plan))
}

fn become_user(identity: &Identity) -> Result<(), (Step, c_int)> {
    if let Some(groups) = &identity.groups {
        let arguments = [groups.len() as c_long, groups.as_ptr() as c_long, 0, 0];
        check(call(libc::SYS_setgroups, arguments)).map_err(|errno| (Step::Groups, errno))?;
    }
    let gid = c_long::from(identity.gid);
    check(call(libc::SYS_setresgid, [gid, gid, gid, 0])).map_err(|errno| (Step::Group, errno))?;
    let uid = c_long::from(identity.uid);
    check(call(libc::SYS_setresuid, [uid, uid, uid, 0])).map_err(|errno| (Step::User, errno))?;
    Ok(())
}

fn enter(directories: &[CString]) -> Result<(), c_int> {
    let mut failed = Ok(());
    for directory in directories {
        match check(call(libc::SYS_chdir, [directory.as_ptr() as c_long, 0, 0, 0])) {
            Ok(_) => return Ok(()),
            Err(errno) if failed.is_ok() => failed = Err(errno),
            Err(_) => {}
        }
    }
    failed
}

/// Tries each candidate; EACCES takes precedence over ENOENT (execvp(3)).
fn execute(plan: &Plan<'_>) -> c_int {
    let mut failed = libc::ENOENT;
    for candidate in plan.program.candidates {
        let arguments =
            [candidate.as_ptr() as c_long, plan.arguments.as_ptr() as c_long, plan.environment.as_ptr() as c_long, 0];
        match check(call(libc::SYS_execve, arguments)) {
            Ok(_) | Err(libc::ENOENT | libc::ENOTDIR) => {}
            Err(libc::EACCES) => failed = libc::EACCES,
            Err(errno) => return errno,
        }
    }
    failed
}

fn write_oom_score(text: &CStr) {
    let path = c"/proc/self/oom_score_adj".as_ptr() as c_long;
    let flags = c_long::from(libc::O_WRONLY | libc::O_CLOEXEC);
    if let Ok(file) = check(call(libc::SYS_openat, [libc::AT_FDCWD.into(), path, flags, 0])) {
        call(libc::SYS_write, [file, text.as_ptr() as c_long, text.count_bytes() as c_long, 0]);
        call(libc::SYS_close, [file, 0, 0, 0]);
    }
}

/// One raw system call of the child. Private to this module: every pointer passed comes from the plan.
fn call(number: c_long, [a, b, c, d]: [c_long; 4]) -> c_long {
    // SAFETY: the callers above pass numbers, or pointers into the plan and the program it borrows, valid for what
    // the call reads; none of the calls writes to memory. libc::syscall sets errno, which belongs to the suspended
    // thread and is read before it runs on.
    unsafe { libc::syscall(number, a, b, c, d) }
}

fn check(result: c_long) -> Result<c_long, c_int> {
    if result >= 0 { Ok(result) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
}
