//! Users of an image: found in its own files, and made where a build wants one that is not there.
//!
//! Nothing of the image is run for it, so it works in images without a shell.

use cove_protocol::file::WriteMode;
use cove_protocol::{FailureKind, Reply, Request};

use super::workshop::Workshop;
use crate::Error;
use crate::guest::GuestError;

/// Ids below are the system's own.
const FIRST_ID: u32 = 1000;
/// A sandbox has so many.
const LAST_ID: u32 = 60_000;

/// The lines of `/etc/passwd` and `/etc/group` that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct People {
    users: Vec<(String, u32, u32)>,
    groups: Vec<(String, u32)>,
}

impl People {
    pub async fn of(workshop: &Workshop) -> Result<People, Error> {
        let (users, groups) = (workshop.read_text("/etc/passwd").await?, workshop.read_text("/etc/group").await?);
        Ok(People::parse(&users, &groups))
    }

    fn parse(users: &str, groups: &str) -> People {
        let user = |line: &str| {
            let parts: Vec<&str> = line.split(':').collect();
            Some((parts.first()?.to_string(), parts.get(2)?.parse().ok()?, parts.get(3)?.parse().ok()?))
        };
        let group = |line: &str| {
            let parts: Vec<&str> = line.split(':').collect();
            Some((parts.first()?.to_string(), parts.get(2)?.parse().ok()?))
        };
        People { users: users.lines().filter_map(user).collect(), groups: groups.lines().filter_map(group).collect() }
    }

    pub fn has(&self, user: &str) -> bool {
        self.users.iter().any(|(name, ..)| name == user)
    }

    /// `user`, `user:group`, or numbers; root's where it is `root`. The sentence says who is unknown.
    pub fn owner(&self, owner: &str) -> Result<(u32, u32), String> {
        let (user, group) = match owner.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (owner, None),
        };
        let known = self.users.iter().find(|(name, ..)| name == user);
        let (uid, primary) = match (known, user.parse::<u32>()) {
            (Some((_, uid, gid)), _) => (*uid, *gid),
            (None, Ok(number)) => {
                let gid = self.users.iter().find(|(_, uid, _)| *uid == number).map_or(0, |(_, _, gid)| *gid);
                (number, gid)
            }
            (None, Err(_)) if user == "root" => (0, 0),
            (None, Err(_)) => return Err(format!("invalid username: '{user}'")),
        };
        let gid = match group {
            None => primary,
            Some(group) => {
                let known = self.groups.iter().find(|(name, _)| name == group).map(|(_, gid)| *gid);
                // A user's own group has the user's name, in images that list no groups too.
                let own = (group == user).then_some(primary);
                known.or_else(|| group.parse().ok()).or(own).ok_or_else(|| format!("invalid group: '{group}'"))?
            }
        };
        Ok((uid, gid))
    }

    fn free_id(&self) -> Option<u32> {
        let taken = |id: u32| {
            self.users.iter().any(|(_, uid, gid)| *uid == id || *gid == id)
                || self.groups.iter().any(|(_, gid)| *gid == id)
        };
        (FIRST_ID..LAST_ID).find(|id| !taken(*id))
    }
}

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    Ordinary,
    /// Anything, without a password.
    Sudo,
}

/// Makes the user where the image has none of that name. Returns whether anything changed.
pub async fn ensure_user(workshop: &Workshop, name: &str, power: Power) -> Result<bool, Error> {
    let people = People::of(workshop).await?;
    let mut changed = false;
    if !people.has(name) && name.parse::<u32>().is_err() {
        let id = people.free_id().ok_or_else(|| Error::invalid("user", "the image has no free user id"))?;
        let shell = if exists(workshop, "/bin/bash").await? { "/bin/bash" } else { "/bin/sh" };
        append(workshop, "/etc/passwd", &format!("{name}:x:{id}:{id}::/home/{name}:{shell}"), 0o644).await?;
        append(workshop, "/etc/group", &format!("{name}:x:{id}:"), 0o644).await?;
        if exists(workshop, "/etc/shadow").await? {
            append(workshop, "/etc/shadow", &format!("{name}:*:19000:0:99999:7:::"), 0o640).await?;
        }
        let home = format!("/home/{name}");
        make_directory(workshop, &home).await?;
        set_owner(workshop, &home, id, id).await?;
        changed = true;
    }
    if power == Power::Sudo {
        // A name with a dot is passed over by sudo.
        let path = format!("/etc/sudoers.d/cove-{}", name.replace('.', "_"));
        if !exists(workshop, &path).await? {
            let rule = format!("{name} ALL=(ALL:ALL) NOPASSWD:ALL\n");
            write(workshop, &path, rule.as_bytes(), WriteMode::Replace, 0o440).await?;
            changed = true;
        }
    }
    Ok(changed)
}

async fn exists(workshop: &Workshop, path: &str) -> Result<bool, Error> {
    let stat = Request::Stat { path: path.into(), user: Some("root".into()), follow: true };
    match workshop.guest().call(&stat).await {
        Ok(_) => Ok(true),
        Err(GuestError::Failed(failure))
            if matches!(failure.kind, FailureKind::NotFound | FailureKind::NotADirectory) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// A line at the end of a file, which keeps its owner and mode.
async fn append(workshop: &Workshop, path: &str, line: &str, mode: u32) -> Result<(), Error> {
    let text = workshop.read_text(path).await?;
    let begun = text.is_empty() || text.ends_with('\n');
    let line = if begun { format!("{line}\n") } else { format!("\n{line}\n") };
    write(workshop, path, line.as_bytes(), WriteMode::Append, mode).await
}

pub(super) async fn write(
    workshop: &Workshop,
    path: &str,
    bytes: &[u8],
    how: WriteMode,
    mode: u32,
) -> Result<(), Error> {
    let request = Request::Write { path: path.into(), user: Some("root".into()), how, mode: Some(mode), parents: true };
    let mut operation = workshop.guest().send(&request).await?;
    operation.to.data(bytes).await?;
    operation.to.end().await?;
    operation.reply().await?;
    Ok(())
}

/// Returns whether it was made now.
pub(super) async fn make_directory(workshop: &Workshop, path: &str) -> Result<bool, Error> {
    let request = Request::MakeDirectory { path: path.into(), user: Some("root".into()), mode: Some(0o755) };
    match workshop.guest().call(&request).await? {
        Reply::Made { existed, .. } => Ok(!existed),
        other => Err(GuestError::Protocol(format!("make a directory answered {other:?}")).into()),
    }
}

pub(super) async fn set_owner(workshop: &Workshop, path: &str, uid: u32, gid: u32) -> Result<(), Error> {
    let request = Request::SetAttributes {
        path: path.into(),
        user: Some("root".into()),
        mode: None,
        owner: Some(uid.to_string()),
        group: Some(gid.to_string()),
    };
    workshop.guest().call(&request).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nada:x:1000:1001::/home/ada:/bin/sh\nbroken\n::\n";
    const GROUPS: &str = "root:x:0:\nstaff:x:50:ada\nada:x:1001:\n";

    #[test]
    fn owners_are_names_of_the_image_or_numbers() {
        let people = People::parse(USERS, GROUPS);
        assert_eq!(people.owner("ada"), Ok((1000, 1001)));
        assert_eq!(people.owner("ada:staff"), Ok((1000, 50)));
        assert_eq!(people.owner("7:8"), Ok((7, 8)));
        assert_eq!(people.owner("1000"), Ok((1000, 1001)));
        assert_eq!(people.owner("root123"), Err("invalid username: 'root123'".into()));
        assert_eq!(people.owner("ada:nobody"), Err("invalid group: 'nobody'".into()));
        assert_eq!(People::default().owner("root:root"), Ok((0, 0)), "an image without files has root");
    }

    #[test]
    fn a_new_user_takes_nobodys_number() {
        assert_eq!(People::parse(USERS, GROUPS).free_id(), Some(1002));
        assert_eq!(People::default().free_id(), Some(1000));
    }
}
