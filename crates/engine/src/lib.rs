//! Isolation on Linux. Synchronous, no HTTP, no database.
//!
//! # Layout
//! From the outside in:
//! * [`engine`]: sandboxes by id; launch, stop, destroy, find again
//! * [`spec`]: what a sandbox shall be; [`state`]: what is told of it
//! * `birth`: what a launch needs, opened in the host's namespaces
//! * [`spawner`]: the small processes that clone, and what is said to them
//! * `launch`: the order of containment, in one screen
//! * [`privilege`]: root of the host, or an ordinary user in a user namespace; [`hold`]: which limits hold then
//! * one file per kernel facility: `root`, `user_namespace`, `fence`, `capability`, `seccomp`, `limits`, `settings`, [`cgroup`], [`network`],
//!   [`storage`] (uppers, layers, volumes)
//! * [`kernel`]: what its release tells
//! * `pool`, `reaper`: what is made before a launch and cleared away after its end

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod doctor;
pub mod engine;
pub mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod hold;
pub mod kernel;
pub mod network;
pub mod privilege;
pub mod refused;
mod registry;
pub mod spawner;
pub mod spec;
pub mod state;
mod stills;
pub mod storage;

mod base;
mod birth;
mod capability;
mod cradle;
mod fence;
mod guest_line;
mod guest_program;
mod halt;
mod house;
mod launch;
mod life;
mod limits;
mod lock_watch;
mod memory_info;
mod pool;
mod process;
mod processor_time;
mod reaper;
mod record;
mod root;
mod seccomp;
mod settings;
mod share;
mod shelves;
mod socket_watch;
mod turns;
mod upkeep;
mod user_namespace;

pub use engine::{Config, Departure, Engine, Spawning};
pub use error::Error;
pub use guest_program::bytes as guest_program;
pub use hold::{Limit, Unheld};
pub use seccomp::confine_to_text;
pub use spawner::main as spawner_main;
pub use spec::{LayerId, SandboxId, Spec, VolumeId};
pub use state::{Aside, Ended, Found, Running, Usage};
