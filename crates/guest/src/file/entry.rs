//! What is reported about a file.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::AsFd;

use cove_protocol::Reply;
use cove_protocol::file::{Entry, FileKind};
use rustix::fs::{AtFlags, FileType, Stat, readlinkat, statat};
use rustix::io::Errno;

use super::actor::Actor;
use super::metadata;
use super::place::Place;
use crate::connection::Connection;
use crate::failure::{During, Result};
use crate::guest::Guest;
use crate::users::Names;

pub fn stat(guest: &Guest, connection: &mut Connection, path: &str, user: Option<&str>, follow: Follow) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let mut place = Place::find(&actor, path)?;
    if follow == Follow::Links {
        let shown = place.path.clone();
        place = place.through_links()?;
        place.path = shown;
    }
    reply(connection, &actor, &place, "stat")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    Links,
    Nothing,
}

impl Follow {
    pub fn of(follow: bool) -> Self {
        if follow { Follow::Links } else { Follow::Nothing }
    }
}

/// Replies with the file as it is now.
pub fn reply(connection: &mut Connection, actor: &Actor, place: &Place, step: &str) -> Result<()> {
    connection.reply(&Reply::Entry { entry: entry(actor, place, step)? })
}

pub fn entry(actor: &Actor, place: &Place, step: &str) -> Result<Entry> {
    look(&place.directory, &place.name, &place.path, &actor.users.names()).during(format!("{step} {}", place.path))
}

/// Looks at a name in a directory without following it.
pub fn look(directory: impl AsFd, name: &CStr, path: &str, names: &Names<'_>) -> std::result::Result<Entry, Errno> {
    let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut entry = describe(&stat, path, names);
    if entry.kind == FileKind::Symlink {
        let target = readlinkat(&directory, name, Vec::new());
        entry.target = target.ok().map(|target| target.to_string_lossy().into_owned());
    }
    if matches!(entry.kind, FileKind::File | FileKind::Directory) {
        entry.metadata = metadata::read(&directory, name);
    }
    Ok(entry)
}

pub fn describe(stat: &Stat, path: &str, names: &Names<'_>) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/");
    Entry {
        name: name.to_owned(),
        path: path.to_owned(),
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        modified_ms: milliseconds(stat.st_mtime, stat.st_mtime_nsec),
        changed_ms: milliseconds(stat.st_ctime, stat.st_ctime_nsec),
        accessed_ms: milliseconds(stat.st_atime, stat.st_atime_nsec),
        target: None,
        inode: stat.st_ino,
        metadata: BTreeMap::new(),
    }
}

fn milliseconds(seconds: i64, nanoseconds: impl TryInto<i64>) -> i64 {
    seconds.saturating_mul(1000).saturating_add(nanoseconds.try_into().unwrap_or(0) / 1_000_000)
}
