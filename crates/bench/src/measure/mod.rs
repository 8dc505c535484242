//! What `cove bench` and `cove loadtest` share: numbers, the machine they were taken on, and the pages that show them.
//!
//! # Layout
//! * [`summary`]: percentiles of many samples
//! * [`report`]: what a run found, as data; [`terminal`], [`markdown`], [`page`] and [`plot`] are the ways to read it, and [`output`] where they go
//! * [`machine`]: where it was found; [`memory`] and [`processors`]: what is in use there
//! * [`api`]: requests to a server, timed; [`own_server`]: one that lives as long as the run, in an [`own_directory`]
//! * [`interrupt`]: Ctrl-C ends the work, not the cleaning up

pub mod api;
pub mod interrupt;
pub mod machine;
pub mod markdown;
pub mod memory;
pub mod output;
pub mod own_directory;
pub mod own_server;
pub mod page;
pub mod plot;
pub mod processors;
pub mod report;
pub mod summary;
pub mod terminal;
