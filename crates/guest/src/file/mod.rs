//! Files, with the rights of the user that is asked for.
//!
//! A connection's thread serves one operation and ends, so it takes on the user's filesystem identity for good
//! ([`actor`]). Paths are resolved once, by the kernel, to a directory that is held open and a name in it ([`place`]);
//! what follows works on that directory. A symlink that is exchanged meanwhile leads nowhere.

pub mod actor;
pub mod attributes;
pub mod entry;
pub mod list;
pub mod make_directory;
pub mod metadata;
pub mod place;
pub mod read;
pub mod walk;
pub mod write;
