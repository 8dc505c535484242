//! The order of containment: everything that isolates a sandbox from the host, in the order in which it is set up.
//!
//! [`start`] runs in a spawner (one thread, empty root). [`contain`] runs in the new process, which shares the
//! spawner's memory until it becomes the guest; every step that fails stops the launch.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use cove_sys::clone::{Child, SingleThreaded, Stack, flags, share_memory};
use cove_sys::namespace::{self, Kind};

use crate::capability;
use crate::fence;
use crate::limits::Rlimits;
use crate::privilege::Privilege;
use crate::refused::{Refused, Step};
use crate::root;
use crate::seccomp::Filter;
use crate::spawner::wire::{Incoming, Launch};

/// What a spawner keeps from one launch to the next.
pub struct Launcher {
    pub alone: SingleThreaded,
    pub stack: Stack,
    pub means: Means,
}

/// What is the same for every sandbox.
pub struct Means {
    pub filter: Filter,
    pub rlimits: Rlimits,
    pub privilege: Privilege,
}

/// The result of a clone.
pub enum Born {
    /// It has become the guest; with the number of the window it joined.
    Guest(Child, usize),
    /// It has exited, and waits for its parent, the engine, to take note.
    Refused(Child, Refused),
}

impl Launcher {
    /// Starts a sandbox; returns when its process has become the guest, or was refused on the way.
    pub fn start(&mut self, launch: &Launch, passed: &Incoming, guest: BorrowedFd<'_>) -> Result<Born, Refused> {
        let mut overlays = Ok(Vec::new());
        let assembler = share_memory(&self.alone, &mut self.stack, flags::FILES, None, || {
            overlays = root::assemble(launch, passed);
            0
        });
        wait_for(assembler.step("start the assembler")?)?;
        let overlays = overlays?;

        let born_in = launch.cgroup.directory.map(|slot| passed.get(slot)).transpose()?;
        // A child of the engine itself, not of the spawner: the engine waits for it, and outlives its spawners.
        let namespaces = flags::PARENT | flags::NEW_MOUNT | flags::NEW_PID | flags::NEW_IPC | flags::NEW_UTS;
        let (mut outcome, mut window) = (None, 0);
        let means = &self.means;
        let child = share_memory(&self.alone, &mut self.stack, namespaces, born_in, || {
            let joined = &mut window;
            let Err(refused) = contain(launch, passed, &overlays, means, guest, joined);
            outcome = Some(refused);
            1
        })
        .step("clone the sandbox's first process")?;
        Ok(match outcome {
            None => Born::Guest(child, window),
            Some(refused) => Born::Refused(child, refused),
        })
    }
}

/// From a clone of the spawner to the guest. The namespaces for mounts, processes, IPC and host name are new by birth
/// and, like the network's, belong to the host (or to an ordinary user's home): capabilities inside the sandbox's user namespace mean nothing to them.
fn contain(
    launch: &Launch,
    passed: &Incoming,
    overlays: &[OwnedFd],
    means: &Means,
    guest: BorrowedFd<'_>,
    window: &mut usize,
) -> Result<Infallible, Refused> {
    rustix::process::setsid().step("leave the engine's terminal")?; //                 its signals and /dev/tty are not ours
    namespace::enter(passed.get(launch.network)?, Kind::Network).step("enter the network namespace")?;
    rustix::system::sethostname(launch.hostname.as_bytes()).step("set the host name")?;
    root::enter(launch, passed, overlays, means.privilege)?; //                        files: the overlay, /proc, /dev
    *window = join_cgroups(launch, passed)?; //                                        late: on a busy host what is above
    namespace::unshare(Kind::Cgroup).step("make a cgroup namespace")?; //              would run at the sandbox's share
    means.rlimits.apply()?; //                                                         second walls, oom score
    launch.processes.map_or(Ok(()), fence::bound_processes)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step("open /dev/null")?;
    means.filter.install(launch.rules)?; //                                            as root: see `seccomp::Filter`
    means.filter.secret().enter(passed.get(launch.user_namespace)?).step("enter the user namespace")?;
    root::become_first_user(launch)?; //                                               0 inside, nobody outside
    capability::bound()?; //                                                           what sudo can never exceed
    capability::drop()?;
    become_guest(launch, passed, null.as_fd(), guest) //                               every other descriptor closes
}

fn join_cgroups(launch: &Launch, passed: &Incoming) -> Result<usize, Refused> {
    // "0" is the writer; a task that moves itself spares the kernel a grace period (measured: 7 ms).
    let join = |file| rustix::io::write(passed.get(file)?, b"0").map(drop).step("join a cgroup");
    // The processors first: before it has the sandbox's small share of time, it does not wait long for another
    // processor.
    let windows = &launch.cgroup.windows;
    let here = rustix::thread::sched_getcpu() as u32;
    let window = windows.iter().position(|window| window.processors.contains(&here)).unwrap_or(0);
    if let Some(window) = windows.get(window) {
        join(window.tasks)?;
    }
    launch.cgroup.tasks.iter().try_for_each(|&file| join(file))?;
    Ok(window)
}

fn become_guest(
    launch: &Launch,
    passed: &Incoming,
    null: BorrowedFd<'_>,
    guest: BorrowedFd<'_>,
) -> Result<Infallible, Refused> {
    let listener = passed.get(launch.listener)?;
    let leash = launch.leash.map(|slot| passed.get(slot)).transpose()?;
    let kills = launch.cgroup.kills.map(|slot| passed.get(slot)).transpose()?;
    let configuration = CString::new(format!("COVE_GUEST={}", launch.configuration))
        .map_err(|_| Refused::new("write the guest's configuration", rustix::io::Errno::INVAL))?;
    let descriptors = [Some(null), Some(null), Some(null), Some(listener), leash, kills];
    cove_sys::exec::replace_process(guest, &[c"cove-guest"], &[&configuration], &descriptors).step("become the guest")
}

fn wait_for(child: Child) -> Result<(), Refused> {
    let ended = rustix::io::retry_on_intr(|| {
        let id = rustix::process::WaitId::PidFd(child.pidfd.as_fd());
        rustix::process::waitid(id, rustix::process::WaitIdOptions::EXITED)
    });
    match ended.step("wait for the assembler")?.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(Refused::new("put the root together: the assembler died", rustix::io::Errno::CHILD)),
    }
}
