//! Extended attributes of the `user.` namespace: notes of programs about files (xattr(7)).

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cove_protocol::file::MAX_METADATA;
use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, listxattr, openat, removexattr, setxattr};
use rustix::io::Errno;

use super::actor::Actor;
use super::entry;
use super::place::Place;
use crate::connection::Connection;
use crate::failure::{During, Result, invalid};
use crate::guest::Guest;

const NAMESPACE: &str = "user.";

/// The kernel's own bounds for a list of names and for a value.
const LONGEST_LIST: usize = 64 << 10;

/// Those of a name in a directory; none where they cannot be read.
pub fn read(directory: impl AsFd, name: &CStr) -> BTreeMap<String, String> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty()).map(|file| of(&file)).unwrap_or_default()
}

pub fn of(file: &OwnedFd) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut size = 0;
    for name in names(file).unwrap_or_default() {
        let mut value = vec![0; MAX_METADATA];
        let Some(key) = name.strip_prefix(NAMESPACE) else { continue };
        let Ok(length) = getxattr(held(file), name.as_str(), value.as_mut_slice()) else { continue };
        value.truncate(length);
        let Ok(value) = String::from_utf8(value) else { continue };
        size += key.len() + value.len();
        if size > MAX_METADATA {
            break;
        }
        found.insert(key.to_owned(), value);
    }
    found
}

/// Replaces everything under the prefix by `values`.
pub fn replace(
    guest: &Guest,
    connection: &mut Connection,
    path: &str,
    user: Option<&str>,
    prefix: &str,
    values: &BTreeMap<String, String>,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let shown = Place::find(&actor, path)?;
    let mut place = Place::find(&actor, path)?.through_links()?;
    place.path = shown.path;
    let step = format!("set metadata of {}", place.path);
    if values.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_METADATA {
        return Err(invalid(format!("{step}: longer than {MAX_METADATA} bytes in all")));
    }
    let file = place.hold().during(&step)?;
    let whole = |key: &str| format!("{NAMESPACE}{prefix}{key}");
    for name in names(&file).during(&step)? {
        let kept = values.keys().any(|key| whole(key) == name);
        if name.starts_with(&whole("")) && !kept {
            removexattr(held(&file), name.as_str()).during(&step)?;
        }
    }
    for (key, value) in values {
        setxattr(held(&file), whole(key).as_str(), value.as_bytes(), XattrFlags::empty())
            .during(format!("{step}: {key}"))?;
    }
    entry::reply(connection, &actor, &place, "stat")
}

fn names(file: &OwnedFd) -> std::result::Result<Vec<String>, Errno> {
    // Most files have none: ask with a little room first.
    let mut list = vec![0; 512];
    let length = match listxattr(held(file), list.as_mut_slice()) {
        Err(Errno::RANGE) => {
            list = vec![0; LONGEST_LIST];
            listxattr(held(file), list.as_mut_slice())?
        }
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let names = list.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    Ok(names
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// The calls for descriptors refuse one that is only held; its name in /proc leads to exactly this file.
fn held(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
