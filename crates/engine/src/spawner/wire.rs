//! The protocol between the engine and a spawner: one JSON message per packet, with descriptors.
//!
//! A message names its descriptors by their place in the packet ([`Slot`]): a spawner has an empty root and can open
//! nothing by itself.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fence::Fence;
use crate::refused::{Refused, Step};
use crate::seccomp::Rules;
use crate::spec::Durability;
use crate::user_namespace::Maps;

/// The kernel's own limit for one packet (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;
const MAX_MESSAGE: usize = 128 << 10;

/// The place of a descriptor in its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot(u8);

/// Descriptors on their way into a packet.
#[derive(Default)]
pub struct Outgoing<'fd>(Vec<BorrowedFd<'fd>>);

impl<'fd> Outgoing<'fd> {
    /// `None` where the packet is full.
    pub fn add(&mut self, descriptor: BorrowedFd<'fd>) -> Option<Slot> {
        if self.0.len() == MAX_DESCRIPTORS {
            return None;
        }
        self.0.push(descriptor);
        Some(Slot(self.0.len() as u8 - 1))
    }
}

/// Descriptors that came in a packet.
#[derive(Debug, Default)]
pub struct Incoming(pub Vec<OwnedFd>);

impl Incoming {
    pub fn get(&self, slot: Slot) -> Result<BorrowedFd<'_>, Refused> {
        self.0
            .get(usize::from(slot.0))
            .map(AsFd::as_fd)
            .ok_or_else(|| Refused::new("find a passed descriptor", Errno::BADF))
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// The program that becomes PID 1; kept by the spawner. One descriptor.
    Guest(Slot),
    /// A user namespace, and a mount namespace that belongs to it. Answered with the two.
    UserNamespace(Maps),
    /// The same for an ordinary user's sandbox, fenced in.
    Fence(Fence),
    Launch(Box<Launch>),
}

/// A sandbox to start; the packet's descriptors are everything that it is made of.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    pub user_namespace: Slot,
    /// Belongs to the user namespace; overlays are put together in it.
    pub assembly: Slot,
    pub network: Slot,
    pub cgroup: Cgroup,
    /// The root comes first; each next one is mounted inside it.
    pub overlays: Vec<Overlay>,
    /// The sandbox's storage: one mount with every overlay's upper and work directory.
    pub storage: Slot,
    /// Detached mounts and where they go.
    pub mounts: Vec<Attach>,
    /// On system calls.
    pub rules: Rules,
    /// Files of the root that are written before it is entered: its name, its resolver.
    pub files: Vec<(String, String)>,
    pub hostname: String,
    /// The engine's number for the sandbox's user 0.
    pub first_id: u32,
    /// The engine's number for the group of the sandbox's terminals.
    pub terminal_group: u32,
    /// Who PID 1 is inside.
    pub first_user: u32,
    pub groups: Groups,
    /// Processes and threads that each user inside may have, where that is not left to the usual limit.
    pub processes: Option<u32>,
    /// Bytes that `/dev/shm` may hold.
    pub shared_memory: u64,
    /// A file to show as `/proc/meminfo`.
    pub memory_info: Option<Slot>,
    /// What `/proc/sys/kernel/random/boot_id` says.
    pub boot_id: String,
    pub listener: Slot,
    pub leash: Option<Slot>,
    /// What the guest finds in `COVE_GUEST`.
    pub configuration: String,
}

/// What happens to the engine's supplementary groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Groups {
    Dropped,
    /// setgroups(2) is refused where an ordinary user has a single id.
    Kept,
}

/// Both absent where the host gives no cgroups.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cgroup {
    /// Version 1: the child writes `0` to each of these `tasks` files.
    pub tasks: Vec<Slot>,
    /// And to one of these: the one whose processors it runs on, or the first.
    pub windows: Vec<Window>,
    /// Version 2: the child is born in the directory.
    pub directory: Option<Slot>,
    /// For the guest: the count of out-of-memory kills.
    pub kills: Option<Slot>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Window {
    pub tasks: Slot,
    pub processors: Vec<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Overlay {
    /// Relative to the sandbox's root; empty for the root itself.
    pub target: String,
    /// Top first.
    pub lowers: Vec<Slot>,
    /// Relative to the storage mount.
    pub upper: String,
    pub work: String,
    pub durability: Durability,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Attach {
    pub mount: Slot,
    /// Relative to the sandbox's root.
    pub target: String,
    pub kind: AttachKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachKind {
    Directory,
    File,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Ready,
    /// With a pidfd.
    Started {
        pid: i32,
        /// The one it joined, where the launch named any.
        window: usize,
    },
    /// With the user namespace and its mount namespace.
    Namespaces,
    Refused(Refused),
}

pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, descriptors: &Outgoing<'_>) -> Result<(), Refused> {
    let text = serde_json::to_vec(message).map_err(|_| Refused::new("write a message", Errno::INVAL))?;
    if text.len() > MAX_MESSAGE {
        return Err(Refused::new("launch with an environment this large", Errno::TOOBIG));
    }
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.0.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors.0)) {
        return Err(Refused::new("pass descriptors", Errno::TOOBIG));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)
    });
    sent.map(drop).step("send to the spawner's socket")
}

/// `Ok(None)` when the other side has closed.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> Result<Option<(T, Incoming)>, Refused> {
    // Peeks first: with TRUNC the kernel returns the packet's whole length, however little is read.
    let look = RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, length) = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut [0u8; 1][..], look))
        .step("read the spawner's socket")?;
    if length > MAX_MESSAGE {
        return Err(Refused::new("take so long a message", Errno::MSGSIZE));
    }
    let mut text = vec![0u8; length.max(1)];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let received = received.step("read the spawner's socket")?;
    let mut incoming = Incoming::default();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            incoming.0.extend(descriptors);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&text[..received.bytes])
        .map_err(|_| Refused::new("understand a message on the spawner's socket", Errno::BADMSG))?;
    Ok(Some((message, incoming)))
}
