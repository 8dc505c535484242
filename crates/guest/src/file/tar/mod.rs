//! Tar archives, in and out, as a stream.
//!
//! Written by hand: an incoming archive is hostile, and this code decides everything that it may do. Outgoing archives
//! are POSIX ustar with pax records where a value does not fit; incoming ones may also use GNU's long names.

pub mod header;
pub mod pack;
pub mod unpack;

/// Everything in an archive comes in blocks of this size.
const BLOCK: usize = 512;
