//! Listing a directory, in portions that fit a frame.

use cove_protocol::file::Entry;
use cove_protocol::{Event, Reply};
use rustix::fs::{Mode, OFlags};

use super::actor::Actor;
use super::entry;
use super::place::{Place, open_beneath};
use super::walk::Walk;
use crate::connection::Connection;
use crate::failure::{During, Result};
use crate::guest::Guest;

pub fn list(guest: &Guest, connection: &mut Connection, path: &str, user: Option<&str>, depth: u32) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let (place, mut walk) = begin(&actor, path, depth, "list")?;
    connection.reply(&Reply::Done)?;
    let names = actor.users.names();
    let mut batch = Batch::default();
    while let Some(found) = walk.advance() {
        let path = below(&place.path, &found.path());
        // A file that was removed meanwhile is not listed.
        if let Ok(entry) = entry::look(walk.directory(), &found.name, &path, &names) {
            batch.add(connection, entry)?;
        }
    }
    batch.flush(connection)?;
    connection.end()
}

/// Opens the directory, which may be a symlink to one, and begins the walk.
pub fn begin(actor: &Actor, path: &str, depth: u32, step: &str) -> Result<(Place, Walk)> {
    let place = Place::find(actor, path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let directory = open_beneath(&place.directory, &place.name, flags, Mode::empty());
    let directory = directory.during(format!("{step} {}", place.path))?;
    let walk = Walk::begin(&directory, depth).during(format!("{step} {}", place.path))?;
    Ok((place, walk))
}

/// A path in a directory, as it is reported.
pub fn below(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Entries on their way.
#[derive(Default)]
pub struct Batch {
    entries: Vec<Entry>,
    size: usize,
}

impl Batch {
    const MOST: usize = 256;
    const LONGEST: usize = 64 << 10;

    pub fn add(&mut self, connection: &mut Connection, entry: Entry) -> Result<()> {
        // As many as six bytes of JSON for one of a name: far from a frame's limit even so.
        self.size += entry.path.len() + entry.name.len() + entry.target.as_ref().map_or(0, String::len);
        self.entries.push(entry);
        if self.entries.len() >= Self::MOST || self.size >= Self::LONGEST {
            return self.flush(connection);
        }
        Ok(())
    }

    pub fn flush(&mut self, connection: &mut Connection) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.size = 0;
        connection.event(&Event::Entries { entries: std::mem::take(&mut self.entries) })
    }
}
