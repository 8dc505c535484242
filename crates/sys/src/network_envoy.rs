//! A child process that goes into a user namespace and a network namespace that belongs to it, does a list of things
//! there, and hands back what it opened.
//!
//! A process with several threads cannot enter a user namespace (setns(2): EINVAL), and without the right to change
//! the network there, that is the only way in for an ordinary user. The child is forked, not executed, and so may only make
//! system calls: it runs no code of its caller's, takes no lock and allocates nothing.

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netlink::{self, Subsystem};
use crate::network_namespace::unshare_network;

/// One thing to do inside.
#[derive(Debug)]
pub enum Step<'a> {
    /// Into a network namespace that belongs to the user namespace.
    Join(BorrowedFd<'a>),
    /// Into a new one.
    Unshare,
    Netlink {
        subsystem: Subsystem,
        messages: &'a [u8],
        answers: u32,
    },
    /// Writes a setting; one that this kernel or container does not let anybody change is passed over.
    Set {
        path: &'a CStr,
        value: &'a [u8],
    },
    /// Hands back the network namespace.
    Keep,
    /// Hands back a socket that is bound there; a stream also listens.
    Bind {
        kind: SocketType,
        address: SocketAddrV4,
        backlog: i32,
    },
}

/// Which step failed and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// Counted from 0; none when the child itself could not be sent or did not come back.
    pub step: Option<usize>,
    pub errno: Errno,
}

/// As much as one child brings back.
const MOST_KEPT: usize = 4;

/// Sends a child into the user namespace and waits for it. What the steps open comes back in their order.
pub fn send(user: BorrowedFd<'_>, steps: &[Step<'_>]) -> Result<Vec<OwnedFd>, Failed> {
    let outside = |errno| Failed { step: None, errno };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(outside)?;
    // SAFETY: the child of a process with threads may do nothing that needs another thread's lock. It runs `report`, which
    // makes system calls on values that exist before the fork, and `_exit`; it allocates nothing and never returns.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(outside(last_errno())),
        0 => {
            report(user, steps, &theirs);
            // SAFETY: ends the child without running the exit handlers and destructors of its parent's program.
            unsafe { libc::_exit(0) }
        }
        _ => drop(theirs),
    }
    let brought = receive(&ours);
    reap(child);
    brought
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn reap(child: libc::pid_t) {
    loop {
        // SAFETY: waits for a child of ours by its number; no status is asked for. ECHILD means that somebody else, who
        // waits for every child, was faster.
        let outcome = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        if outcome != -1 || last_errno() != Errno::INTR {
            return;
        }
    }
}

/// In the child: does everything and tells the parent how it went.
fn report(user: BorrowedFd<'_>, steps: &[Step<'_>], parent: &OwnedFd) {
    let mut kept: [Option<OwnedFd>; MOST_KEPT] = [const { None }; MOST_KEPT];
    let (step, errno) = match perform(user, steps, &mut kept) {
        Ok(()) => (u32::MAX, 0),
        Err((step, errno)) => (step as u32, errno.raw_os_error()),
    };
    let mut message = [0u8; 8];
    message[..4].copy_from_slice(&step.to_ne_bytes());
    message[4..].copy_from_slice(&errno.to_ne_bytes());
    let mut descriptors = [parent.as_fd(); MOST_KEPT];
    let mut count = 0;
    for descriptor in kept.iter().flatten() {
        descriptors[count] = descriptor.as_fd();
        count += 1;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_KEPT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if count > 0 {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors[..count]));
    }
    // A parent that is gone needs no report.
    let _ = sendmsg(parent, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL);
}

fn perform(
    user: BorrowedFd<'_>,
    steps: &[Step<'_>],
    kept: &mut [Option<OwnedFd>; MOST_KEPT],
) -> Result<(), (usize, Errno)> {
    move_into_link_name_space(user, Some(LinkNameSpaceType::User)).map_err(|errno| (u32::MAX as usize, errno))?;
    let mut count = 0;
    for (number, step) in steps.iter().enumerate() {
        if let Some(descriptor) = take(step).map_err(|errno| (number, errno))? {
            *kept.get_mut(count).ok_or((number, Errno::MFILE))? = Some(descriptor);
            count += 1;
        }
    }
    Ok(())
}

fn take(step: &Step<'_>) -> Result<Option<OwnedFd>, Errno> {
    match step {
        Step::Join(network) => move_into_link_name_space(*network, Some(LinkNameSpaceType::Network)).map(|()| None),
        Step::Unshare => {
            unshare_network().map(|()| None).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
        Step::Netlink { subsystem, messages, answers } => {
            netlink::execute(netlink::open(*subsystem)?, messages, *answers).map(|()| None)
        }
        Step::Set { path, value } => {
            let written = rustix::fs::open(*path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|file| rustix::io::write(file, value));
            match written {
                Ok(_) | Err(Errno::ROFS | Errno::NOENT | Errno::INVAL | Errno::ACCESS | Errno::PERM) => Ok(None),
                Err(errno) => Err(errno),
            }
        }
        Step::Keep => rustix::fs::open(c"/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Some),
        Step::Bind { kind, address, backlog } => bind(*kind, address, *backlog).map(Some),
    }
}

/// Opens a socket in the calling thread's network namespace, bound and, if it is a stream, listening.
pub fn bind(kind: SocketType, address: &SocketAddrV4, backlog: i32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    if kind == SocketType::STREAM {
        // Connections of an earlier server may linger on the port.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, address)?;
    if kind == SocketType::STREAM {
        rustix::net::listen(&socket, backlog)?;
    }
    Ok(socket)
}

fn receive(ours: &OwnedFd) -> Result<Vec<OwnedFd>, Failed> {
    let mut message = [0u8; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_KEPT))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(ours, &mut [IoSliceMut::new(&mut message)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other.map_err(|errno| Failed { step: None, errno })?,
        }
    };
    let mut brought = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            brought.extend(descriptors);
        }
    }
    if received.bytes != message.len() {
        return Err(Failed { step: None, errno: Errno::CHILD });
    }
    let step = u32::from_ne_bytes([message[0], message[1], message[2], message[3]]);
    match i32::from_ne_bytes([message[4], message[5], message[6], message[7]]) {
        0 => Ok(brought),
        code => {
            let step = (step != u32::MAX).then_some(step as usize);
            Err(Failed { step, errno: Errno::from_raw_os_error(code) })
        }
    }
}
