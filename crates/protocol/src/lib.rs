//! The protocol between host and guest.
//!
//! The guest is PID 1 of a sandbox and listens on a Unix socket that the host gave it. **One connection is one
//! operation**: the host connects, sends one [`Request`], then both sides stream frames until one of them closes.
//! There is no multiplexing and no HTTP in the guest; doors translate at the host.
//!
//! ```text
//!   host                                   guest
//!    │ ── Request {"op":"start", …} ───────▶ │
//!    │ ◀─ Reply   {"reply":"started", …} ── │
//!    │ ◀─ Stdout  bytes ──────────────────── │      any number, in the order the guest read them
//!    │ ── Stdin   bytes ───────────────────▶ │
//!    │ ── Control {"control":"resize", …} ─▶ │
//!    │ ◀─ Event   {"event":"exited", …} ──── │
//!    │ ◀─ End ─────────────────────────────── │      then the guest closes
//! ```
//!
//! Where others than the host can reach the socket, the guest has a token, and a [`Kind::Token`] frame comes before the
//! request.
//!
//! A frame is five bytes of header (kind, length as big-endian u32) and at most [`MAX_PAYLOAD`] bytes. Messages are
//! JSON, so that an older guest that outlived a server upgrade still understands a newer host: unknown fields are
//! ignored, absent ones have defaults. Bulk bytes travel raw.
//!
//! The guest is hostile: the host must treat every frame as if the sandbox's code had written it. Nothing in this
//! crate allocates more than a frame says, and a frame never says more than [`MAX_PAYLOAD`].
//!
//! # Layout
//! * [`frame`]: the five bytes and their limits, for blocking and (feature `tokio`) asynchronous streams
//! * [`message`]: requests, replies, events and errors
//! * [`process`], [`file`]: the nouns they speak of
//! * [`id`], [`layer`]: the names that both the engine and the control plane give to sandboxes, volumes and layers

#![forbid(unsafe_code)]

pub mod file;
pub mod frame;
pub mod id;
pub mod layer;
pub mod message;
pub mod process;

pub use frame::{Frame, FrameError, Kind, MAX_PAYLOAD};
pub use id::{InvalidId, InvalidVolumeId, SandboxId, VolumeId};
pub use layer::{InvalidLayerId, LayerId};
pub use message::{Control, Event, Failure, FailureKind, Reply, Request};

/// Rises when a host and a guest of different versions could misunderstand each other. The guest reports it in
/// [`Reply::Pong`]; the host refuses a guest with a higher number than its own.
pub const VERSION: u32 = 1;
