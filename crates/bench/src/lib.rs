//! How fast, how small and how sturdy sandboxes are, measured by the program that people install.
//!
//! ```text
//!   cove bench ────▶ bench/      the same work by us and by others, in turns ─┐
//!   cove loadtest ─▶ loadtest/   many users of one server at once ────────────┴─▶ measure/  a report: tables, JSON, a page
//! ```
//!
//! The `cove` program links this and gives it its verbs. A measurement starts that program again: as a server, as an
//! engine of its own ([`bench::ENGINE`]), and to remove files of ids that it does not have itself
//! ([`measure::own_directory::REMOVE`]). Nothing here is linked by the server.
//!
//! # Layout
//! * [`bench`]: `cove bench`; [`loadtest`]: `cove loadtest`
//! * [`measure`]: what both share, and `cove redteam` with them

#![forbid(unsafe_code)]

pub mod bench;
pub mod loadtest;
pub mod measure;
