//! Tar as images use it: ustar, GNU and pax headers, holes, extended attributes; read and written.
//!
//! Why not a library: the attributes of a layer are binary, and a reader that splits pax records at line breaks loses the
//! capability with byte 0x0a, and with it the records behind it, the size among them. Here a record is as long as it
//! says, an entry's records have a bound, and an entry means what it means to the programs that write layers (Go's
//! `archive/tar`): the last record wins, links and directories have no data, whatever their size says.

mod header;
mod pax;
mod read;
mod sparse;
mod write;

pub use read::{Error, Reader};
pub use sparse::Parts;
pub(crate) use write::Writer;

pub(crate) const BLOCK: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    CharacterDevice,
    BlockDevice,
    Other(u8),
}

impl Kind {
    /// Nothing follows its header, whatever that says.
    fn has_no_data(self) -> bool {
        !matches!(self, Kind::File | Kind::Other(_))
    }
}

/// Seconds since 1970 and the nanoseconds after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// One entry, with everything its records said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub user: u64,
    pub group: u64,
    /// Of the file, holes included.
    pub size: u64,
    pub modified: Time,
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Where the data that follows belongs, if the file has holes.
    pub parts: Option<sparse::Parts>,
}
