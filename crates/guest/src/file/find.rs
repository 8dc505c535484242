//! Finding files by name.

use cove_protocol::Reply;

use super::actor::Actor;
use super::entry;
use super::glob::Glob;
use super::list::{Batch, begin, below};
use crate::connection::Connection;
use crate::failure::Result;
use crate::guest::Guest;

/// How many files are searched between two checks that the host is still there.
pub const LOOK_EVERY: u32 = 256;

pub fn find(
    guest: &Guest,
    connection: &mut Connection,
    path: &str,
    pattern: &str,
    user: Option<&str>,
    limit: Option<u32>,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let (place, mut walk) = begin(&actor, path, u32::MAX, "search")?;
    connection.reply(&Reply::Done)?;
    let names = actor.users.names();
    let glob = Glob::new(pattern);
    let mut left = limit.unwrap_or(u32::MAX);
    let mut batch = Batch::default();
    let mut passed = 0u32;
    while left > 0
        && let Some(found) = walk.advance()
    {
        passed = passed.wrapping_add(1);
        if passed.is_multiple_of(LOOK_EVERY) && connection.is_gone() {
            return Ok(());
        }
        if !glob.matches(&found.name.to_string_lossy()) {
            continue;
        }
        if let Ok(entry) = entry::look(walk.directory(), &found.name, &below(&place.path, &found.path()), &names) {
            batch.add(connection, entry)?;
            left -= 1;
        }
    }
    batch.flush(connection)?;
    connection.end()
}
