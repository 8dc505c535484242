//! Mode and owner.

use std::os::fd::AsRawFd;

use cove_protocol::{Failure, FailureKind};
use rustix::fs::{AtFlags, CWD, Mode, chmodat, chownat};
use rustix::process::{Gid, Uid};

use super::actor::Actor;
use super::entry;
use super::place::Place;
use crate::connection::Connection;
use crate::failure::{During, Result};
use crate::guest::Guest;

pub struct Wanted<'a> {
    pub path: &'a str,
    pub user: Option<&'a str>,
    pub mode: Option<u32>,
    pub owner: Option<&'a str>,
    pub group: Option<&'a str>,
}

pub fn set(guest: &Guest, connection: &mut Connection, wanted: &Wanted<'_>) -> Result<()> {
    let actor = Actor::become_user(guest, wanted.user)?;
    let place = Place::find(&actor, wanted.path)?;
    let shown = place.path.clone();
    let mut place = place.through_links()?;
    place.path = shown;
    // Held from here on: another file put at the name meanwhile is not touched.
    let file = place.hold().during(format!("open {}", place.path))?;
    // The file is there: what is not is a wrong argument, not a missing file.
    let wrong = |failure: Failure| Failure::new(FailureKind::InvalidArgument, failure.message);
    let owner = wanted.owner.map(|owner| actor.users.user_id(owner)).transpose().map_err(wrong)?.map(Uid::from_raw);
    let group = wanted.group.map(|group| actor.users.group_id(group)).transpose().map_err(wrong)?.map(Gid::from_raw);
    if owner.is_some() || group.is_some() {
        chownat(&file, c"", owner, group, AtFlags::EMPTY_PATH).during(format!("change the owner of {}", place.path))?;
    }
    if let Some(mode) = wanted.mode {
        // fchmod(2) refuses a descriptor that is only held; its name in /proc leads to exactly this file.
        let held = format!("/proc/self/fd/{}", file.as_raw_fd());
        chmodat(CWD, held, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())
            .during(format!("change the mode of {}", place.path))?;
    }
    entry::reply(connection, &actor, &place, "stat")
}
