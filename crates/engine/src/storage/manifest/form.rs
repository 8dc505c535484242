//! A manifest as bytes.
//!
//! ```text
//!   "cove manifest 1\n"
//!   number of layers below, then of each: its name (32 bytes), the digest of its manifest (32 bytes)
//!   names, depth first, in the order in which the filesystem lists them:
//!     kind (a letter) · name · mode · owner · group · seconds · nanoseconds · attributes · what the kind has besides
//!     after a directory all that is in it, then "."
//!   "z" · how many names (8 bytes) · how many bytes of data (8 bytes)
//!   SHA-256 of everything before: the digest of the manifest
//! ```
//! Numbers are LEB128, bytes have their length before them. A reader bounds everything.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};

use super::entry::{Attribute, Entry, Kind, Links};
use super::{Digest, Sealed};
use crate::spec::LayerId;
use crate::storage::sparse::{self, Parts};

const MAGIC: &[u8; 16] = b"cove manifest 1\n";
const LEAVE: u8 = b'.';
const END: u8 = b'z';
/// The end: a letter, two numbers, the digest.
const TAIL: usize = 1 + 8 + 8 + 32;

/// The longest name and the longest target of a link that a reader takes. Linux has shorter ones.
const NAME: u64 = 1 << 16;
/// Names of attributes are in a list of 64 KiB.
const ATTRIBUTES: u64 = 1 << 16;
/// More layers than any stack has.
const LAYERS: u64 = 1 << 16;

/// What a reader finds.
#[derive(Debug)]
pub(super) enum Record {
    /// A directory's own names follow, to its [`Record::Leave`].
    Entry(Entry),
    Leave,
    End,
}

pub(super) fn put_header(to: &mut Vec<u8>, layers: &[(LayerId, Digest)]) {
    to.extend_from_slice(MAGIC);
    put_number(to, layers.len() as u64);
    for (layer, digest) in layers {
        to.extend_from_slice(layer.as_bytes());
        to.extend_from_slice(digest.as_bytes());
    }
}

pub(super) fn put_entry(to: &mut Vec<u8>, entry: &Entry) {
    to.push(match entry.kind {
        Kind::Directory => b'd',
        Kind::File { .. } => b'f',
        Kind::Link { .. } => b'l',
        Kind::Pipe { .. } => b'p',
        Kind::Socket { .. } => b's',
        Kind::Character { .. } => b'c',
        Kind::Block { .. } => b'b',
    });
    put_bytes(to, &entry.name);
    for number in [entry.mode, entry.owner, entry.group] {
        put_number(to, number.into());
    }
    // Small either side of 1970.
    put_number(to, ((entry.modified.0 << 1) ^ (entry.modified.0 >> 63)).cast_unsigned());
    put_number(to, entry.modified.1);
    put_number(to, entry.attributes.len() as u64);
    for attribute in &entry.attributes {
        put_bytes(to, &attribute.name);
        to.extend_from_slice(&attribute.digest);
    }
    match &entry.kind {
        Kind::Directory => {}
        Kind::File { size, links, parts, digest } => {
            put_number(to, *size);
            put_links(to, *links);
            put_parts(to, parts.as_ref());
            to.extend_from_slice(digest);
        }
        Kind::Link { target, links } => {
            put_bytes(to, target);
            put_links(to, *links);
        }
        Kind::Pipe { links } | Kind::Socket { links } => put_links(to, *links),
        Kind::Character { number } | Kind::Block { number } => put_number(to, *number),
    }
}

pub(super) fn put_leave(to: &mut Vec<u8>) {
    to.push(LEAVE);
}

/// Without the digest, which is of all of it.
pub(super) fn put_end(to: &mut Vec<u8>, files: u64, bytes: u64) {
    to.push(END);
    to.extend_from_slice(&files.to_le_bytes());
    to.extend_from_slice(&bytes.to_le_bytes());
}

fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_number(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// A file with one name has a 0.
fn put_links(to: &mut Vec<u8>, links: Option<Links>) {
    put_number(to, links.map_or(0, |links| links.count));
    if let Some(links) = links {
        put_number(to, links.inode);
    }
}

/// A file without holes has a 0, one with holes the number of its parts and 1 more.
fn put_parts(to: &mut Vec<u8>, parts: Option<&Parts>) {
    let Some(parts) = parts else { return put_number(to, 0) };
    put_number(to, parts.len() as u64 + 1);
    let mut end = 0;
    for (offset, length) in parts {
        put_number(to, offset - end);
        put_number(to, *length);
        end = offset + length;
    }
}

/// Whether a manifest is what was written.
pub(super) enum Verified {
    Whole(Sealed),
    /// A clause that follows "the manifest".
    Damaged(&'static str),
}

/// Reads all of it and compares it with the digest at its end.
pub(super) fn verify(manifest: &File) -> io::Result<Verified> {
    let size = manifest.metadata()?.len();
    let Some(end) = size.checked_sub(32).filter(|end| *end >= (MAGIC.len() + TAIL - 32) as u64) else {
        return Ok(Verified::Damaged("is cut off"));
    };
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        manifest.read_exact_at(&mut buffer[..most], at)?;
        digest.update(&buffer[..most]);
        at += most as u64;
    }
    let mut tail = [0; TAIL];
    manifest.read_exact_at(&mut tail, size - TAIL as u64)?;
    let computed: [u8; 32] = digest.finalize().into();
    if computed != tail[17..] || tail[0] != END {
        return Ok(Verified::Damaged("is damaged or cut off: its checksum does not hold"));
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| tail[at + place]));
    Ok(Verified::Whole(Sealed { digest: Digest::new(computed), files: number(1), bytes: number(9) }))
}

/// Reads a manifest from a place in it on. Several can read one file.
pub(super) struct Reader<'a> {
    input: BufReader<At<'a>>,
    read: u64,
}

struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a File, at: u64) -> Reader<'a> {
        Reader { input: BufReader::with_capacity(64 << 10, At { file, at }), read: at }
    }

    /// Where the next record begins.
    pub(super) fn position(&self) -> u64 {
        self.read
    }

    /// What stands before the first name.
    pub(super) fn header(&mut self) -> io::Result<Vec<(LayerId, Digest)>> {
        if self.array::<16>()? != *MAGIC {
            return Err(wrong("it is of another kind or version"));
        }
        let count = self.number_within(LAYERS)?;
        (0..count).map(|_| Ok((LayerId::new(self.array()?), Digest::new(self.array()?)))).collect()
    }

    pub(super) fn record(&mut self) -> io::Result<Record> {
        let letter = self.byte()?;
        match letter {
            LEAVE => return Ok(Record::Leave),
            END => return Ok(Record::End),
            _ => {}
        }
        let name = self.bytes()?;
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".." {
            return Err(wrong("a name that no file has"));
        }
        let small = u64::from(u32::MAX);
        let [mode, owner, group] = [self.number_within(small)?, self.number_within(small)?, self.number_within(small)?];
        let seconds = self.number()?;
        let seconds = (seconds >> 1).cast_signed() ^ -((seconds & 1).cast_signed());
        let modified = (seconds, self.number()?);
        let count = self.number_within(ATTRIBUTES)?;
        let mut attributes = Vec::new();
        for _ in 0..count {
            attributes.push(Attribute { name: self.bytes()?, digest: self.array()? });
        }
        let kind = match letter {
            b'd' => Kind::Directory,
            b'f' => {
                let (size, links) = (self.number()?, self.links()?);
                Kind::File { size, links, parts: self.parts(size)?, digest: self.array()? }
            }
            b'l' => Kind::Link { target: self.bytes()?, links: self.links()? },
            b'p' => Kind::Pipe { links: self.links()? },
            b's' => Kind::Socket { links: self.links()? },
            b'c' => Kind::Character { number: self.number()? },
            b'b' => Kind::Block { number: self.number()? },
            _ => return Err(wrong("a kind of file that there is not")),
        };
        let [mode, owner, group] = [mode, owner, group].map(|number| number as u32);
        Ok(Record::Entry(Entry { name, mode, owner, group, modified, attributes, kind }))
    }

    /// After a directory's record: everything to its end. Returns how many names that were.
    pub(super) fn skip(&mut self) -> io::Result<u64> {
        let (mut depth, mut names) = (1_u64, 0);
        while depth > 0 {
            match self.record()? {
                Record::Entry(entry) => {
                    names += 1;
                    depth += u64::from(entry.kind == Kind::Directory);
                }
                Record::Leave => depth -= 1,
                Record::End => return Err(wrong("it ends inside of a directory")),
            }
        }
        Ok(names)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        self.read += N as u64;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("a number that is too large"))
    }

    fn number_within(&mut self, most: u64) -> io::Result<u64> {
        match self.number()? {
            number if number > most => Err(wrong("a number that is too large")),
            number => Ok(number),
        }
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let length = self.number_within(NAME)? as usize;
        let mut bytes = vec![0; length];
        self.input.read_exact(&mut bytes)?;
        self.read += length as u64;
        Ok(bytes)
    }

    fn links(&mut self) -> io::Result<Option<Links>> {
        match self.number()? {
            0 => Ok(None),
            count => Ok(Some(Links { count, inode: self.number()? })),
        }
    }

    fn parts(&mut self, size: u64) -> io::Result<Option<Parts>> {
        // One more than a list ever has, and one for the 0.
        let Some(count) = self.number_within(sparse::MOST as u64 + 2)?.checked_sub(1) else { return Ok(None) };
        let (mut parts, mut end) = (Parts::new(), 0_u64);
        for _ in 0..count {
            let (gap, length) = (self.number()?, self.number()?);
            let offset = end.checked_add(gap).ok_or_else(|| wrong("a part outside of its file"))?;
            end = offset
                .checked_add(length)
                .filter(|end| *end <= size)
                .ok_or_else(|| wrong("a part outside of its file"))?;
            parts.push((offset, length));
        }
        Ok(Some(parts))
    }

    /// Whether nothing but the digest follows the end.
    pub(super) fn is_over(&mut self) -> io::Result<bool> {
        self.array::<{ TAIL - 1 }>()?;
        Ok(self.input.fill_buf()?.is_empty())
    }
}

pub(super) fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn some() -> Vec<Entry> {
        let entry = |name: &[u8], kind: Kind| Entry {
            name: name.to_vec(),
            mode: 0o4755,
            owner: 0,
            group: 65_534,
            modified: (-1, 999_999_999),
            attributes: vec![Attribute { name: b"user.\xff".to_vec(), digest: [7; 32] }],
            kind,
        };
        let links = Some(Links { count: 3, inode: u64::MAX });
        vec![
            entry(b"root", Kind::Directory),
            entry(b"a\nb\xff", Kind::File { size: 0, links: None, parts: None, digest: [1; 32] }),
            entry(b"h", Kind::File { size: 1 << 40, links, parts: Some(vec![(5, 6), (1 << 39, 9)]), digest: [2; 32] }),
            entry(b"e", Kind::File { size: 9, links: None, parts: Some(Parts::new()), digest: [3; 32] }),
            entry(b"l", Kind::Link { target: b"/etc/\xfe".to_vec(), links }),
            entry(b"p", Kind::Pipe { links: None }),
            entry(b"s", Kind::Socket { links: None }),
            entry(b"w", Kind::Character { number: 0 }),
            entry(b"d", Kind::Block { number: u64::MAX }),
        ]
    }

    fn written(entries: &[Entry]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_header(&mut bytes, &[(LayerId::new([4; 32]), Digest::new([5; 32]))]);
        for entry in entries {
            put_entry(&mut bytes, entry);
        }
        put_leave(&mut bytes);
        put_end(&mut bytes, entries.len() as u64, 42);
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        bytes.extend_from_slice(&digest);
        bytes
    }

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_is_written_is_read_again() {
        let file = file_of(&written(&some()));
        let Verified::Whole(sealed) = verify(&file).unwrap() else { panic!("it is whole") };
        assert_eq!((sealed.files, sealed.bytes), (some().len() as u64, 42));
        let mut reader = Reader::new(&file, 0);
        assert_eq!(reader.header().unwrap(), [(LayerId::new([4; 32]), Digest::new([5; 32]))]);
        let first = reader.position();
        for wanted in some() {
            let Record::Entry(entry) = reader.record().unwrap() else { panic!("{wanted:?}") };
            assert_eq!(entry, wanted);
        }
        assert!(matches!(reader.record().unwrap(), Record::Leave));
        assert!(matches!(reader.record().unwrap(), Record::End));
        assert!(reader.is_over().unwrap());
        let mut again = Reader::new(&file, first);
        assert!(matches!(again.record().unwrap(), Record::Entry(_)), "a reader can begin in the middle");
        assert_eq!(again.skip().unwrap(), some().len() as u64 - 1);
    }

    #[test]
    fn every_byte_that_is_flipped_and_every_cut_is_noticed() {
        let whole = written(&some());
        for place in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[place] ^= 0x10;
            assert!(matches!(verify(&file_of(&flipped)).unwrap(), Verified::Damaged(_)), "byte {place}");
        }
        for length in [0, 1, 20, 64, whole.len() / 2, whole.len() - 33, whole.len() - 1] {
            assert!(matches!(verify(&file_of(&whole[..length])).unwrap(), Verified::Damaged(_)), "cut at {length}");
        }
    }

    #[test]
    fn a_reader_takes_nothing_that_is_out_of_bounds() {
        let mut long = Vec::new();
        put_header(&mut long, &[]);
        long.push(b'f');
        put_number(&mut long, u64::MAX);
        let mut slash = Vec::new();
        put_header(&mut slash, &[]);
        slash.push(b'f');
        put_bytes(&mut slash, b"../etc");
        for bytes in [long, slash] {
            let file = file_of(&bytes);
            let mut reader = Reader::new(&file, 0);
            reader.header().unwrap();
            assert_eq!(reader.record().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
