//! The tools of this workspace's tests; never ships.
//!
//! Tests here are stories about the real program: a real server on a port of its own, a real pseudo-terminal, real
//! sandboxes. The kit hides the setup, limits every wait, and fails a test that leaves something behind.
//!
//! # Layout
//! * [`program`]: the `cove` program, run to its end within a time limit
//! * [`terminal`]: the same, in a pseudo-terminal that a test can type into and read
//! * [`server`]: `cove serve` in a directory of its own, which a test can kill and start again
//! * [`ordinary`]: a user without root
//! * [`http`]: requests to a server, without a client library
//! * [`guests`]: which sandboxes really run, as the kernel reports it
//! * [`reboot`]: what a restart of the host does
//! * [`random`]: randomness that can be repeated
//! * [`leak`]: what a data directory's sandboxes left on the host
//! * [`postgres`]: a database that servers share; [`dockerd`]: a Docker daemon
//! * [`receiver`]: receives webhooks
//! * [`need`]: what a test needs of the machine; a test that cannot run fails or is counted as skipped
//! * [`wait`]: conditions that must come true in time

#![forbid(unsafe_code)]

pub mod disk;
pub mod dockerd;
pub mod guests;
pub mod http;
pub mod leak;
pub mod need;
pub mod ordinary;
pub mod postgres;
pub mod program;
pub mod random;
pub mod reboot;
pub mod receiver;
pub mod server;
pub mod terminal;
pub mod wait;

pub use leak::LeakCheck;
pub use need::{Need, skip};
pub use program::{Cove, Finished};
pub use random::Random;
pub use server::TestServer;
pub use terminal::Terminal;
