//! The parts of a file that are no holes, few enough to be written down.
//!
//! A file can have more holes than any list should have entries. Then the smallest of them are taken for data: they are
//! zeros in the archive, which cost nothing there, and holes again when they come back.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom as Start};
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// As many parts as a list has at most: its text has at most 42 bytes each, see `import::METADATA`.
pub(super) const MOST: usize = 1 << 18;

/// Offset and length of each part, in order, with gaps between them.
pub(super) type Parts = Vec<(u64, u64)>;

/// The parts of a file of this size. A filesystem that knows no holes has one part.
pub(super) fn parts(file: impl AsFd, size: u64) -> io::Result<Parts> {
    let (mut parts, mut gap, mut at) = (Parts::new(), 0, 0);
    while at < size {
        let begin = match seek(&file, SeekFrom::Data(at)) {
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(vec![(0, size)]),
            other => other?,
        };
        if begin >= size {
            break;
        }
        let end = seek(&file, SeekFrom::Hole(begin))?.clamp(begin + 1, size);
        add(&mut parts, (begin, end - begin), gap);
        if parts.len() > MOST {
            gap = narrow(&mut parts, gap);
        }
        at = end;
    }
    Ok(parts)
}

/// Joins the last part where the gap between them is no larger than this.
fn add(parts: &mut Parts, part: (u64, u64), gap: u64) {
    match parts.last_mut() {
        Some((offset, length)) if part.0 - (*offset + *length) <= gap => *length = part.0 + part.1 - *offset,
        _ => parts.push(part),
    }
}

/// Fills the smallest gaps until half the list is free again. Returns how large a gap is filled from now on.
fn narrow(parts: &mut Parts, gap: u64) -> u64 {
    let mut gap = gap.max(2048);
    while parts.len() > MOST / 2 {
        gap = gap.saturating_mul(2);
        let all = std::mem::take(parts);
        for part in all {
            add(parts, part, gap);
        }
    }
    gap
}

pub(super) fn total(parts: &Parts) -> u64 {
    parts.iter().map(|(_, length)| length).sum()
}

/// As GNU tar writes them: `offset,length,offset,length,…`.
pub(super) fn to_text(parts: &Parts) -> String {
    parts.iter().map(|(offset, length)| format!("{offset},{length}")).collect::<Vec<_>>().join(",")
}

/// And back. `None` where it is no list of parts in order within a file of this size.
pub(super) fn from_text(text: &str, size: u64) -> Option<Parts> {
    let mut parts = Parts::new();
    let mut numbers = text.split(',').filter(|number| !number.is_empty()).map(str::parse::<u64>);
    let mut end = 0;
    while let Some(offset) = numbers.next() {
        let (offset, length) = (offset.ok()?, numbers.next()?.ok()?);
        let next = offset.checked_add(length)?;
        if offset < end || next > size || parts.len() >= MOST {
            return None;
        }
        end = next;
        parts.push((offset, length));
    }
    Some(parts)
}

/// The parts of a file one behind the other. A file that became shorter reads as zeros.
pub(super) struct Reader<'a> {
    file: &'a File,
    parts: std::slice::Iter<'a, (u64, u64)>,
    left: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a File, parts: &'a Parts) -> Self {
        Reader { file, parts: parts.iter(), left: 0 }
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let Some((offset, length)) = self.parts.next() else { return Ok(0) };
            self.file.seek(Start::Start(*offset))?;
            self.left = *length;
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = match self.file.read(&mut buffer[..most])? {
            0 => {
                buffer[..most].fill(0);
                most
            }
            count => count,
        };
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_its_text_and_a_wrong_one_does_not() {
        let list = vec![(0, 10), (4096, 1), (8192, 4096)];
        assert_eq!(from_text(&to_text(&list), 12_288), Some(list.clone()));
        assert_eq!(from_text("", 5), Some(Vec::new()));
        for wrong in ["1", "5,1,4,1", "0,20000", "a,b", "18446744073709551615,2"] {
            assert_eq!(from_text(wrong, 12_288), None, "{wrong}");
        }
    }

    #[test]
    fn more_holes_than_a_list_has_room_for_are_filled_smallest_first() {
        let mut list: Parts = (0..2 * MOST as u64).map(|number| (number * 8192, 4096)).collect();
        list.push((1 << 40, 1));
        let gap = narrow(&mut list, 0);
        assert!(list.len() <= MOST / 2 && gap >= 4096);
        assert_eq!(list.last(), Some(&(1 << 40, 1)), "the large hole stays");
    }
}
