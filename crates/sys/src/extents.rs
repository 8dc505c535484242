//! Where a file's bytes lie on its filesystem, by `FS_IOC_FIEMAP`: two files that lie in the same places are one.
//!
//! Numbers and structures are those of the kernel's `include/uapi/linux/fiemap.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

const FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
/// Writes out what waits to be written, so that it has a place.
const SYNC: u32 = 1;

/// The last of the file.
const LAST: u32 = 0x1;
/// Its place is not known, not chosen yet, or holds it in another form (compressed).
const NO_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x200 | 0x400;
const SHARED: u32 = 0x2000;

const AT_ONCE: usize = 128;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; AT_ONCE],
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub logical: u64,
    pub physical: u64,
    pub length: u64,
}

/// The places of a file of which at least one piece is shared with another file. `None` where nothing is shared, where a
/// piece has no place of its own, where there are more than `most` pieces, and where the filesystem does not tell.
pub fn shared(file: impl AsFd, most: usize) -> io::Result<Option<Vec<Extent>>> {
    let (mut all, mut is_shared, mut start) = (Vec::new(), false, 0);
    loop {
        let mut map = Map {
            start,
            length: u64::MAX - start,
            flags: SYNC,
            mapped: 0,
            count: AT_ONCE as u32,
            reserved: 0,
            extents: [RawExtent::default(); AT_ONCE],
        };
        // SAFETY: FS_IOC_FIEMAP reads the head of `Map` and writes at most `count` extents behind it, which is how many there
        // are; `map` outlives the call.
        let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FIEMAP, std::ptr::from_mut(&mut map)) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY) => Ok(None),
                _ => Err(error),
            };
        }
        let found = &map.extents[..AT_ONCE.min(map.mapped as usize)];
        if found.iter().any(|extent| extent.flags & NO_PLACE != 0) || all.len() + found.len() > most {
            return Ok(None);
        }
        is_shared |= found.iter().any(|extent| extent.flags & SHARED != 0);
        all.extend(found.iter().map(|raw| Extent { logical: raw.logical, physical: raw.physical, length: raw.length }));
        match found.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.length,
            _ => return Ok(is_shared.then_some(all)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(size_of::<Map>(), 32 + 56 * AT_ONCE);
    }

    #[test]
    fn a_file_of_its_own_shares_nothing() {
        let own = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(shared(&own, 1 << 20).unwrap(), None);
        let proc = std::fs::File::open("/proc/self/status").unwrap();
        assert_eq!(shared(&proc, 1 << 20).unwrap(), None);
    }
}
