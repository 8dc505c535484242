//! How sandboxes end: one thread waits on all their pidfds, another clears away what is left.
//!
//! ```text
//!   pidfd readable ─▶ watcher: waitid ─▶ reaper: cause, network, cgroup, range, record ─▶ whoever waits, or `departures`
//! ```
//! Neither lies on the path of a launch. What a launch no longer needs (namespace descriptors: closing the last one
//! costs the kernel a grace period) and what was destroyed (trash) is let go here too.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions};

use crate::error::Error;
use crate::life::Live;
use crate::refused::{Refused, Step};

/// Work for the reaper.
pub enum Task {
    Bury(Arc<Live>, Exit),
    /// A launch is done: lets go of what it no longer needs and watches its memory.
    Settle(Arc<Live>, Vec<OwnedFd>),
    EmptyTrash,
}

/// How the first process of a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Not our child, and the kernel is too old to tell of others'.
    Unknown,
}

/// The two threads.
#[derive(Debug)]
pub struct Reaper {
    poll: Arc<Poll>,
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Poll {
    epoll: OwnedFd,
    stop: OwnedFd,
    watched: Mutex<HashMap<u64, Arc<Live>>>,
}

const STOP: u64 = u64::MAX;

impl Reaper {
    /// `work` is called on the reaper's thread for every task, in order.
    pub fn start(mut work: impl FnMut(Task) + Send + 'static) -> Result<Reaper, Error> {
        let poll = Arc::new(Poll::new()?);
        let (tasks, queue): (Sender<Task>, Receiver<Task>) = channel();
        let (watched, watcher_tasks) = (Arc::clone(&poll), tasks.clone());
        let watcher = spawn("cove-watcher", move || watched.run(&watcher_tasks))?;
        let worker = spawn("cove-reaper", move || queue.into_iter().for_each(&mut work))?;
        Ok(Reaper { poll, tasks: Some(tasks), threads: vec![watcher, worker] })
    }

    /// From now on its end is noticed, also if it has come already.
    pub fn watch(&self, live: &Arc<Live>) -> Result<(), Refused> {
        self.poll.add(live)
    }

    pub fn give(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // Only fails while the engine closes; then all is let go anyway.
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.tasks = None;
        // Adds one to the counter: the watcher wakes, ends and lets go of the queue's other end.
        let _ = rustix::io::write(&self.poll.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
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

/// Takes the exit status; of a sandbox that an earlier server started only the kernel's note is left, if any.
fn collect(pidfd: BorrowedFd<'_>) -> Exit {
    match rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED)) {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Unknown,
        },
        _ => Exit::Unknown,
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(body);
    thread.map_err(Error::file("start thread", name))
}
