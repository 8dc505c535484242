//! Tar archives, in and out, as a stream.
//!
//! Written by hand: an archive that comes in is hostile, and all it may do is decided here. What goes out is POSIX
//! ustar with pax records where a value does not fit; what comes in may also use GNU's long names.

pub mod header;
pub mod pack;
pub mod unpack;

/// Everything in an archive comes in blocks of this size.
const BLOCK: usize = 512;
