//! One header block.

use super::sparse::Parts;
use super::{BLOCK, Kind};

/// What a block says, before records change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Type,
    pub mode: u32,
    pub user: u64,
    pub group: u64,
    pub size: u64,
    pub modified: i64,
    /// Before POSIX, a directory was a file with a slash at its end.
    pub is_old: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Entry(Kind),
    /// GNU's own form of a file with holes: the map is in the header.
    Sparse,
    /// pax records for the next entry, and for all that follow.
    Extended,
    Global,
    /// GNU: the next entry's name, and what it links to.
    LongName,
    LongLink,
}

/// Where the fields are: offset and length.
type Field = (usize, usize);
const NAME: Field = (0, 100);
const MODE: Field = (100, 8);
const USER: Field = (108, 8);
const GROUP: Field = (116, 8);
const SIZE: Field = (124, 12);
const MODIFIED: Field = (136, 12);
const CHECKSUM: Field = (148, 8);
const TYPE: usize = 156;
const LINK: Field = (157, 100);
const MAGIC: Field = (257, 8);
const MAJOR: Field = (329, 8);
const MINOR: Field = (337, 8);
const PREFIX: Field = (345, 155);
/// GNU: four parts of a file with holes, whether a block with more follows, how large the file is.
const SPARSE_MAP: usize = 386;
const SPARSE_MORE: usize = 482;
const SPARSE_SIZE: Field = (483, 12);
const SPARSE_PARTS: usize = 4;
/// A block with more of them.
const MORE_PARTS: usize = 21;
const MORE_MORE: usize = 504;

pub(super) fn is_zero(block: &[u8; BLOCK]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Reads a block that is not all zeros.
pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Header, &'static str> {
    let said = number(field(block, CHECKSUM)).ok_or("a header has a checksum that is no number")?;
    let (sum, signed) = checksums(block);
    // Some old programs added signed bytes.
    if i64::try_from(said).ok() != Some(sum) && i64::try_from(said).ok() != Some(signed) {
        return Err("a header has a wrong checksum: it is no tar, or damaged");
    }
    let mut path = text(field(block, NAME)).to_vec();
    // Only POSIX has the prefix; GNU keeps other things there.
    if field(block, MAGIC).starts_with(b"ustar\0") {
        let prefix = text(field(block, PREFIX));
        if !prefix.is_empty() {
            path = [prefix, b"/", &path].concat();
        }
    }
    let kind = match block[TYPE] {
        b'0' | 0 | b'7' => Type::Entry(Kind::File),
        b'1' => Type::Entry(Kind::HardLink),
        b'2' => Type::Entry(Kind::Symlink),
        b'3' => Type::Entry(Kind::CharacterDevice),
        b'4' => Type::Entry(Kind::BlockDevice),
        b'5' => Type::Entry(Kind::Directory),
        b'6' => Type::Entry(Kind::Fifo),
        b'S' => Type::Sparse,
        b'x' => Type::Extended,
        b'g' => Type::Global,
        b'L' => Type::LongName,
        b'K' => Type::LongLink,
        other => Type::Entry(Kind::Other(other)),
    };
    Ok(Header {
        path,
        link: text(field(block, LINK)).to_vec(),
        kind,
        mode: (number(field(block, MODE)).ok_or("a header has a mode that is no number")? & 0o7777) as u32,
        // An owner that is no number is nobody's: the unpacker maps what is too large.
        user: number(field(block, USER)).unwrap_or(u64::MAX),
        group: number(field(block, GROUP)).unwrap_or(u64::MAX),
        size: number(field(block, SIZE)).ok_or("a header has a size that is no number")?,
        modified: signed_number(field(block, MODIFIED)),
        is_old: block[TYPE] == 0,
    })
}

/// The parts of GNU's own form, the file's size, and whether a block with more parts follows.
pub(super) fn sparse(block: &[u8; BLOCK]) -> Option<(Parts, u64, bool)> {
    let parts = parts(block.get(SPARSE_MAP..)?, SPARSE_PARTS)?;
    Some((parts, number(field(block, SPARSE_SIZE))?, block[SPARSE_MORE] != 0))
}

/// The parts in a block after the header, and whether another follows.
pub(super) fn more_sparse(block: &[u8; BLOCK]) -> Option<(Parts, bool)> {
    Some((parts(block, MORE_PARTS)?, block[MORE_MORE] != 0))
}

fn parts(bytes: &[u8], count: usize) -> Option<Parts> {
    let mut parts = Parts::new();
    for part in bytes.chunks_exact(24).take(count) {
        let (offset, length) = part.split_at(12);
        if offset.first() == Some(&0) || length.first() == Some(&0) {
            break;
        }
        parts.push((number(offset)?, number(length)?));
    }
    Some(parts)
}

/// As a block. What does not fit is cut: the records before it have the whole.
pub(super) fn encode(header: &Header, letter: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    put(&mut block, NAME, &header.path);
    put(&mut block, MODE, octal(u64::from(header.mode & 0o7777), 7).as_bytes());
    put(&mut block, USER, octal(header.user, 7).as_bytes());
    put(&mut block, GROUP, octal(header.group, 7).as_bytes());
    put(&mut block, SIZE, octal(header.size, 11).as_bytes());
    put(&mut block, MODIFIED, octal(u64::try_from(header.modified).unwrap_or(0), 11).as_bytes());
    block[TYPE] = letter;
    put(&mut block, LINK, &header.link);
    put(&mut block, MAGIC, b"ustar\x0000");
    put(&mut block, MAJOR, octal(0, 7).as_bytes());
    put(&mut block, MINOR, octal(0, 7).as_bytes());
    let (sum, _) = checksums(&block);
    put(&mut block, CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Whether a number fits into so many octal digits.
pub(super) fn fits(value: u64, digits: u32) -> bool {
    value < 1 << (3 * digits)
}

/// Names longer than this need a record.
pub(super) const LONGEST_NAME: usize = NAME.1;

fn field(block: &[u8], (offset, length): Field) -> &[u8] {
    block.get(offset..offset + length).unwrap_or_default()
}

fn put(block: &mut [u8; BLOCK], (offset, length): Field, value: &[u8]) {
    let value = value.get(..length).unwrap_or(value);
    if let Some(place) = block.get_mut(offset..offset + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Up to the first zero byte.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal, or GNU's base 256 for what is too large; an empty field is 0. Negative numbers are none.
fn number(field: &[u8]) -> Option<u64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        if first & 0x40 != 0 {
            return None;
        }
        let rest = field.get(1..)?;
        return rest
            .iter()
            .try_fold(u64::from(first & 0x3f), |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)));
    }
    let digits = std::str::from_utf8(text(field)).ok()?.trim_matches(' ');
    match digits {
        "" => Some(0),
        _ if !digits.bytes().all(|digit| digit.is_ascii_digit()) => None,
        _ => u64::from_str_radix(digits, 8).ok(),
    }
}

/// Times before 1970 are negative in base 256. What is no number is 1970.
fn signed_number(field: &[u8]) -> i64 {
    let is_negative = field.first().is_some_and(|first| first & 0xc0 == 0xc0);
    if !is_negative {
        return number(field).and_then(|number| i64::try_from(number).ok()).unwrap_or(0);
    }
    field.iter().skip(1).try_fold(-1_i64, |sum, byte| sum.checked_mul(256)?.checked_add(i64::from(*byte))).unwrap_or(0)
}

fn octal(value: u64, digits: u32) -> String {
    let value = if fits(value, digits) { value } else { 0 };
    let width = digits as usize;
    format!("{value:0width$o}")
}

/// The sum of all bytes, the checksum's own taken as spaces: as unsigned and as signed bytes.
fn checksums(block: &[u8; BLOCK]) -> (i64, i64) {
    let own = CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1;
    block.iter().enumerate().fold((0, 0), |(sum, signed), (at, byte)| {
        let byte = if own.contains(&at) { b' ' } else { *byte };
        (sum + i64::from(byte), signed + i64::from(byte.cast_signed()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000648\0"), None);
        assert_eq!(number(b"+000644\0"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\x02\0\0\0"), Some(2 << 24));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff"), None, "negative");
        assert_eq!(number(b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None, "too large");
        assert_eq!(signed_number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"), -2);
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let header = Header {
            path: b"a/b".to_vec(),
            link: b"c".to_vec(),
            kind: Type::Entry(Kind::Symlink),
            mode: 0o4755,
            user: 1000,
            group: 100,
            size: 77,
            modified: 1_700_000_000,
            is_old: false,
        };
        assert_eq!(parse(&encode(&header, b'2')), Ok(header));
    }

    proptest! {
        #[test]
        fn any_block_gives_a_header_or_a_reason(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
            let mut block: [u8; BLOCK] = bytes.try_into().unwrap();
            let _ = parse(&block);
            let (sum, _) = checksums(&block);
            put(&mut block, CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
            let _ = parse(&block);
            let _ = sparse(&block);
            let _ = more_sparse(&block);
        }
    }
}
