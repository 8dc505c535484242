//! Finding lines that hold a text.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use cove_protocol::file::Match;
use cove_protocol::{Event, Reply};
use memchr::memmem::Finder;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::actor::Actor;
use super::find::LOOK_EVERY;
use super::list::{begin, below};
use super::place::{Place, is_proc, open_to_read};
use crate::connection::Connection;
use crate::failure::{During, Result, invalid};
use crate::guest::Guest;

/// A file with a zero byte in its beginning is not text.
const BEGINNING: usize = 8 << 10;

/// A line longer than this is searched in pieces.
const LONGEST_LINE: usize = 256 << 10;

/// How much of a line is reported.
const SHOWN: usize = 4 << 10;

pub fn grep(
    guest: &Guest,
    connection: &mut Connection,
    path: &str,
    pattern: &str,
    user: Option<&str>,
    limit: Option<u32>,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    if pattern.is_empty() || pattern.contains('\n') {
        return Err(invalid("search: the text to look for must be a part of one line"));
    }
    let place = Place::find(&actor, path)?.through_links()?;
    let mut search = Search {
        finder: Finder::new(pattern),
        left: limit.unwrap_or(u32::MAX),
        matches: Vec::new(),
        size: 0,
        buffer: vec![0; 64 << 10],
    };
    let kind = place.stat().map(|stat| FileType::from_raw_mode(stat.st_mode));
    if kind.during(format!("search {}", place.path))? != FileType::Directory {
        let (file, _) = open_to_read(&place, "search")?;
        connection.reply(&Reply::Done)?;
        search.file(connection, &file, &place.path)?;
    } else {
        let (place, mut walk) = begin(&actor, path, u32::MAX, "search")?;
        connection.reply(&Reply::Done)?;
        let mut passed = 0u32;
        while search.left > 0
            && let Some(found) = walk.advance()
        {
            passed = passed.wrapping_add(1);
            if passed.is_multiple_of(LOOK_EVERY) && connection.is_gone() {
                return Ok(());
            }
            if found.kind == FileType::RegularFile
                && let Ok(file) = open(walk.directory(), &found.name)
            {
                search.file(connection, &file, &below(&place.path, &found.path()))?;
            }
        }
    }
    search.flush(connection)?;
    connection.end()
}

fn open(directory: impl AsFd, name: &CStr) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    let regular = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile;
    if regular && !is_proc(&file) { Ok(file) } else { Err(Errno::INVAL) }
}

struct Search<'a> {
    finder: Finder<'a>,
    left: u32,
    matches: Vec<Match>,
    size: usize,
    buffer: Vec<u8>,
}

impl Search<'_> {
    /// A file that cannot be read to its end is searched as far as possible.
    fn file(&mut self, connection: &mut Connection, file: &OwnedFd, path: &str) -> Result<()> {
        let mut carried: Vec<u8> = Vec::new();
        let mut line = 1;
        let mut at_beginning = true;
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = rustix::io::read(file, buffer.as_mut_slice());
            self.buffer = buffer;
            let count = match read {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(_) => 0,
            };
            let bytes = self.buffer.get(..count).unwrap_or_default();
            if at_beginning && bytes.iter().take(BEGINNING).any(|byte| *byte == 0) {
                return Ok(());
            }
            at_beginning = false;
            carried.extend_from_slice(bytes);
            // Whole lines now, the rest with the next piece; at the end of the file the rest is a line.
            let whole = match memchr::memrchr(b'\n', &carried) {
                Some(end) => end + 1,
                None if count == 0 || carried.len() >= LONGEST_LINE => carried.len(),
                None => 0,
            };
            let whole = if count == 0 { carried.len() } else { whole };
            self.lines(connection, carried.get(..whole).unwrap_or_default(), path, &mut line)?;
            carried.drain(..whole);
            if count == 0 || self.left == 0 {
                return Ok(());
            }
        }
    }

    fn lines(&mut self, connection: &mut Connection, text: &[u8], path: &str, line: &mut u64) -> Result<()> {
        let mut begin = 0;
        while self.left > 0
            && let Some(place) = self.finder.find(text.get(begin..).unwrap_or_default())
        {
            let place = begin + place;
            let passed = text.get(begin..place).unwrap_or_default();
            *line += memchr::memchr_iter(b'\n', passed).count() as u64;
            let start = memchr::memrchr(b'\n', text.get(..place).unwrap_or_default()).map_or(0, |end| end + 1);
            let rest = text.get(place..).unwrap_or_default();
            let end = memchr::memchr(b'\n', rest).map_or(text.len(), |end| place + end);
            let shown = text.get(start..end.min(start + SHOWN)).unwrap_or_default();
            let shown = String::from_utf8_lossy(shown.strip_suffix(b"\r").unwrap_or(shown)).into_owned();
            self.size += path.len() + shown.len();
            self.matches.push(Match { path: path.to_owned(), line: *line, text: shown });
            self.left -= 1;
            if self.size >= 64 << 10 || self.matches.len() >= 256 {
                self.flush(connection)?;
            }
            if end >= text.len() {
                return Ok(());
            }
            begin = end + 1;
            *line += 1;
        }
        *line += memchr::memchr_iter(b'\n', text.get(begin..).unwrap_or_default()).count() as u64;
        Ok(())
    }

    fn flush(&mut self, connection: &mut Connection) -> Result<()> {
        self.size = 0;
        if self.matches.is_empty() {
            return Ok(());
        }
        connection.event(&Event::Matches { matches: std::mem::take(&mut self.matches) })
    }
}
