//! The one thread that is always there: accepts connections, moves output, reaps, keeps time and ends the sandbox.
//!
//! It never waits for anything but its epoll: whatever may block belongs to a connection's thread. Where no thread
//! can be started, because the sandbox has used up its processes, the few requests that help against that are served
//! here with a short time limit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cove_protocol::process::Exit;
use cove_sys::signal::Signals;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use crate::connection::Connection;
use crate::guest::Guest;
use crate::process::signal::time_out;
use crate::process::table::Due;
use crate::serve::{serve, serve_at_once};
use crate::shutdown::Shutdown;

/// Room for a connection's deepest call; only what is touched costs memory.
const STACK: usize = 256 << 10;

/// Connections served at a time.
const CONNECTIONS: usize = 1024;

/// How much output is moved in one go.
const BUFFER: usize = 32 << 10;

/// How long the reaper waits for a child that has not called execve yet before it checks again.
const BIRTH: Duration = Duration::from_millis(20);

/// The grace of processes after a signal from outside.
const GRACE: Duration = Duration::from_secs(5);

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const SIGNALS: u64 = 2;
const LEASH: u64 = 3;

pub struct Supervisor {
    guest: Arc<Guest>,
    listener: UnixListener,
    leash: Option<OwnedFd>,
    signals: Signals,
    buffer: Vec<u8>,
    reap_again: Option<Instant>,
    shutdown: Option<Shutdown>,
}

impl Supervisor {
    pub fn new(
        guest: Arc<Guest>,
        listener: UnixListener,
        leash: Option<OwnedFd>,
        signals: Signals,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let add = |source: BorrowedFd<'_>, token| {
            epoll::add(&guest.epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        add(listener.as_fd(), LISTENER)?;
        add(guest.wake_source().as_fd(), WAKE)?;
        add(signals.as_fd(), SIGNALS)?;
        if let Some(leash) = &leash {
            add(leash.as_fd(), LEASH)?;
        }
        Ok(Supervisor { guest, listener, leash, signals, buffer: Vec::new(), reap_again: None, shutdown: None })
    }

    /// Runs until the sandbox is to end and has ended.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self.next_time().map(until);
            events.clear();
            match epoll::wait(&self.guest.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => self.look_up(),
                    SIGNALS => self.obey_signals()?,
                    LEASH => self.feel_leash(),
                    token => self.pump(token),
                }
            }
            if self.reap_again.is_some_and(|at| at <= Instant::now()) {
                self.reap();
            }
            self.do_what_is_due();
            if self.end_if_asked() {
                return Ok(());
            }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let due = self.guest.table().next_due();
        let shutdown = self.shutdown.as_ref().map(|shutdown| shutdown.deadline);
        [due, self.reap_again, shutdown].into_iter().flatten().min()
    }

    fn accept(&self) {
        // A few at a time, so that a flood of connections does not starve the output.
        for _ in 0..16 {
            match self.listener.accept() {
                Ok((socket, _)) => self.admit(socket),
                Err(error) => {
                    if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
                        // The connection stays in the queue and the epoll awake; do not spin on it.
                        thread::sleep(Duration::from_millis(1));
                    }
                    return;
                }
            }
        }
    }

    fn admit(&self, socket: UnixStream) {
        let connection = Connection::new(socket);
        if self.guest.connections.load(Ordering::SeqCst) >= CONNECTIONS {
            return serve_at_once(&self.guest, connection);
        }
        self.guest.connections.fetch_add(1, Ordering::SeqCst);
        let place = Arc::new(Mutex::new(Some(connection)));
        let thread = {
            let guest = Arc::clone(&self.guest);
            let place = Arc::clone(&place);
            move || {
                if let Some(connection) = take(&place) {
                    serve(&guest, connection);
                }
                guest.connections.fetch_sub(1, Ordering::SeqCst);
            }
        };
        if thread::Builder::new().stack_size(STACK).spawn(thread).is_err() {
            self.guest.connections.fetch_sub(1, Ordering::SeqCst);
            if let Some(connection) = take(&place) {
                serve_at_once(&self.guest, connection);
            }
        }
    }

    fn look_up(&mut self) {
        let _ = rustix::io::read(self.guest.wake_source(), &mut [0u8; 8]);
        if self.reap_again.is_some() {
            self.reap_again = Some(Instant::now());
        }
    }

    fn pump(&mut self, token: u64) {
        let process = {
            let table = self.guest.table();
            table.make_room(BUFFER);
            table.get(token >> 1).cloned()
        };
        let Some(process) = process else { return };
        self.buffer.resize(BUFFER, 0);
        process.pump((token & 1) as usize, &self.guest.epoll, &mut self.buffer);
    }

    fn obey_signals(&mut self) -> io::Result<()> {
        while let Some(received) = self.signals.next()? {
            match Signal::from_named_raw(received.signal) {
                // For PID 1 the kernel reports a sender of 0 for signals from outside its namespace. Signals from
                // inside come from the sandbox's own processes, root included, and do not end it.
                Some(Signal::TERM | Signal::INT) if received.sender == 0 || std::process::id() != 1 => {
                    self.guest.end(GRACE)
                }
                Some(Signal::CHILD) => self.reap_again = Some(Instant::now()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Nobody writes to the leash: readable means that the host's end is closed.
    fn feel_leash(&mut self) {
        if let Some(leash) = self.leash.take() {
            let _ = epoll::delete(&self.guest.epoll, &leash);
            self.guest.end(Duration::ZERO);
        }
    }

    /// Takes the exit of every process that has ended, orphans included.
    fn reap(&mut self) {
        let guest = Arc::clone(&self.guest);
        let Ok(_births) = guest.births.try_lock() else {
            // A process of the child's user can stop the child between setuid and execve, and with it the thread that
            // started it: wake it up. The kernel reported the stop by SIGCHLD.
            if let Some(newborn) = Pid::from_raw(guest.newborn.load(Ordering::SeqCst)) {
                let _ = kill_process(newborn, Signal::CONT);
            }
            guest.reaper_waits.store(true, Ordering::SeqCst);
            self.reap_again = Some(Instant::now() + BIRTH);
            return;
        };
        self.reap_again = None;
        let mut table = guest.table();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(exit) = exit_of(status) {
                        table.reaped(pid.as_raw_pid().cast_unsigned(), exit, &guest.kills);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    if let Some(shutdown) = &mut self.shutdown {
                        shutdown.all_gone = true;
                    }
                    return;
                }
                Ok(None) => return,
            }
        }
    }

    fn do_what_is_due(&self) {
        let now = Instant::now();
        loop {
            // The lock must be free again before the deed, which takes it.
            let Some((process, due)) = self.guest.table().take_due(now) else { return };
            match due {
                Due::Timeout => time_out(&self.guest, &process),
                Due::Settle => process.settle(),
            }
        }
    }

    /// Drives the end of the sandbox. True: it is over.
    fn end_if_asked(&mut self) -> bool {
        if self.shutdown.is_none() {
            let Some(grace) = self.guest.ending() else { return false };
            self.shutdown = Some(Shutdown::begin(&self.guest, grace));
            // There may be nobody to wait for.
            self.reap();
        }
        self.shutdown.as_mut().is_some_and(|shutdown| shutdown.advance(&self.guest))
    }
}

fn take(place: &Mutex<Option<Connection>>) -> Option<Connection> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    let (code, signal) = (status.exit_status(), status.terminating_signal());
    (code.is_some() || signal.is_some()).then_some(Exit { code, signal, timed_out: false, out_of_memory: false })
}

fn until(time: Instant) -> Timespec {
    // A millisecond more, so that the sleep does not end a hair too early and spin.
    let left = time.saturating_duration_since(Instant::now());
    let left = if left.is_zero() { left } else { left + Duration::from_millis(1) };
    Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(left.subsec_nanos()) }
}
