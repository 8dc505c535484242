//! Processes that are copies of a prepared one: a warm interpreter that forks for each request.
//!
//! ```text
//!   guest ── environment, directories, three descriptors ──▶ original ── fork, fork ──▶ copy
//!   guest ◀── "ready", with the pid that the kernel vouches for ───────────────────────── │  waits for its input
//! ```
//!
//! The original runs as the sandbox's user and is not trusted: it gets only what a program of that user would get, its
//! answer is bounded in size and time, and the kernel reports the copy's pid (`SCM_CREDENTIALS`, unix(7)). The copy
//! must be the guest's own child, which an orphan of the namespace is, so that its end is seen.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cove_protocol::process::Selector;
use cove_protocol::{Failure, FailureKind};
use cove_sys::program::Streams;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, UCred, recvmsg, sendmsg, socketpair, sockopt,
};
use serde::{Deserialize, Serialize};

use super::signal;
use crate::failure::{Result, from_errno};
use crate::guest::Guest;
use crate::users::User;

/// An original may be at an import; one that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// The longest answer.
const ANSWER: usize = 4096;

/// The guest's side of a process that can be copied.
pub struct Original {
    /// One copy at a time: answers come in the order of the requests.
    link: Mutex<OwnedFd>,
    uid: u32,
}

impl Original {
    pub fn new(link: OwnedFd, uid: u32) -> Self {
        Original { link: Mutex::new(link), uid }
    }
}

#[derive(Serialize)]
struct Wanted<'a> {
    env: &'a BTreeMap<String, String>,
    directories: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ready(bool),
    /// The number of the kernel's refusal to enter the directory.
    Failed(i32),
    Refused(String),
}

/// Our end and theirs of a standard input that takes packets. The kernel reports who sent what.
pub fn link() -> std::result::Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_passcred(&ours, true)?;
    Ok((ours, theirs))
}

/// Has the process with the tag copied; returns the pid of the copy, which waits for its input.
pub fn make(
    guest: &Guest,
    tag: &str,
    user: &User,
    env: &BTreeMap<String, String>,
    directories: &[CString],
    streams: Streams<'_>,
) -> Result<u32> {
    let process = guest.table().find(&Selector::Living(tag.to_owned()))?;
    let unfit = |why: &str| Failure::new(FailureKind::WrongState, format!("copy process {}: {why}", process.pid));
    let Streams::Separate { input, output, error } = streams else {
        return Err(unfit("a copy has no terminal"));
    };
    let original = process.original.as_ref().ok_or_else(|| unfit("it was not started for that"))?;
    if original.uid != user.uid {
        return Err(unfit("it belongs to another user"));
    }
    let directories = directories.iter().map(|path| path.to_string_lossy()).collect();
    let wanted = Wanted { env, directories };
    let text = serde_json::to_vec(&wanted).unwrap_or_default();
    let link = original.link.lock().unwrap_or_else(PoisonError::into_inner);
    send(&link, &text, &[input, output, error]).map_err(|errno| match errno {
        Errno::PIPE | Errno::CONNRESET => Failure::new(FailureKind::NotFound, "the process to copy has ended"),
        errno => unfit(&from_errno(errno, "ask it").message),
    })?;
    let heard = receive(&link).map_err(|errno| {
        // Whatever it says later would be taken for the answer to another request.
        signal::kill_group(guest, &process);
        match errno {
            Errno::PIPE => Failure::new(FailureKind::NotFound, "the process to copy has ended"),
            errno => unfit(&from_errno(errno, "hear from it").message),
        }
    })?;
    match (serde_json::from_slice(&heard.text), heard.sender) {
        (Ok(Answer::Ready(true)), Some(sender)) if sender.uid.as_raw() == user.uid => {
            Ok(sender.pid.as_raw_pid().cast_unsigned())
        }
        (Ok(Answer::Failed(number)), _) => {
            let directory = wanted.directories.first().map_or("", |path| path);
            Err(from_errno(Errno::from_raw_os_error(number), format!("enter the working directory {directory}")))
        }
        (Ok(Answer::Refused(why)), _) => Err(unfit(&why)),
        _ => Err(unfit("its answer makes no sense")),
    }
}

/// Checks that the copy lives and is our child, so that we see its end. Call it while the reaper is held back.
pub fn check(pid: u32) -> Result<()> {
    let gone = || Failure::new(FailureKind::WrongState, format!("the copy, process {pid}, ended before it began"));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|_| gone())?;
    // proc_pid_stat(5): the name in brackets may hold anything; then the state and the parent.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, parent) = (fields.next().unwrap_or("Z"), fields.next().unwrap_or_default());
    if state == "Z" || state == "X" || parent != std::process::id().to_string() {
        return Err(gone());
    }
    Ok(())
}

fn send(link: &OwnedFd, text: &[u8], descriptors: &[BorrowedFd<'_>; 3]) -> std::result::Result<(), Errno> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match sendmsg(link, &[IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(link, PollFlags::OUT, deadline)?,
            Err(errno) => return Err(errno),
        }
    }
}

struct Heard {
    text: Vec<u8>,
    sender: Option<UCred>,
}

fn receive(link: &OwnedFd) -> std::result::Result<Heard, Errno> {
    let deadline = Instant::now() + PATIENCE;
    let mut text = vec![0; ANSWER];
    loop {
        wait_for(link, PollFlags::IN, deadline)?;
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1), ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut room);
        match recvmsg(link, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 0 => return Err(Errno::PIPE),
            Ok(message) => {
                // Descriptors that it may have sent along are dropped, and with that closed.
                let sender = ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmCredentials(sender) => Some(sender),
                    _ => None,
                });
                text.truncate(message.bytes);
                return Ok(Heard { text, sender });
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn wait_for(link: &OwnedFd, what: PollFlags, deadline: Instant) -> std::result::Result<(), Errno> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Errno::TIMEDOUT);
    }
    let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(link, what)], Some(&left)) {
        Ok(0) => Err(Errno::TIMEDOUT),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
