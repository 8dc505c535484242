//! What the tests of this workspace stand on; never ships.
//!
//! Tests here are stories about the real program: a real server on a port of its own, a real pseudo-terminal, real
//! sandboxes. The kit hides how that is set up, puts a limit on every wait, and fails a test that leaves something
//! behind.
//!
//! # Layout
//! * [`program`]: the `cove` program, run to its end within a time limit
//! * [`terminal`]: the same, in a pseudo-terminal that a test can type into and look at
//! * [`server`]: `cove serve` in a directory of its own, killed and started again at will
//! * [`ordinary`]: somebody without root
//! * [`http`]: requests to it, without a client library
//! * [`guests`]: which sandboxes really run, as the kernel tells it
//! * [`reboot`]: what a restart of the host does
//! * [`random`]: randomness that can be had again
//! * [`leak`]: what a data directory's sandboxes left on the host
//! * [`postgres`]: a database that servers share
//! * [`receiver`]: where webhooks go
//! * [`need`]: what a test needs of the machine; a test that cannot run fails or is counted as skipped
//! * [`wait`]: conditions that must come true in time

#![forbid(unsafe_code)]

pub mod disk;
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
