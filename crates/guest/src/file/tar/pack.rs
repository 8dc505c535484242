//! An archive of a tree, written as it is read.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use cove_protocol::frame::BULK;
use cove_protocol::{Kind, Reply};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::BLOCK;
use super::header::{Header, Type, encode};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno};
use crate::file::actor::Actor;
use crate::file::list::begin;
use crate::file::place::Place;
use crate::guest::Guest;

pub fn pack(guest: &Guest, connection: &mut Connection, path: &str, user: Option<&str>) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let shown = Place::find(&actor, path)?;
    let place = Place::find(&actor, path)?.through_links()?;
    let stat = place.stat().during(format!("pack {}", place.path))?;
    let mut archive = Archive { connection, buffer: Vec::new() };
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let (_, mut walk) = begin(&actor, path, u32::MAX, "pack")?;
        archive.connection.reply(&Reply::Done)?;
        while let Some(found) = walk.advance() {
            archive.add(walk.directory(), &found.name, found.path_bytes())?;
        }
        if walk.is_cut_short() {
            return Err(from_errno(Errno::NAMETOOLONG, format!("pack {}: its directories lie too deep", place.path)));
        }
    } else {
        archive.connection.reply(&Reply::Done)?;
        let name = shown.path.rsplit('/').next().unwrap_or_default().to_owned();
        archive.add(place.directory.as_fd(), &place.name, name.as_bytes())?;
    }
    // Two blocks of zeros end an archive.
    archive.put(&[0; 2 * BLOCK])?;
    archive.flush()?;
    connection.end()
}

struct Archive<'a> {
    connection: &'a mut Connection,
    buffer: Vec<u8>,
}

impl Archive<'_> {
    /// Adds one file. Files that are gone or cannot be read are left out; so are sockets and devices.
    fn add(&mut self, directory: impl AsFd, name: &CStr, path: &[u8]) -> Result<()> {
        let Ok(stat) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        let mut header = Header {
            path: path.to_vec(),
            link: Vec::new(),
            kind: Type::File,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid.into(),
            gid: stat.st_gid.into(),
            size: 0,
            modified: stat.st_mtime,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return self.add_file(directory, name, header),
            FileType::Directory => {
                header.kind = Type::Directory;
                header.path.push(b'/');
            }
            FileType::Symlink => {
                let Ok(target) = readlinkat(&directory, name, Vec::new()) else { return Ok(()) };
                header.kind = Type::Symlink;
                header.link = target.into_bytes();
            }
            FileType::Fifo => header.kind = Type::Fifo,
            _ => return Ok(()),
        }
        self.put(&encode(&header))
    }

    fn add_file(&mut self, directory: impl AsFd, name: &CStr, mut header: Header) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Ok(file) = openat(directory, name, flags, Mode::empty()) else { return Ok(()) };
        let Ok(stat) = rustix::fs::fstat(&file) else { return Ok(()) };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        header.size = size(&stat);
        self.put(&encode(&header))?;
        self.put_contents(&file, header.size)
    }

    /// Exactly as many bytes as the header said, whatever the file does meanwhile.
    fn put_contents(&mut self, file: &OwnedFd, size: u64) -> Result<()> {
        let mut left = size;
        let mut buffer = vec![0; BULK];
        let mut readable = true;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BULK).min(BULK);
            let room = buffer.get_mut(..most).unwrap_or_default();
            let count = match rustix::io::read(file, &mut *room) {
                _ if !readable => most,
                Err(Errno::INTR) => continue,
                Ok(count @ 1..) => count,
                Ok(0) | Err(_) => {
                    readable = false;
                    room.fill(0);
                    most
                }
            };
            self.put(buffer.get(..count).unwrap_or_default())?;
            left = left.saturating_sub(count as u64);
        }
        let padding = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0);
        self.put([0; BLOCK].get(..padding).unwrap_or_default())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BULK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        for chunk in self.buffer.chunks(2 * BULK) {
            self.connection.send(Kind::Data, chunk)?;
        }
        self.buffer.clear();
        Ok(())
    }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}
