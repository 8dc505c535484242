//! Replacing a text in files.

use cove_protocol::Reply;
use cove_protocol::file::{Replaced, WriteMode};
use memchr::memmem::Finder;
use rustix::io::Errno;

use super::actor::Actor;
use super::place::{Place, open_to_read};
use super::write::Target;
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno, invalid};
use crate::guest::Guest;

/// A longer file is not held in memory for this.
const LONGEST: usize = 32 << 20;

pub fn replace(
    guest: &Guest,
    connection: &mut Connection,
    paths: &[String],
    pattern: &str,
    replacement: &str,
    user: Option<&str>,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    if pattern.is_empty() {
        return Err(invalid("replace: the text to look for is empty"));
    }
    let files = paths
        .iter()
        .map(|path| match replace_in(&actor, path, pattern, replacement) {
            Ok(count) => Replaced { path: path.clone(), count, error: None },
            Err(failure) => Replaced { path: path.clone(), count: 0, error: Some(failure.message) },
        })
        .collect();
    connection.reply(&Reply::Replaced { files })
}

fn replace_in(actor: &Actor, path: &str, pattern: &str, replacement: &str) -> Result<u64> {
    let place = Place::find(actor, path)?.through_links()?;
    let (file, stat) = open_to_read(&place, "read")?;
    let too_long = || invalid(format!("replace in {}: the file is longer than {LONGEST} bytes", place.path));
    if usize::try_from(stat.st_size).unwrap_or(usize::MAX) > LONGEST {
        return Err(too_long());
    }
    let mut text = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match rustix::io::read(&file, buffer.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if text.len() > LONGEST => return Err(too_long()),
            Ok(count) => text.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(from_errno(errno, format!("read {}", place.path))),
        }
    }
    let finder = Finder::new(pattern);
    let count = finder.find_iter(&text).count() as u64;
    if count == 0 {
        return Ok(0);
    }
    let step = format!("write {}", place.path);
    let mut target = Target::open(&place, WriteMode::Replace, None)?;
    let mut begin = 0;
    for at in finder.find_iter(&text) {
        target.write(text.get(begin..at).unwrap_or_default()).during(&step)?;
        target.write(replacement.as_bytes()).during(&step)?;
        begin = at + pattern.len();
    }
    target.write(text.get(begin..).unwrap_or_default()).during(&step)?;
    target.finish().during(&step)?;
    Ok(count)
}
