//! One header block, read and written.

use super::BLOCK;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    /// pax records for the next entry, and for all.
    Extended,
    Global,
    /// GNU: the next entry's name, and its link's.
    LongName,
    LongLink,
    Other(u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Type,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    pub modified: i64,
}

/// Where the fields are: offset and length.
const NAME: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const UID: (usize, usize) = (108, 8);
const GID: (usize, usize) = (116, 8);
const SIZE: (usize, usize) = (124, 12);
const MTIME: (usize, usize) = (136, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const TYPE: usize = 156;
const LINK: (usize, usize) = (157, 100);
const MAGIC: (usize, usize) = (257, 8);
const PREFIX: (usize, usize) = (345, 155);

/// Reads a block that is not all zeros.
pub fn parse(block: &[u8; BLOCK]) -> Result<Header, &'static str> {
    let told = number(field(block, CHECKSUM)).ok_or("a checksum that is no number")?;
    if told != checksum(block) {
        return Err("a wrong checksum");
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
        b'0' | 0 | b'7' => Type::File,
        b'1' => Type::HardLink,
        b'2' => Type::Symlink,
        b'5' => Type::Directory,
        b'6' => Type::Fifo,
        b'x' => Type::Extended,
        b'g' => Type::Global,
        b'L' => Type::LongName,
        b'K' => Type::LongLink,
        other => Type::Other(other),
    };
    Ok(Header {
        path,
        link: text(field(block, LINK)).to_vec(),
        kind,
        mode: u32::try_from(number(field(block, MODE)).unwrap_or(0o644) & 0o7777).unwrap_or(0o644),
        uid: number(field(block, UID)).unwrap_or(0),
        gid: number(field(block, GID)).unwrap_or(0),
        size: number(field(block, SIZE)).ok_or("a size that is no number")?,
        modified: i64::try_from(number(field(block, MTIME)).unwrap_or(0)).unwrap_or(0),
    })
}

/// The header's blocks: pax records first where something does not fit.
pub fn encode(header: &Header) -> Vec<u8> {
    let mut records = Vec::new();
    let mut record = |key: &str, value: &[u8]| {
        records.extend_from_slice(&pax(key, value));
    };
    if header.path.len() > NAME.1 || !header.path.is_ascii() {
        record("path", &header.path);
    }
    if header.link.len() > LINK.1 || !header.link.is_ascii() {
        record("linkpath", &header.link);
    }
    for (key, value, digits) in [("size", header.size, 11), ("uid", header.uid, 7), ("gid", header.gid, 7)] {
        if value >= 1 << (3 * digits) {
            record(key, value.to_string().as_bytes());
        }
    }
    if header.modified < 0 {
        record("mtime", header.modified.to_string().as_bytes());
    }
    let mut blocks = Vec::new();
    if !records.is_empty() {
        let about = Header {
            path: b"pax".to_vec(),
            link: Vec::new(),
            kind: Type::Extended,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: records.len() as u64,
            modified: 0,
        };
        blocks.extend_from_slice(&block(&about));
        blocks.extend_from_slice(&records);
        blocks.resize(blocks.len().next_multiple_of(BLOCK), 0);
    }
    blocks.extend_from_slice(&block(header));
    blocks
}

fn block(header: &Header) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    put(&mut block, NAME, &header.path);
    put(&mut block, MODE, format!("{:07o}", header.mode & 0o7777).as_bytes());
    put(&mut block, UID, octal(header.uid, 7).as_bytes());
    put(&mut block, GID, octal(header.gid, 7).as_bytes());
    put(&mut block, SIZE, octal(header.size, 11).as_bytes());
    put(&mut block, MTIME, octal(u64::try_from(header.modified).unwrap_or(0), 11).as_bytes());
    block[TYPE] = match header.kind {
        Type::File => b'0',
        Type::HardLink => b'1',
        Type::Symlink => b'2',
        Type::Directory => b'5',
        Type::Fifo => b'6',
        Type::Extended => b'x',
        Type::Global => b'g',
        Type::LongName => b'L',
        Type::LongLink => b'K',
        Type::Other(other) => other,
    };
    put(&mut block, LINK, &header.link);
    put(&mut block, MAGIC, b"ustar\x0000");
    let sum = checksum(&block);
    put(&mut block, CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A pax record: its own length in decimal, counted with itself.
fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + rest.to_string().len();
    length = rest + length.to_string().len();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// The records of a pax block; `None` where they are none.
pub fn records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(bytes.get(..space)?).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        found.push((record.get(..equals)?, record.get(equals + 1..)?));
        bytes = bytes.get(length..)?;
    }
    Some(found)
}

fn field(block: &[u8; BLOCK], (offset, length): (usize, usize)) -> &[u8] {
    block.get(offset..offset + length).unwrap_or_default()
}

fn put(block: &mut [u8; BLOCK], (offset, length): (usize, usize), value: &[u8]) {
    let value = value.get(..length).unwrap_or(value);
    if let Some(place) = block.get_mut(offset..offset + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Up to the first zero byte.
pub fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal, or GNU's base 256 for what is too large; an empty field is 0.
fn number(field: &[u8]) -> Option<u64> {
    if field.first().is_some_and(|byte| byte & 0x80 != 0) {
        let mut bytes = field.iter();
        let first = u64::from(bytes.next()? & 0x7f);
        return bytes.try_fold(first, |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)));
    }
    let digits = std::str::from_utf8(text(field)).ok()?.trim();
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn octal(value: u64, digits: usize) -> String {
    // What does not fit is in a pax record.
    let value = if value >= 1 << (3 * digits) { 0 } else { value };
    format!("{value:0digits$o}")
}

/// The sum of all bytes, the checksum's own taken as spaces.
fn checksum(block: &[u8; BLOCK]) -> u64 {
    let own = CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1;
    block.iter().enumerate().map(|(at, byte)| u64::from(if own.contains(&at) { b' ' } else { *byte })).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(path: &[u8], size: u64) -> Header {
        Header {
            path: path.to_vec(),
            link: b"target".to_vec(),
            kind: Type::Symlink,
            mode: 0o4755,
            uid: 1000,
            gid: 100,
            size,
            modified: 1_700_000_000,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let blocks = encode(&header(b"a/b", 77));
        assert_eq!(blocks.len(), BLOCK);
        assert_eq!(parse(blocks.as_slice().try_into().unwrap()), Ok(header(b"a/b", 77)));
    }

    #[test]
    fn what_does_not_fit_goes_into_records() {
        let long = vec![b'x'; 1000];
        let blocks = encode(&header(&long, 1 << 40));
        let about = parse(blocks[..BLOCK].try_into().unwrap()).unwrap();
        assert_eq!(about.kind, Type::Extended);
        let found = records(&blocks[BLOCK..BLOCK + about.size as usize]).unwrap();
        assert_eq!(found, [(&b"path"[..], long.as_slice()), (&b"size"[..], &b"1099511627776"[..])]);
    }

    proptest! {
        #[test]
        fn any_block_gives_a_header_or_a_reason(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
            let mut block: [u8; BLOCK] = bytes.try_into().unwrap();
            let _ = parse(&block);
            let sum = checksum(&block);
            put(&mut block, CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
            let _ = parse(&block);
        }

        #[test]
        fn any_records_give_pairs_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = records(&bytes);
        }

        #[test]
        fn records_count_themselves(value in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let record = pax("path", &value);
            prop_assert_eq!(records(&record), Some(vec![(&b"path"[..], value.as_slice())]));
        }
    }
}
