//! Entries into a stream. What does not fit into a header goes into pax records before it.

use std::io::{self, Read, Write};

use super::header::{self, Header, Type};
use super::{BLOCK, Entry, Kind, pax};

pub(crate) struct Writer<W: Write> {
    inner: W,
}

impl<W: Write> Writer<W> {
    pub fn new(inner: W) -> Self {
        Writer { inner }
    }

    /// Writes an entry and its data. A source that ends early is filled with zeros, a longer one is cut: the header is
    /// already written, and the file may change while it is read.
    pub fn append(&mut self, entry: &Entry, data: impl Read) -> io::Result<()> {
        let size = if entry.kind.has_no_data() { 0 } else { entry.size };
        let records = records(entry, size);
        if !records.is_empty() {
            let about = Header {
                path: b"pax".to_vec(),
                link: Vec::new(),
                kind: Type::Extended,
                mode: 0o644,
                user: 0,
                group: 0,
                size: records.len() as u64,
                modified: 0,
                is_old: false,
            };
            self.inner.write_all(&header::encode(&about, b'x'))?;
            self.inner.write_all(&records)?;
            self.fill(records.len() as u64)?;
        }
        let header = Header {
            path: entry.path.clone(),
            link: entry.link.clone(),
            kind: Type::Entry(entry.kind),
            mode: entry.mode,
            user: entry.user,
            group: entry.group,
            size,
            modified: entry.modified.seconds,
            is_old: false,
        };
        self.inner.write_all(&header::encode(&header, letter(entry.kind)))?;
        let written = io::copy(&mut data.take(size), &mut self.inner)?;
        io::copy(&mut io::repeat(0).take(size - written), &mut self.inner)?;
        self.fill(size)
    }

    /// The end of the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.inner.write_all(&[0; 2 * BLOCK])?;
        self.inner.flush()?;
        Ok(self.inner)
    }

    /// Zeros up to the next block.
    fn fill(&mut self, size: u64) -> io::Result<()> {
        let rest = size.next_multiple_of(BLOCK as u64) - size;
        io::copy(&mut io::repeat(0).take(rest), &mut self.inner).map(|_| ())
    }
}

fn records(entry: &Entry, size: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for (key, name) in [("path", &entry.path), ("linkpath", &entry.link)] {
        if name.len() > header::LONGEST_NAME || !name.is_ascii() {
            all.extend(pax::record(key, name));
        }
    }
    for (key, value, digits) in [("size", size, 11), ("uid", entry.user, 7), ("gid", entry.group, 7)] {
        if !header::fits(value, digits) {
            all.extend(pax::record(key, value.to_string().as_bytes()));
        }
    }
    let time = entry.modified;
    if time.nanoseconds != 0 || u64::try_from(time.seconds).map_or(true, |seconds| !header::fits(seconds, 11)) {
        all.extend(pax::record("mtime", pax::time_text(time).as_bytes()));
    }
    for (name, value) in &entry.attributes {
        all.extend(pax::record(&format!("SCHILY.xattr.{name}"), value));
    }
    all
}

fn letter(kind: Kind) -> u8 {
    match kind {
        Kind::File => b'0',
        Kind::HardLink => b'1',
        Kind::Symlink => b'2',
        Kind::CharacterDevice => b'3',
        Kind::BlockDevice => b'4',
        Kind::Directory => b'5',
        Kind::Fifo => b'6',
        Kind::Other(letter) => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reader, Time};
    use super::*;

    fn entry(path: &[u8], size: u64) -> Entry {
        Entry {
            path: path.to_vec(),
            link: Vec::new(),
            kind: Kind::File,
            mode: 0o4755,
            user: 70_000_000,
            group: 3,
            size,
            modified: Time { seconds: 1_700_000_000, nanoseconds: 5 },
            attributes: vec![("security.capability".into(), b"\x01\0\0\x02\n\0".to_vec())],
            parts: None,
        }
    }

    #[test]
    fn what_is_written_is_read_by_us_and_by_others() {
        let long = [b"folder/".repeat(30).as_slice(), "ä".as_bytes()].concat();
        let mut writer = Writer::new(Vec::new());
        writer.append(&entry(b"short", 3), &b"abcdef"[..]).unwrap();
        writer.append(&entry(&long, 5), &b"ab"[..]).unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes.len() % BLOCK, 0);
        let mut reader = Reader::new(&bytes[..], 1 << 20);
        for (name, data) in [(&b"short"[..], &b"abc"[..]), (&long, b"ab\0\0\0")] {
            assert_eq!(reader.next_entry().unwrap().unwrap(), entry(name, data.len() as u64));
            let mut found = Vec::new();
            reader.read_to_end(&mut found).unwrap();
            assert_eq!(found, data);
        }
        assert!(reader.next_entry().unwrap().is_none());
        let mut other = tar::Archive::new(&bytes[..]);
        let names: Vec<_> = other.entries().unwrap().map(|entry| entry.unwrap().path_bytes().into_owned()).collect();
        assert_eq!(names, [&b"short"[..], &long]);
    }
}
