//! The control plane as a library: it decides when sandboxes live, remembers why, and speaks several dialects of API.
//!
//! ```text
//!   door/*  ──▶  App  ──▶  sandbox::state (pure)  ──▶  store (written first)  ──▶  provider (the effect)
//!                 │                                                                     │
//!                 └── key · template · event · job · usage · session                    └── guest (what runs inside)
//! ```
//!
//! # Layout
//! * [`app`]: the one handle that every door holds
//! * [`sandbox`]: the noun at the centre: its states, lifecycle, timers and reconcile
//! * [`store`]: one SQL for SQLite and PostgreSQL
//! * [`provider`]: where sandboxes run; [`guest`]: talking to the daemon inside
//! * [`interpreter`]: code that keeps its variables between calls
//! * [`recipe`]: templates as data, built by the server like any other
//! * [`border`]: how large anything may be that comes in
//! * [`right`]: streams end with what opened them
//! * [`door`]: the API dialects; [`serve`]: the sockets they listen on
//!
//! The domain knows no HTTP: only `door` and `serve` do.

#![forbid(unsafe_code)]

pub mod activity;
pub mod app;
pub mod archive;
pub mod audit;
pub mod border;
pub mod build;
pub mod capacity;
pub mod check;
pub mod clock;
pub mod config;
mod confine;
mod connection;
pub mod door;
pub mod error;
pub mod event;
pub mod git;
pub mod guest;
pub mod health;
mod heavy;
mod identity;
pub mod image;
pub mod interpreter;
pub mod job;
pub mod key;
pub mod ledger;
mod lines;
pub mod lock;
mod nearest;
mod neighbourhood;
mod noted;
pub mod peer;
pub mod pool;
pub mod provider;
pub mod push;
pub mod random;
pub mod rate;
pub mod recipe;
mod retention;
pub mod right;
pub mod sandbox;
mod secret;
pub mod serve;
pub mod session;
mod shares;
pub mod snapshot;
pub mod store;
pub mod template;
pub mod tls;
pub mod trace;
mod traffic;
pub mod upkeep;
pub mod usage;
pub mod volume;
pub mod webhook;

pub use app::App;
pub use error::Error;
pub use key::{Caller, Scope};
