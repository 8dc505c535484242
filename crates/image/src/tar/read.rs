//! Entries out of a stream, one after the other.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::header::{self, Header, Type};
use super::sparse::{self, Lines, Map, Records};
use super::{BLOCK, Entry, Kind, Time, pax};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the archive cannot be read: {0}")]
    Broken(String),
}

impl From<&str> for Error {
    fn from(why: &str) -> Self {
        Error::Broken(why.to_owned())
    }
}

/// A tar stream. Reading from it gives the data of the entry that [`Reader::next_entry`] returned last.
pub struct Reader<R> {
    inner: R,
    skip: fn(&mut R, u64) -> io::Result<()>,
    /// How much of the entry's data is still to be read, and how much fills its last block.
    left: u64,
    padding: u64,
    position: u64,
    /// How many bytes of headers and records one entry may have.
    metadata: u64,
    is_at_end: bool,
    has_mark: bool,
}

/// What comes before an entry's own header.
#[derive(Default)]
struct Before {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Vec<u8>>,
}

impl<R: Read> Reader<R> {
    pub fn new(inner: R, metadata: u64) -> Self {
        Reader { inner, skip: read_over, left: 0, padding: 0, position: 0, metadata, is_at_end: false, has_mark: false }
    }

    /// The next entry; `None` at the end. What is left of the last one's data is passed over.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        if self.is_at_end {
            return Ok(None);
        }
        self.skip_rest()?;
        let mut budget = self.metadata;
        let mut before = Before::default();
        loop {
            let block = self.block(&mut budget)?;
            self.has_mark = block.is_some();
            let Some(block) = block.filter(|block| !header::is_zero(block)) else {
                self.is_at_end = true;
                if before.name.is_some() || before.link.is_some() || before.records.is_some() {
                    return Err("it ends after the records of an entry".into());
                }
                return match self.block(&mut budget)? {
                    Some(second) if !header::is_zero(&second) => Err("it goes on after a block of zeros".into()),
                    _ => Ok(None),
                };
            };
            let header = header::parse(&block)?;
            let place = match header.kind {
                Type::Entry(kind) => return self.entry(header, kind, before, &block, &mut budget).map(Some),
                Type::Sparse => return self.entry(header, Kind::File, before, &block, &mut budget).map(Some),
                // What all entries have in common: the comment that `git archive` writes.
                Type::Global => &mut None,
                Type::Extended => &mut before.records,
                Type::LongName => &mut before.name,
                Type::LongLink => &mut before.link,
            };
            if place.is_some() {
                return Err("an entry has the same kind of record twice".into());
            }
            let bytes = self.whole(header.size, &mut budget)?;
            *place = Some(bytes);
        }
    }

    /// Whether it ended with the zeros that end a tar, and not just so: then it may have been cut off between two entries.
    pub fn has_mark(&self) -> bool {
        self.is_at_end && self.has_mark
    }

    /// Where the data of the entry begins that was returned last.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn into_inner(self) -> R {
        self.inner
    }

    fn entry(
        &mut self,
        header: Header,
        mut kind: Kind,
        before: Before,
        block: &[u8; BLOCK],
        budget: &mut u64,
    ) -> Result<Entry, Error> {
        let mut entry = Entry {
            path: header.path,
            link: header.link,
            kind,
            mode: header.mode,
            user: header.user,
            group: header.group,
            size: header.size,
            modified: Time { seconds: header.modified, nanoseconds: 0 },
            attributes: Vec::new(),
            parts: None,
        };
        let mut holes = Records::default();
        let records = before.records.unwrap_or_default();
        for (key, value) in pax::records(&records).ok_or("an entry's records make no sense")? {
            record(&mut entry, &mut holes, key, value)?;
        }
        for (name, place) in [(before.name, &mut entry.path), (before.link, &mut entry.link)] {
            if let Some(mut name) = name {
                let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
                name.truncate(end);
                *place = name;
            }
        }
        if header.is_old && entry.path.ends_with(b"/") {
            kind = Kind::Directory;
        }
        entry.kind = kind;
        let mut data = if kind.has_no_data() { 0 } else { entry.size };
        if i64::try_from(data).is_err() {
            return Err("an entry is larger than any file".into());
        }
        self.padding = data.next_multiple_of(BLOCK as u64) - data;
        if header.kind == Type::Sparse {
            let (mut parts, size, mut more) = header::sparse(block).ok_or("its list of holes makes no sense")?;
            while more {
                let block = self.block(budget)?.ok_or("it ends in the middle of an entry")?;
                let (next, after) = header::more_sparse(&block).ok_or("its list of holes makes no sense")?;
                parts.extend(next);
                more = after;
            }
            (entry.size, entry.parts) = (size, Some(parts));
        } else {
            if let Some(name) = holes.name.take() {
                entry.path = name;
            }
            match holes.map()? {
                Map::None => {}
                _ if kind != Kind::File => return Err("an entry that is no file has holes".into()),
                Map::Here { size, parts } => (entry.size, entry.parts) = (size, Some(parts)),
                Map::InData { size } => {
                    let mut lines = Lines::default();
                    let parts = loop {
                        data = data.checked_sub(BLOCK as u64).ok_or("its list of holes makes no sense")?;
                        let block = self.block(budget)?.ok_or("it ends in the middle of an entry")?;
                        if let Some(parts) = lines.take(&block)? {
                            break parts;
                        }
                    };
                    (entry.size, entry.parts) = (size, Some(parts));
                }
            }
        }
        if let Some(parts) = &entry.parts {
            sparse::check(parts, entry.size, data)?;
        }
        if kind.has_no_data() {
            entry.size = 0;
        }
        if entry.path.contains(&0) || entry.link.contains(&0) {
            return Err("a name has a zero byte in it".into());
        }
        self.left = data;
        Ok(entry)
    }

    fn block(&mut self, budget: &mut u64) -> Result<Option<[u8; BLOCK]>, Error> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.inner.read(rest) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err("it ends in the middle of a block".into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.position += BLOCK as u64;
        self.spend(BLOCK as u64, budget)?;
        Ok(Some(block))
    }

    /// All of a record's data, if the budget allows it.
    fn whole(&mut self, size: u64, budget: &mut u64) -> Result<Vec<u8>, Error> {
        self.spend(size.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX), budget)?;
        (self.left, self.padding) = (size, size.next_multiple_of(BLOCK as u64) - size);
        let mut bytes = Vec::new();
        Read::by_ref(self).take(size).read_to_end(&mut bytes)?;
        self.skip_rest()?;
        Ok(bytes)
    }

    fn spend(&self, bytes: u64, budget: &mut u64) -> Result<(), Error> {
        let allowed = self.metadata;
        *budget = budget.checked_sub(bytes).ok_or_else(|| {
            Error::Broken(format!("the name and attributes of an entry are larger than {allowed} bytes"))
        })?;
        Ok(())
    }

    fn skip_rest(&mut self) -> Result<(), Error> {
        let rest = std::mem::take(&mut self.left) + std::mem::take(&mut self.padding);
        if rest > 0 {
            (self.skip)(&mut self.inner, rest)?;
            self.position += rest;
        }
        Ok(())
    }
}

impl Reader<File> {
    /// Over a file: what is passed over is not read.
    pub fn over_file(file: File, metadata: u64) -> Self {
        Reader { skip: seek_over, ..Reader::new(file, metadata) }
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let count = self.inner.read(buffer)?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle of a file"));
        }
        self.left -= count as u64;
        self.position += count as u64;
        Ok(count)
    }
}

fn record(entry: &mut Entry, holes: &mut Records, key: &[u8], value: &[u8]) -> Result<(), Error> {
    // No key that matters has other characters.
    let Ok(key) = std::str::from_utf8(key) else { return Ok(()) };
    // An empty value takes a record back.
    let is_empty = value.is_empty();
    let number = || pax::number(value).ok_or("a record is no number");
    match key {
        _ if is_empty && !key.contains(".xattr.") => {}
        "path" => entry.path = value.to_vec(),
        "linkpath" => entry.link = value.to_vec(),
        "size" => entry.size = number()?,
        "uid" => entry.user = number().unwrap_or(u64::MAX),
        "gid" => entry.group = number().unwrap_or(u64::MAX),
        "mtime" => entry.modified = pax::time(value).ok_or("a record is no time")?,
        _ => {
            if let Some(key) = key.strip_prefix("GNU.sparse.") {
                holes.take(key, value)?;
            } else if let Some((name, value)) = pax::attribute(key, value) {
                entry.attributes.push((name, value));
            }
        }
    }
    Ok(())
}

fn read_over<R: Read>(inner: &mut R, count: u64) -> io::Result<()> {
    match io::copy(&mut inner.take(count), &mut io::sink())? == count {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle of a file")),
    }
}

fn seek_over(file: &mut File, count: u64) -> io::Result<()> {
    let (here, length) = (file.stream_position()?, file.metadata()?.len());
    match here.checked_add(count) {
        Some(next) if next <= length => file.seek(SeekFrom::Start(next)).map(|_| ()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle of a file")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tar::{Builder, EntryType, Header as Other};

    use super::*;

    const METADATA: u64 = 1 << 20;

    fn other(kind: EntryType, size: u64) -> Other {
        let mut header = Other::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o640);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(9);
        header
    }

    fn all(bytes: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, Error> {
        let mut reader = Reader::new(bytes, METADATA);
        let mut found = Vec::new();
        while let Some(entry) = reader.next_entry()? {
            let mut data = Vec::new();
            reader.read_to_end(&mut data)?;
            found.push((entry, data));
        }
        Ok(found)
    }

    #[test]
    fn entries_of_another_program_are_read() {
        let mut builder = Builder::new(Vec::new());
        let long = "d/".repeat(120) + "file";
        builder
            .append_pax_extensions([("mtime", &b"5.25"[..]), ("SCHILY.xattr.user.a", b"1\n2"), ("size", b"3")])
            .unwrap();
        builder.append_data(&mut other(EntryType::Regular, 3), "a", &b"abc"[..]).unwrap();
        builder.append_data(&mut other(EntryType::Regular, 4), &long, &b"long"[..]).unwrap();
        builder.append_link(&mut other(EntryType::Symlink, 0), "link", &long).unwrap();
        builder.append_data(&mut other(EntryType::Directory, 0), "dir/", io::empty()).unwrap();
        let found = all(&builder.into_inner().unwrap()).unwrap();
        let (entry, data) = &found[0];
        assert_eq!(
            (entry.path.as_slice(), data.as_slice(), entry.mode, entry.user, entry.group),
            (&b"a"[..], &b"abc"[..], 0o640, 7, 8)
        );
        assert_eq!(entry.modified, Time { seconds: 5, nanoseconds: 250_000_000 });
        assert_eq!(entry.attributes, [("user.a".to_owned(), b"1\n2".to_vec())], "a value with a line break");
        assert_eq!((found[1].0.path.as_slice(), found[1].1.as_slice()), (long.as_bytes(), &b"long"[..]));
        assert_eq!((found[2].0.kind, found[2].0.link.as_slice()), (Kind::Symlink, long.as_bytes()));
        assert_eq!(found[3].0.kind, Kind::Directory);
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn a_size_behind_an_attribute_with_a_line_break_counts() {
        // The header says 0 bytes, the record says 600: a reader that misses it takes the data for headers.
        let mut builder = Builder::new(Vec::new());
        builder.append_pax_extensions([("SCHILY.xattr.user.a", &b"\n"[..]), ("size", b"600")]).unwrap();
        let mut header = other(EntryType::Regular, 0);
        header.set_path("a").unwrap();
        header.set_cksum();
        let mut bytes = builder.into_inner().unwrap();
        // Without the end that the builder wrote.
        bytes.truncate(bytes.len() - 1024);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[b'x'; 600]);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        let found = all(&bytes).unwrap();
        assert_eq!((found.len(), found[0].1.len()), (1, 600));
    }

    #[test]
    fn links_and_directories_have_no_data_whatever_their_size_says() {
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Directory, EntryType::Fifo, EntryType::Char] {
            let mut first = other(kind, 512);
            first.set_path("first").unwrap();
            first.set_cksum();
            let mut second = other(EntryType::Regular, 0);
            second.set_path("second").unwrap();
            second.set_cksum();
            let found = all(&[first.as_bytes().as_slice(), second.as_bytes()].concat()).unwrap();
            assert_eq!(found.len(), 2, "{kind:?}");
            assert_eq!(found[1].0.path, b"second");
        }
    }

    #[test]
    fn holes_of_gnu_and_of_pax_are_read() {
        // GNU's own: two parts.
        let mut header = other(EntryType::GNUSparse, 10);
        header.set_path("gnu").unwrap();
        let gnu = header.as_gnu_mut().unwrap();
        for (place, (offset, length)) in gnu.sparse.iter_mut().zip([(0, 4), (1000, 6)]) {
            place.offset.copy_from_slice(format!("{offset:011o}\0").as_bytes());
            place.numbytes.copy_from_slice(format!("{length:011o}\0").as_bytes());
        }
        gnu.set_real_size(2000);
        header.set_cksum();
        let mut bytes = [header.as_bytes().as_slice(), b"abcdefghij"].concat();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        // pax 1.0: the map is before the data.
        let mut builder = Builder::new(bytes);
        let records = [
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", "pax"),
            ("GNU.sparse.realsize", "2000"),
        ];
        builder.append_pax_extensions(records.map(|(key, value)| (key, value.as_bytes()))).unwrap();
        let mut data = b"2\n0\n4\n1000\n6\n".to_vec();
        data.resize(512, 0);
        data.extend_from_slice(b"abcdefghij");
        builder
            .append_data(&mut other(EntryType::Regular, data.len() as u64), "GNUSparseFile.1/pax", &data[..])
            .unwrap();
        let found = all(&builder.into_inner().unwrap()).unwrap();
        for ((entry, data), name) in found.iter().zip([&b"gnu"[..], b"pax"]) {
            assert_eq!((entry.path.as_slice(), entry.size, data.as_slice()), (name, 2000, &b"abcdefghij"[..]));
            assert_eq!(entry.parts, Some(vec![(0, 4), (1000, 6)]));
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn global_records_are_passed_over() {
        let mut builder = Builder::new(Vec::new());
        builder
            .append_data(&mut other(EntryType::XGlobalHeader, 14), "pax_global_header", &b"14 comment=abc"[..])
            .unwrap();
        builder.append_data(&mut other(EntryType::Regular, 0), "a", io::empty()).unwrap();
        let found = all(&builder.into_inner().unwrap()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0.path, b"a");
    }

    #[test]
    fn an_entry_cannot_have_endless_records() {
        let mut builder = Builder::new(Vec::new());
        builder.append_pax_extensions([("SCHILY.xattr.user.a", vec![b'x'; METADATA as usize].as_slice())]).unwrap();
        builder.append_data(&mut other(EntryType::Regular, 0), "a", io::empty()).unwrap();
        let error = all(&builder.into_inner().unwrap()).unwrap_err().to_string();
        assert!(error.contains("larger than 1048576 bytes"), "{error}");
        // Announced, not there: nothing is allocated for it.
        let mut header = other(EntryType::XHeader, 1 << 40);
        header.set_path("x").unwrap();
        header.set_cksum();
        assert!(all(header.as_bytes()).is_err());
    }

    #[test]
    fn what_is_cut_or_no_tar_is_refused() {
        let mut builder = Builder::new(Vec::new());
        builder.append_data(&mut other(EntryType::Regular, 700), "a", &[1; 700][..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        for length in [1, 511, 513, 1000, 1211, 1535] {
            assert!(all(&bytes[..length]).is_err(), "{length}");
        }
        assert_eq!(all(&bytes[..1536]).unwrap().len(), 1, "the blocks of zeros may be missing");
        assert_eq!(all(b"").unwrap().len(), 0);
        assert!(all(&[b'x'; 512]).is_err());
        assert!(all(&[&[0; 512][..], &bytes].concat()).is_err(), "something behind one block of zeros");
        assert_eq!(all(&[&[0; 1024][..], &bytes].concat()).unwrap().len(), 0, "behind the end");
    }

    proptest! {
        #[test]
        fn any_bytes_give_entries_or_a_reason(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let _ = all(&bytes);
        }
    }
}
