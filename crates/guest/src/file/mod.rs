//! Files, with the rights of the user that is asked for.
//!
//! A connection's thread serves one operation and ends, so it takes on the user's filesystem identity for good
//! ([`actor`]). Paths are resolved once, by the kernel, to a directory that is held open and a name in it ([`place`]);
//! what follows works on that directory. A symlink that is exchanged meanwhile leads nowhere.

pub mod actor;
pub mod attributes;
mod beneath;
pub mod entry;
pub mod find;
mod glob;
pub mod grep;
pub mod list;
pub mod make_directory;
pub mod metadata;
pub mod place;
pub mod read;
pub mod remove;
pub mod rename;
pub mod replace;
pub mod tar;
mod walk;
pub mod watch;
pub mod write;
