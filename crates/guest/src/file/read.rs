//! Reading a file.

use cove_protocol::Kind;
use cove_protocol::Reply;
use cove_protocol::frame::FILE_BULK;
use rustix::io::{Errno, pread};

use super::actor::Actor;
use super::place::{Place, open_to_read};
use super::{entry, metadata};
use crate::connection::Connection;
use crate::failure::{Result, from_errno};
use crate::guest::Guest;

pub fn read(
    guest: &Guest,
    connection: &mut Connection,
    path: &str,
    user: Option<&str>,
    mut offset: u64,
    length: Option<u64>,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let place = Place::find(&actor, path)?;
    let (file, stat) = open_to_read(&place, "read")?;
    let mut entry = entry::describe(&stat, &place.path, &actor.users.names());
    entry.metadata = metadata::of(&file);
    connection.reply(&Reply::Entry { entry })?;
    let mut left = length.unwrap_or(u64::MAX);
    let mut buffer = vec![0; FILE_BULK];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(FILE_BULK).min(FILE_BULK);
        // To the end and not to the size: files of /proc have none, and files grow.
        let count = match pread(&file, buffer.get_mut(..most).unwrap_or_default(), offset) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(from_errno(errno, format!("read {}", place.path))),
        };
        connection.send(Kind::Data, buffer.get(..count).unwrap_or_default())?;
        offset = offset.saturating_add(count as u64);
        left = left.saturating_sub(count as u64);
    }
    connection.end()
}
