//! How sandboxes end: one thread waits on all their pidfds, another clears away what is left.
//!
//! ```text
//!   pidfd readable ─▶ watcher: waitid ─▶ reaper: cause, network, cgroup, range, record ─▶ whoever waits, or `departures`
//! ```
//! Neither lies on the path of a launch. A third thread does what takes the kernel long and nobody waits for: what a launch no longer
//! needs (namespace descriptors: closing the last one costs the kernel a grace period), what was destroyed (trash).
//!
//! An engine for one command rests ([`Reaper::resting`]): it has no threads, its caller sees the sandbox off
//! ([`Reaper::see_off`]) and does the chores when it has time ([`Reaper::tidy`]). A command that takes longer than a moment is worth
//! the threads ([`Reaper::wake`]).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions};

use crate::error::Error;
use crate::life::Live;
use crate::refused::{Refused, Step};
use crate::spec::SandboxId;

/// Work for the reaper.
pub enum Task {
    Bury(Arc<Live>, Exit),
    /// What a launch no longer needs.
    LetGo(Vec<OwnedFd>),
    /// A sandbox that has lived for a moment is watched for want of memory. Not at birth: the kernel takes a grace
    /// period for it, and most short lives never need it.
    Settle(Arc<Live>, Age),
    EmptyTrash,
    /// Counts the files of a sandbox that was captured ([`crate::storage::Store::recount`]).
    Recount(SandboxId),
    /// Once a second: what no limit of the kernel's bounds.
    Watch,
    /// Several times a second: storage has room ahead of those who write, and is begun anew where it has failed.
    Room,
    /// Uppers are made ahead and the pool of them looked after: after a launch, and now and then of itself.
    Tend,
}

/// How long the storage is left alone where nobody launches: those who only write need room too.
const TEND_EVERY: Duration = Duration::from_secs(5);

/// How often what the kernel does not bound is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// How long the kernel may take over the last breath of a process.
pub const DYING: Duration = Duration::from_secs(5);

/// How often storage is looked at. Nobody writes what it has free in this time.
const ROOM_EVERY: Duration = Duration::from_millis(200);

/// How old a sandbox is before it settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// One of many: most are gone before it is worth the while.
    Settled,
    /// A single command's, once its engine is woken: it may have eaten its memory before the other age.
    Young,
}

impl Age {
    fn duration(self) -> Duration {
        match self {
            Age::Settled => Duration::from_millis(300),
            Age::Young => Duration::ZERO,
        }
    }
}

/// How the first process of a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Not our child, and the kernel is too old to tell of others'.
    Unknown,
}

/// What is done with a task.
type Work = dyn Fn(Task) + Send + Sync;

pub struct Reaper {
    work: Arc<Work>,
    state: Mutex<State>,
}

enum State {
    Resting { tasks: Vec<Task>, watched: Vec<Arc<Live>> },
    Awake(Threads),
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper").finish_non_exhaustive()
    }
}

impl Reaper {
    /// With its threads. `work` is called for every task: burials in order on one thread, the rest on another.
    pub fn start(work: impl Fn(Task) + Send + Sync + 'static) -> Result<Reaper, Error> {
        let reaper = Reaper::resting(work);
        reaper.wake()?;
        Ok(reaper)
    }

    /// Without threads, until it is woken.
    pub fn resting(work: impl Fn(Task) + Send + Sync + 'static) -> Reaper {
        let state = State::Resting { tasks: Vec::new(), watched: Vec::new() };
        Reaper { work: Arc::new(work), state: Mutex::new(state) }
    }

    /// Has threads from now on.
    pub fn wake(&self) -> Result<(), Error> {
        let mut state = self.lock();
        let State::Resting { tasks, watched } = &mut *state else { return Ok(()) };
        let threads = Threads::start(&self.work)?;
        for live in watched.iter() {
            threads.poll.add(live)?;
        }
        tasks.drain(..).for_each(|task| threads.give(task));
        *state = State::Awake(threads);
        Ok(())
    }

    /// From now on its end is noticed, also if it has come already.
    pub fn watch(&self, live: &Arc<Live>) -> Result<(), Refused> {
        match &mut *self.lock() {
            State::Resting { watched, .. } => {
                watched.push(Arc::clone(live));
                Ok(())
            }
            State::Awake(threads) => threads.poll.add(live),
        }
    }

    pub fn give(&self, task: Task) {
        match &mut *self.lock() {
            State::Resting { tasks, .. } => tasks.push(task),
            State::Awake(threads) => threads.give(task),
        }
    }

    /// Does what was given while it rests. What is left for later then is done by the caller, who has the time now.
    pub fn tidy(&self) {
        let mut due = Vec::new();
        if let State::Resting { tasks, .. } = &mut *self.lock() {
            // A sandbox settles when it has lived for a moment, which wakes the reaper.
            let (later, now): (Vec<Task>, Vec<Task>) =
                tasks.drain(..).partition(|task| matches!(task, Task::Settle(..)));
            (*tasks, due) = (later, now);
        }
        due.into_iter().for_each(|task| (self.work)(task));
    }

    /// Waits for the end of one that was killed, and buries it, where no thread does.
    pub fn see_off(&self, live: &Arc<Live>, patience: Duration) {
        let is_own = match &mut *self.lock() {
            State::Resting { watched, .. } => {
                let before = watched.len();
                watched.retain(|other| !Arc::ptr_eq(other, live));
                watched.len() < before
            }
            State::Awake(_) => false,
        };
        if is_own && ends_within(&live.pidfd, patience) {
            (self.work)(Task::Bury(Arc::clone(live), collect(live.pidfd.as_fd())));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.tidy();
    }
}

/// Whether a process has ended, or does so in time.
pub fn ends_within(pidfd: &OwnedFd, patience: Duration) -> bool {
    let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&limit))).is_ok_and(|many| many > 0)
}

/// The threads; they end with the value.
struct Threads {
    poll: Arc<Poll>,
    urgent: Option<Sender<Task>>,
    idle: Option<Sender<Task>>,
    /// Its end is the end of the thread that looks after room.
    room: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Poll {
    epoll: OwnedFd,
    stop: OwnedFd,
    watched: Mutex<HashMap<u64, Arc<Live>>>,
}

const STOP: u64 = u64::MAX;

impl Threads {
    fn start(work: &Arc<Work>) -> Result<Threads, Error> {
        let poll = Arc::new(Poll::new()?);
        let (urgent, burials) = channel::<Task>();
        let (idle, chores) = channel::<Task>();
        let (watched, ended) = (Arc::clone(&poll), urgent.clone());
        let watcher = spawn("cove-watcher", move || watched.run(&ended))?;
        let (bury, work) = (Arc::clone(work), Arc::clone(work));
        let reaper = spawn("cove-reaper", move || burials.into_iter().for_each(|task| bury(task)))?;
        let (room, no_more) = channel::<()>();
        let look = Arc::clone(&work);
        // On its own: what the others do may take longer than a writer needs to fill a disk.
        let keeper = spawn("cove-room", move || {
            while no_more.recv_timeout(ROOM_EVERY) == Err(RecvTimeoutError::Timeout) {
                look(Task::Room);
            }
        })?;
        let tidier = spawn("cove-tidier", move || tidy(&chores, &*work))?;
        let threads = vec![watcher, reaper, keeper, tidier];
        Ok(Threads { poll, urgent: Some(urgent), idle: Some(idle), room: Some(room), threads })
    }

    fn give(&self, task: Task) {
        let queue = if matches!(task, Task::Bury(..)) { &self.urgent } else { &self.idle };
        if let Some(queue) = queue {
            // Only fails while the engine closes; then all is let go anyway.
            let _ = queue.send(task);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        (self.urgent, self.idle, self.room) = (None, None, None);
        // Adds one to the counter: the watcher wakes, ends and lets go of the queue's other end.
        let _ = rustix::io::write(&self.poll.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Does chores as they come, and lets sandboxes settle when they are old enough and still there.
fn tidy(chores: &Receiver<Task>, work: &dyn Fn(Task)) {
    let mut settling: VecDeque<(Instant, Arc<Live>)> = VecDeque::new();
    let (mut tended, mut watched) = (Instant::now(), Instant::now());
    loop {
        let regular = (tended + TEND_EVERY).min(watched + WATCH_EVERY);
        let next = settling.front().map_or(regular, |(due, _)| (*due).min(regular));
        let task = chores.recv_timeout(next.saturating_duration_since(Instant::now()));
        if tended.elapsed() >= TEND_EVERY {
            work(Task::Tend);
            tended = Instant::now();
        }
        if watched.elapsed() >= WATCH_EVERY {
            work(Task::Watch);
            watched = Instant::now();
        }
        match task {
            Ok(Task::Settle(live, age)) => settling.push_back((Instant::now() + age.duration(), live)),
            Ok(task) => work(task),
            Err(RecvTimeoutError::Timeout) => {
                let is_due = settling.front().is_some_and(|(due, _)| *due <= Instant::now());
                if is_due
                    && let Some((_, live)) = settling.pop_front()
                    && !live.is_gone()
                {
                    work(Task::Settle(live, Age::Settled));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Poll {
    fn new() -> Result<Poll, Refused> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).step("make an epoll")?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).step("make an eventfd")?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN).step("watch an eventfd")?;
        Ok(Poll { epoll, stop, watched: Mutex::default() })
    }

    fn add(&self, live: &Arc<Live>) -> Result<(), Refused> {
        let key = u64::from(live.running.pid);
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.insert(key, Arc::clone(live));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let added = epoll::add(&self.epoll, &live.pidfd, epoll::EventData::new_u64(key), flags);
        if added.is_err() {
            watched.remove(&key);
        }
        added.step("watch the sandbox's first process")
    }

    fn run(&self, tasks: &Sender<Task>) {
        let mut events = Vec::with_capacity(64);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            for event in events.drain(..) {
                if event.data.u64() == STOP {
                    return;
                }
                let ended = self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&event.data.u64());
                if let Some(live) = ended {
                    let exit = collect(live.pidfd.as_fd());
                    // Also taken off when the descriptor closes; the engine may keep it a little longer.
                    let _ = epoll::delete(&self.epoll, &live.pidfd);
                    let _ = tasks.send(Task::Bury(live, exit));
                }
            }
        }
    }
}

/// Takes the exit status. A sandbox that an earlier server started is another's child by now: the kernel notes how it
/// ended when that parent, usually init, has reaped it.
pub fn collect(pidfd: BorrowedFd<'_>) -> Exit {
    match rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED)) {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Unknown,
        },
        _ => noted(pidfd).unwrap_or(Exit::Unknown),
    }
}

/// Waits a little for the parent: a host without one that reaps would otherwise hold everybody up.
fn noted(pidfd: BorrowedFd<'_>) -> Option<Exit> {
    for _ in 0..20 {
        if let Some(status) = cove_sys::pidfd::exit_status(pidfd).ok()? {
            return Some(match status & 0x7f {
                0 => Exit::Code((status >> 8) & 0xff),
                signal => Exit::Signal(signal),
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(body);
    thread.map_err(Error::file("start thread", name))
}
