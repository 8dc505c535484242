//! COPY: files of an archive, put where the Dockerfile says, as a new archive for the sandbox to unpack.
//!
//! Two passes over what was sent. The first finds out what the sources are (one file, or trees) and what is in them, for
//! the cache; the second writes the new archive with names and owners as they shall be. Both are bounded while they read
//! ([`Allowance`]): an archive is as hostile as anything that comes from outside. It is unpacked by the guest, inside the
//! sandbox.

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read, Write};

use cove_image::dockerfile::{Pattern as Glob, Stars};
use cove_image::tar::{self as packed, Entry, Kind, Reader};
use cove_image::unpack::Decoder;
use sha2::{Digest as _, Sha256};

use super::plan::{Copy, Patterns};
use crate::provider::stop::Stop;

/// Entries of one archive, and directories of the new one.
const ENTRIES_MAX: usize = 1_000_000;
const PATH_MAX: usize = 4096;
/// Bytes of the headers, names and records of one entry.
const METADATA_MAX: u64 = 1 << 20;
/// Bytes that tell whether a file is an archive.
const HEAD: u64 = 512;

/// What one pass may still read, and whether anybody still waits for it.
pub struct Allowance {
    bytes: Cell<u64>,
    stop: Stop,
}

impl Allowance {
    /// So many bytes when they are unpacked, those of archives within the archive too.
    pub fn new(bytes: u64, stop: Stop) -> Allowance {
        Allowance { bytes: Cell::new(bytes), stop }
    }

    fn check(&self) -> io::Result<()> {
        match self.stop.is_asked_for() {
            true => Err(io::Error::new(io::ErrorKind::BrokenPipe, "nobody waits for the files any more")),
            false => Ok(()),
        }
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        self.check()?;
        let left = self.bytes.get().checked_sub(bytes);
        self.bytes.set(left.ok_or_else(|| wrong("the archive has more bytes than a build may write"))?);
        Ok(())
    }
}

/// What a COPY is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// Of names, modes and contents.
    pub digest: String,
    pub shape: Shape,
    pub files: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Nothing,
    /// One source that is a file.
    File,
    /// Directories, or several files.
    Tree,
}

/// Where files go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What the archive is unpacked into.
    pub directory: String,
    /// The one file's new name; `None` where names stay.
    pub name: Option<String>,
    pub uid: u32,
    pub gid: u32,
    pub mode: Option<u32>,
}

impl Target {
    /// `destination` is absolute; `is_directory` says whether it is one already.
    pub fn new(destination: &str, shape: Shape, is_directory: bool, owner: (u32, u32), mode: Option<u32>) -> Target {
        let trimmed = destination.trim_end_matches('/');
        let into = shape != Shape::File || is_directory || destination.ends_with('/') || trimmed.is_empty();
        let (directory, name) = match trimmed.rsplit_once('/') {
            Some((parent, name)) if !into => (if parent.is_empty() { "/" } else { parent }, Some(name.to_owned())),
            _ => (if trimmed.is_empty() { "/" } else { trimmed }, None),
        };
        Target { directory: directory.to_owned(), name, uid: owner.0, gid: owner.1, mode }
    }
}

fn wrong(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// A path of an archive: relative, without `.`; with `..` it is refused.
fn plain(path: &[u8]) -> io::Result<String> {
    let text = std::str::from_utf8(path).map_err(|_| wrong("a name that is not UTF-8"))?;
    if text.len() > PATH_MAX {
        return Err(wrong("a name that is too long"));
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(wrong(format!("a name with '..': {text:?}")));
    }
    Ok(parts.join("/"))
}

/// A source, as a pattern of path components.
struct Pattern {
    parts: Vec<Part>,
}

enum Part {
    Name(String),
    /// With `*`, `?` or `[a-z]`.
    Glob(Glob),
}

impl Part {
    fn matches(&self, name: &str) -> bool {
        match self {
            Part::Name(part) => part == name,
            Part::Glob(glob) => glob.matches(name),
        }
    }
}

/// How an entry relates to a source.
#[derive(Debug, PartialEq, Eq)]
enum Relation<'a> {
    None,
    /// It is what the source names.
    Itself,
    /// It lies in the directory that the source names.
    Below(&'a str),
}

impl Pattern {
    fn new(source: &str, patterns: Patterns) -> io::Result<Pattern> {
        let mut parts: Vec<String> = plain(source.as_bytes())?.split('/').map(ToOwned::to_owned).collect();
        parts.retain(|part| !part.is_empty());
        let wild = |part: &String| part.contains(['*', '?', '[']);
        if patterns == Patterns::CutOff {
            let kept = parts.iter().position(wild).unwrap_or(parts.len());
            parts.truncate(kept);
        }
        let has_wildcard = parts.iter().any(wild);
        let part = |part: String| match has_wildcard {
            true => Glob::new(&part, Stars::Shallow).map(Part::Glob).map_err(wrong),
            false => Ok(Part::Name(part)),
        };
        Ok(Pattern { parts: parts.into_iter().map(part).collect::<io::Result<_>>()? })
    }

    fn relation<'a>(&self, path: &'a str) -> Relation<'a> {
        let mut rest = path;
        for (place, part) in self.parts.iter().enumerate() {
            let (head, tail) = match rest.split_once('/') {
                Some((head, tail)) => (head, Some(tail)),
                None => (rest, None),
            };
            match (part.matches(head), tail, place + 1 == self.parts.len()) {
                (false, ..) => return Relation::None,
                (true, None, true) => return Relation::Itself,
                (true, None, false) => return Relation::None,
                (true, Some(tail), true) => return Relation::Below(tail),
                (true, Some(tail), false) => rest = tail,
            }
        }
        // The source is everything.
        if path.is_empty() { Relation::Itself } else { Relation::Below(path) }
    }
}

/// Bytes of an archive, counted as they are read.
struct Bounded<'a, R> {
    inner: R,
    allowance: &'a Allowance,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(to)?;
        self.allowance.take(count as u64)?;
        Ok(count)
    }
}

/// Calls `each` for every entry that may be copied, with its plain path, and its data to be read.
fn walk(
    from: impl Read,
    allowance: &Allowance,
    mut each: impl FnMut(&str, &Entry, &mut dyn Read) -> io::Result<()>,
) -> io::Result<()> {
    let bounded = Bounded { inner: Decoder::new(from)?, allowance };
    let mut archive = Reader::new(bounded, METADATA_MAX);
    let mut count = 0;
    while let Some(entry) = archive.next_entry().map_err(unreadable)? {
        count += 1;
        if count > ENTRIES_MAX {
            return Err(wrong(format!("the archive has more than {ENTRIES_MAX} entries")));
        }
        allowance.check()?;
        if entry.parts.is_some() {
            return Err(wrong("the archive has sparse files; make it without --sparse"));
        }
        let path = plain(&entry.path)?;
        if letter(entry.kind).is_some() {
            each(&path, &entry, &mut archive)?;
        }
    }
    Ok(())
}

fn unreadable(error: packed::Error) -> io::Error {
    match error {
        packed::Error::Io(error) => error,
        broken => wrong(broken.to_string()),
    }
}

/// What tells kinds apart in a digest; `None` for what is not copied.
fn letter(kind: Kind) -> Option<u8> {
    match kind {
        Kind::File => Some(b'0'),
        Kind::HardLink => Some(b'1'),
        Kind::Symlink => Some(b'2'),
        Kind::Directory => Some(b'5'),
        Kind::Fifo | Kind::CharacterDevice | Kind::BlockDevice | Kind::Other(_) => None,
    }
}

/// The first pass: what is copied. `archives` are read one after the other, as one.
pub fn survey(archives: Vec<Box<dyn Read + Send>>, copy: &Copy, allowance: &Allowance) -> io::Result<Survey> {
    let (patterns, excluded) = (read_patterns(copy)?, Excluded::new(copy)?);
    let mut hash = Sha256::new();
    let (mut whole_files, mut trees, mut files) = (0_usize, 0_usize, 0_usize);
    // Several archives may have the same file: a client sends one for each path that it was given.
    let mut first = None;
    for archive in archives {
        walk(archive, allowance, |path, entry, data| {
            for pattern in patterns.iter().filter(|_| !excluded.has(path)) {
                let is_directory = entry.kind == Kind::Directory;
                match pattern.relation(path) {
                    Relation::None => continue,
                    Relation::Itself if is_directory => trees += 1,
                    Relation::Itself if first.as_deref() == Some(path) => {}
                    Relation::Itself => {
                        whole_files += 1;
                        first.get_or_insert_with(|| path.to_owned());
                    }
                    Relation::Below(_) => trees += 1,
                }
                files += usize::from(!is_directory);
                let mode = entry.mode & 0o7777;
                let kind = [letter(entry.kind).unwrap_or_default()];
                for part in [path.as_bytes(), &kind, &mode.to_be_bytes(), &entry.link] {
                    hash.update((part.len() as u64).to_be_bytes());
                    hash.update(part);
                }
                hash.update(entry.size.to_be_bytes());
                let mut buffer = [0; 16 << 10];
                loop {
                    match data.read(&mut buffer)? {
                        0 => break,
                        count => hash.update(&buffer[..count]),
                    }
                }
                break;
            }
            Ok(())
        })?;
    }
    let shape = match (whole_files, trees) {
        (0, 0) => Shape::Nothing,
        (1, 0) if copy.sources.len() == 1 => Shape::File,
        _ => Shape::Tree,
    };
    Ok(Survey { digest: hex::encode(hash.finalize()), shape, files })
}

fn read_patterns(copy: &Copy) -> io::Result<Vec<Pattern>> {
    copy.sources.iter().map(|source| Pattern::new(source, copy.patterns)).collect()
}

/// What is left out: files that match, and all that is in directories that do.
struct Excluded(Vec<Glob>);

impl Excluded {
    fn new(copy: &Copy) -> io::Result<Excluded> {
        let pattern = |text: &String| Glob::new(text, Stars::Deep).map_err(wrong);
        Ok(Excluded(copy.exclude.iter().map(pattern).collect::<io::Result<_>>()?))
    }

    fn has(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.covers(path))
    }
}

/// The second pass: the archive for the sandbox.
pub fn repack(
    archives: Vec<Box<dyn Read + Send>>,
    copy: &Copy,
    target: &Target,
    allowance: &Allowance,
    to: impl Write,
) -> io::Result<()> {
    let (patterns, excluded) = (read_patterns(copy)?, Excluded::new(copy)?);
    let mut writer = Writer::new(to, target);
    for archive in archives {
        walk(archive, allowance, |path, entry, data| {
            if excluded.has(path) {
                return Ok(());
            }
            let Some(name) = patterns.iter().find_map(|pattern| new_name(pattern, path, entry.kind, target)) else {
                return Ok(());
            };
            if copy.unpack && entry.kind == Kind::File {
                return writer.add_or_unpack(&name, entry, data, allowance);
            }
            let link = match entry.kind {
                Kind::HardLink => {
                    let old = plain(&entry.link)?;
                    let new = patterns.iter().find_map(|pattern| match pattern.relation(&old) {
                        Relation::Below(rest) => Some(rest.to_owned()),
                        Relation::Itself => target.name.clone().or_else(|| Some(last(&old).to_owned())),
                        Relation::None => None,
                    });
                    Some(new.ok_or_else(|| wrong(format!("{path} is a hard link to {old}, which is not copied")))?)
                }
                _ => None,
            };
            writer.add(&name, entry, data, link.as_deref())
        })?;
    }
    writer.builder.into_inner()?.flush()
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name below the target's directory; `None` where the entry is not copied.
fn new_name(pattern: &Pattern, path: &str, kind: Kind, target: &Target) -> Option<String> {
    match pattern.relation(path) {
        Relation::None => None,
        Relation::Itself if kind == Kind::Directory => None,
        Relation::Itself => Some(target.name.clone().unwrap_or_else(|| last(path).to_owned())),
        Relation::Below(rest) => Some(rest.to_owned()),
    }
}

struct Writer<'a, W: Write> {
    builder: tar::Builder<W>,
    target: &'a Target,
    /// Directories and files that are in the new archive, each as a keyed hash of its name: an archive may have a million
    /// long names.
    made: HashSet<u64>,
    files: HashSet<u64>,
    hasher: RandomState,
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(to: W, target: &'a Target) -> Self {
        let (made, files, hasher) = (HashSet::new(), HashSet::new(), RandomState::new());
        Writer { builder: tar::Builder::new(to), target, made, files, hasher }
    }

    fn header(&self, kind: tar::EntryType, mode: u32, modified: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(self.target.mode.unwrap_or(mode) & 0o7777);
        header.set_uid(self.target.uid.into());
        header.set_gid(self.target.gid.into());
        header.set_mtime(modified);
        header.set_size(0);
        header
    }

    /// Directories on the way, which archives need not name.
    fn parents(&mut self, name: &str) -> io::Result<()> {
        // One that is there was made with all above it.
        let Some((parent, _)) = name.rsplit_once('/') else { return Ok(()) };
        if self.made.contains(&self.hasher.hash_one(parent)) {
            return Ok(());
        }
        let mut end = 0;
        while let Some(next) = name[end..].find('/') {
            end += next;
            self.directory(&name[..end], 0o755, 0)?;
            end += 1;
        }
        Ok(())
    }

    fn directory(&mut self, name: &str, mode: u32, modified: u64) -> io::Result<()> {
        if !self.made.insert(self.hasher.hash_one(name)) {
            return Ok(());
        }
        if self.made.len() > ENTRIES_MAX {
            return Err(wrong(format!("the archive has more than {ENTRIES_MAX} directories")));
        }
        // Whoever may read a directory's files may enter it.
        let mode = self.target.mode.map_or(mode, |mode| mode | (mode & 0o444) >> 2);
        let mut header = self.header(tar::EntryType::Directory, mode, modified);
        header.set_mode(mode & 0o7777);
        self.builder.append_data(&mut header, format!("{name}/"), io::empty())
    }

    fn add(&mut self, name: &str, entry: &Entry, data: &mut dyn Read, link: Option<&str>) -> io::Result<()> {
        let modified = u64::try_from(entry.modified.seconds).unwrap_or(0);
        self.parents(name)?;
        if entry.kind == Kind::Directory {
            return self.directory(name, entry.mode, modified);
        }
        if entry.kind == Kind::Symlink {
            let target = String::from_utf8(entry.link.clone()).map_err(|_| wrong("a link that is not UTF-8"))?;
            let mut header = self.header(tar::EntryType::Symlink, 0o777, modified);
            header.set_mode(0o777);
            return self.builder.append_link(&mut header, name, target);
        }
        if let Some(link) = link {
            if !self.files.contains(&self.hasher.hash_one(link)) {
                return Err(wrong(format!("{name} is a hard link to {link}, which does not come before it")));
            }
            let mut header = self.header(tar::EntryType::Link, entry.mode, modified);
            return self.builder.append_link(&mut header, name, link);
        }
        self.file(name, entry, data)
    }

    fn file(&mut self, name: &str, entry: &Entry, data: impl Read) -> io::Result<()> {
        let modified = u64::try_from(entry.modified.seconds).unwrap_or(0);
        let mut header = self.header(tar::EntryType::Regular, entry.mode, modified);
        header.set_size(entry.size);
        self.files.insert(self.hasher.hash_one(name));
        self.builder.append_data(&mut header, name, data)
    }

    /// A file, or what is in it where it is an archive.
    fn add_or_unpack(
        &mut self,
        name: &str,
        entry: &Entry,
        data: &mut dyn Read,
        allowance: &Allowance,
    ) -> io::Result<()> {
        let mut head = Vec::new();
        Read::take(&mut *data, HEAD).read_to_end(&mut head)?;
        let packed = head.starts_with(&[0x1f, 0x8b]) || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        let is_archive = packed || head.get(257..262) == Some(b"ustar");
        let whole = io::Cursor::new(head).chain(data);
        if !is_archive {
            self.parents(name)?;
            return self.file(name, entry, whole);
        }
        let inner = walk(whole, allowance, |path, inner, data| {
            if path.is_empty() {
                return Ok(());
            }
            let link = match inner.kind {
                Kind::HardLink => Some(plain(&inner.link)?),
                _ => None,
            };
            self.add(path, inner, data, link.as_deref())
        });
        inner.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => error,
            _ => wrong(format!("unpack {name}: {error}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::From;
    use super::*;

    fn copy(sources: &[&str], patterns: Patterns) -> Copy {
        Copy {
            from: From::Files(Vec::new()),
            sources: sources.iter().map(|source| (*source).to_owned()).collect(),
            destination: String::new(),
            owner: None,
            mode: None,
            unpack: false,
            patterns,
            exclude: Vec::new(),
        }
    }

    fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o640);
            if let Some(path) = path.strip_suffix('/') {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_size(0);
                builder.append_data(&mut header, path, io::empty()).unwrap();
            } else if let Some(target) = content.strip_prefix("->") {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                builder.append_link(&mut header, path, target).unwrap();
            } else {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    fn allowance(bytes: u64) -> Allowance {
        Allowance::new(bytes, Stop::default())
    }

    fn readers(archive: &[u8]) -> Vec<Box<dyn Read + Send>> {
        vec![Box::new(io::Cursor::new(archive.to_vec()))]
    }

    /// Names (directories with a slash), owners and modes of what would be unpacked, and where.
    fn copied(archive: &[u8], copy: &Copy, destination: &str, is_directory: bool) -> (String, Vec<(String, u32)>) {
        let shape = survey(readers(archive), copy, &allowance(1 << 20)).unwrap().shape;
        let target = Target::new(destination, shape, is_directory, (7, 8), copy.mode);
        let mut packed = Vec::new();
        repack(readers(archive), copy, &target, &allowance(1 << 20), &mut packed).unwrap();
        let mut names = Vec::new();
        for entry in tar::Archive::new(&packed[..]).entries().unwrap() {
            let entry = entry.unwrap();
            assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (7, 8));
            names.push((entry.path().unwrap().to_string_lossy().into_owned(), entry.header().mode().unwrap()));
        }
        (target.directory, names)
    }

    fn names(found: &[(String, u32)]) -> Vec<&str> {
        found.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_file_gets_its_new_name_unless_the_destination_is_a_directory() {
        let sent = archive(&[("./req.txt", "x")]);
        let one = copy(&["req.txt"], Patterns::Match);
        let (directory, found) = copied(&sent, &one, "/app/r.txt", false);
        assert_eq!((directory.as_str(), names(&found)), ("/app", vec!["r.txt"]));
        assert_eq!(found[0].1, 0o640);
        for (destination, is_directory) in [("/app/", false), ("/app", true)] {
            let (directory, found) = copied(&sent, &one, destination, is_directory);
            assert_eq!((directory.as_str(), names(&found)), ("/app", vec!["req.txt"]));
        }
        let (directory, _) = copied(&sent, &one, "/r.txt", false);
        assert_eq!(directory, "/");
    }

    #[test]
    fn a_directorys_contents_are_copied_without_its_name() {
        let sent = archive(&[("src/", ""), ("src/a", "1"), ("src/deep/b", "2"), ("other", "3"), ("src/l", "->/etc")]);
        let (directory, found) = copied(&sent, &copy(&["src"], Patterns::Match), "/app", false);
        assert_eq!((directory.as_str(), names(&found)), ("/app", vec!["a", "deep/", "deep/b", "l"]));
        let (_, found) = copied(&sent, &copy(&["."], Patterns::Match), "/app", false);
        assert_eq!(names(&found), ["src/", "src/a", "src/deep/", "src/deep/b", "other", "src/l"]);
    }

    #[test]
    fn wildcards_are_dockers_or_e2bs() {
        let sent = archive(&[("f/a.py", "1"), ("f/b.txt", "2"), ("f/sub/c.py", "3")]);
        let (_, found) = copied(&sent, &copy(&["f/*.py"], Patterns::Match), "/app/", false);
        assert_eq!(names(&found), ["a.py"]);
        let (_, found) = copied(&sent, &copy(&["f/*"], Patterns::Match), "/app/", false);
        assert_eq!(names(&found), ["a.py", "b.txt", "c.py"], "a directory that matches loses its name");
        let (_, found) = copied(&sent, &copy(&["f/*"], Patterns::CutOff), "/app/", false);
        assert_eq!(names(&found), ["a.py", "b.txt", "sub/", "sub/c.py"]);
        let matches = |source: &str, path: &str| {
            Pattern::new(source, Patterns::Match).unwrap().relation(path) == Relation::Itself
        };
        assert!(matches("[a-c]*.p?", "box.py") && !matches("[^b]*", "box") && !matches("a", "ab"));
    }

    #[test]
    fn what_is_excluded_is_left_out_with_all_below_it() {
        let sent = archive(&[("a/x.py", "1"), ("a/x.pyc", "2"), ("a/cache/y", "3"), ("b/z.pyc", "4")]);
        let without = Copy { exclude: vec!["**/*.pyc".into(), "a/cache".into()], ..copy(&["."], Patterns::Match) };
        assert_eq!(names(&copied(&sent, &without, "/app", false).1), ["a/", "a/x.py"]);
    }

    #[test]
    fn a_mode_is_for_files_and_lets_directories_be_entered() {
        let sent = archive(&[("d/f", "x")]);
        let with_mode = Copy { mode: Some(0o640), ..copy(&["."], Patterns::Match) };
        let (_, found) = copied(&sent, &with_mode, "/app", false);
        assert_eq!(found, [("d/".to_owned(), 0o750), ("d/f".to_owned(), 0o640)]);
    }

    #[test]
    fn the_digest_depends_on_what_is_copied_and_on_nothing_else() {
        let digest = |entries: &[(&str, &str)], source: &str| {
            survey(readers(&archive(entries)), &copy(&[source], Patterns::Match), &allowance(1 << 20)).unwrap().digest
        };
        let first = digest(&[("a", "1"), ("b", "2")], "a");
        assert_eq!(digest(&[("a", "1"), ("b", "3")], "a"), first);
        assert_ne!(digest(&[("a", "2"), ("b", "2")], "a"), first);
        let packed = |bytes: Vec<u8>| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        };
        let gzipped = packed(archive(&[("a", "1")]));
        let digest = survey(readers(&gzipped), &copy(&["a"], Patterns::Match), &allowance(1 << 20)).unwrap().digest;
        assert_eq!(digest, first);
    }

    #[test]
    fn add_unpacks_an_archive_and_copies_anything_else() {
        let inner = String::from_utf8(archive(&[("in/x", "1")])).unwrap();
        let sent = archive(&[("a.tar", &inner), ("plain", "text")]);
        let add = |source: &str| Copy { unpack: true, ..copy(&[source], Patterns::Match) };
        assert_eq!(names(&copied(&sent, &add("a.tar"), "/opt/", false).1), ["in/", "in/x"]);
        assert_eq!(names(&copied(&sent, &add("plain"), "/opt/", false).1), ["plain"]);
    }

    #[test]
    fn hostile_archives_are_refused() {
        let all = copy(&["."], Patterns::Match);
        let refused = |bytes: &[u8], most: u64| survey(readers(bytes), &all, &allowance(most)).unwrap_err().to_string();
        // The crate that writes archives refuses such a name, so it is put in by hand.
        let mut outside = archive(&[("aa/b", "x")]);
        outside[..4].copy_from_slice(b"../b");
        let sum: u32 = outside[..512]
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        outside[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(refused(&outside, 1 << 20).contains(".."));
        assert!(refused(&archive(&[("big", &"x".repeat(5000))]), 1000).contains("more bytes"));
        assert!(survey(readers(b"no archive at all, and long enough to be taken for a header of one, which has 512 bytes. Lorem ipsum dolor sit amet, consetetur sadipscing elitr, sed diam nonumy eirmod tempor invidunt ut labore et dolore magna aliquyam erat, sed diam voluptua. At vero eos et accusam et justo duo dolores et ea rebum. Stet clita kasd gubergren, no sea takimata sanctus est Lorem ipsum dolor sit amet. Lorem ipsum dolor sit amet, consetetur sadipscing elitr, sed diam nonumy eirmod tempor invidunt ut labore et dolore magna aliquyam erat, sed diam"), &all, &allowance(1 << 20)).is_err());
    }

    #[test]
    fn a_source_is_compared_in_one_pass_however_many_stars_it_has() {
        let sent = archive(&[(&"a".repeat(200), "x")]);
        // With one try for each way to share the letters among the stars, this came to no end.
        let stars = copy(&[&("*a".repeat(40) + "*b")], Patterns::Match);
        assert_eq!(survey(readers(&sent), &stars, &allowance(1 << 20)).unwrap().shape, Shape::Nothing);
        assert!(survey(readers(&sent), &copy(&["[a"], Patterns::Match), &allowance(1 << 20)).is_err());
    }

    #[test]
    fn a_record_before_an_entry_is_not_held_without_a_bound() {
        for kind in [tar::EntryType::GNULongName, tar::EntryType::XHeader] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(64 << 20);
            header.set_path("record").unwrap();
            header.set_cksum();
            let endless = header.as_bytes().to_vec();
            let archive: Vec<Box<dyn Read + Send>> = vec![Box::new(io::Cursor::new(endless).chain(io::repeat(b'a')))];
            let refused = survey(archive, &copy(&["."], Patterns::Match), &allowance(1 << 30)).unwrap_err();
            assert!(refused.to_string().contains("larger than 1048576 bytes"), "{refused}");
        }
    }

    #[test]
    fn what_is_in_an_archive_within_the_archive_counts_too() {
        let inner = archive(&[("zeros", &"0".repeat(200_000))]);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&inner).unwrap();
        let inner = encoder.finish().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(inner.len() as u64);
        builder.append_data(&mut header, "a.tgz", inner.as_slice()).unwrap();
        let sent = builder.into_inner().unwrap();
        let add = Copy { unpack: true, ..copy(&["a.tgz"], Patterns::Match) };
        let target = Target::new("/opt/", Shape::File, true, (0, 0), None);
        let packed = |most| repack(readers(&sent), &add, &target, &allowance(most), io::sink());
        packed(1 << 20).unwrap();
        assert!(packed(100_000).unwrap_err().to_string().contains("more bytes"));
    }

    #[test]
    fn a_pass_ends_when_nobody_waits_for_it() {
        let stop = Stop::default();
        drop(stop.unless_waited_for());
        // A file without an end.
        let mut header = tar::Header::new_gnu();
        header.set_size(1 << 40);
        header.set_path("endless").unwrap();
        header.set_cksum();
        let endless = io::Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(b'a'));
        let endless: Vec<Box<dyn Read + Send>> = vec![Box::new(endless)];
        let error = survey(endless, &copy(&["."], Patterns::Match), &Allowance::new(1 << 30, stop)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
