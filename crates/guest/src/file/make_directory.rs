//! Making directories, with those above.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use cove_protocol::Reply;
use rustix::fs::{CWD, Mode, mkdirat};
use rustix::io::Errno;

use super::actor::Actor;
use super::entry;
use super::place::{Place, open_directory};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno, invalid};
use crate::guest::Guest;

const NEW_MODE: u32 = 0o755;

pub fn make_directory(
    guest: &Guest,
    connection: &mut Connection,
    path: &str,
    user: Option<&str>,
    mode: Option<u32>,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let path = actor.absolute(path)?;
    let made = make(&path, mode.unwrap_or(NEW_MODE))?;
    let mut place = Place::find(&actor, &path)?;
    let shown = place.path.clone();
    place = place.through_links()?;
    place.path = shown;
    connection.reply(&Reply::Made { entry: entry::entry(&actor, &place, "stat")?, existed: made == Made::Before })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Now,
    Before,
}

/// Makes the directories that a file's path needs.
pub fn make_parents(actor: &Actor, path: &str) -> Result<()> {
    let path = actor.absolute(path)?;
    match path.trim_end_matches('/').rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => make(parent, NEW_MODE).map(drop),
        _ => Ok(()),
    }
}

/// Each step is opened before the next is made in it; directories above get the usual mode.
pub fn make(path: &str, mode: u32) -> Result<Made> {
    let step = || format!("make directory {path}");
    match open_directory(CWD, path) {
        Ok(_) => return Ok(Made::Before),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(from_errno(errno, step())),
    }
    let mut above: OwnedFd = open_directory(CWD, "/").during(step())?;
    let mut made = Made::Before;
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".").peekable();
    while let Some(part) = parts.next() {
        let mode = if parts.peek().is_none() { mode } else { NEW_MODE };
        let name = CString::new(part).map_err(|_| invalid(format!("{} holds a zero byte", step())))?;
        made = match mkdirat(&above, &name, Mode::from_raw_mode(mode & 0o7777)) {
            Ok(()) => Made::Now,
            Err(Errno::EXIST) => Made::Before,
            // A read-only or foreign directory says no before it says that the name is there.
            Err(errno) => match open_directory(&above, part) {
                Ok(_) => Made::Before,
                Err(_) => return Err(from_errno(errno, step())),
            },
        };
        above = open_directory(&above, part).during(step())?;
    }
    Ok(made)
}
