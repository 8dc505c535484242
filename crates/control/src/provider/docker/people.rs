//! The user that templates count on, in images that do not have it.
//!
//! Nothing of the image is run for it, so it works in images without a shell.

use cove_protocol::file::WriteMode;
use cove_protocol::{FailureKind, Request};

use crate::guest::{Guest, GuestError, Item};

/// Commands of `base` run as this one. Any other must be the image's own.
pub const USUAL: &str = "user";

/// What is written for it, with the folders that it lies in.
pub const WRITTEN: [&str; 7] =
    ["/etc", "/etc/group", "/etc/passwd", "/etc/sudoers.d", "/etc/sudoers.d/cove-user", "/home", "/home/user"];

const ROOT: &str = "root";
/// Bytes of a list of users.
const LIST: u64 = 1 << 20;
/// Numbers that belong to people; what is below is the system's.
const FIRST: u32 = 1000;
const LAST: u32 = 60_000;

/// Makes the usual user where the image has none of that name.
pub async fn ensure_usual(guest: &Guest) -> Result<(), GuestError> {
    let (users, groups) = (read(guest, "/etc/passwd").await?, read(guest, "/etc/group").await?);
    if names(&users).any(|name| name == USUAL) {
        return Ok(());
    }
    let taken: Vec<u32> = numbers(&users).chain(numbers(&groups)).collect();
    let Some(id) = (FIRST..LAST).find(|id| !taken.contains(id)) else { return Ok(()) };
    let shell = if exists(guest, "/bin/bash").await? { "/bin/bash" } else { "/bin/sh" };
    append(guest, "/etc/passwd", &users, &format!("{USUAL}:x:{id}:{id}::/home/{USUAL}:{shell}")).await?;
    append(guest, "/etc/group", &groups, &format!("{USUAL}:x:{id}:")).await?;
    let home = format!("/home/{USUAL}");
    let user = Some(ROOT.to_owned());
    guest.call(&Request::MakeDirectory { path: home.clone(), user: user.clone(), mode: Some(0o755) }).await?;
    let (owner, group) = (Some(id.to_string()), Some(id.to_string()));
    guest.call(&Request::SetAttributes { path: home, user: user.clone(), mode: None, owner, group }).await?;
    if exists(guest, "/etc/sudoers.d").await? {
        let rule = format!("{USUAL} ALL=(ALL:ALL) NOPASSWD:ALL\n");
        write(guest, "/etc/sudoers.d/cove-user", rule.as_bytes(), WriteMode::Replace, 0o440).await?;
    }
    Ok(())
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.split(':').next())
}

fn numbers(list: &str) -> impl Iterator<Item = u32> {
    list.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok())
}

async fn read(guest: &Guest, path: &str) -> Result<String, GuestError> {
    let request = Request::Read { path: path.into(), user: Some(ROOT.into()), offset: 0, length: Some(LIST) };
    let (_, operation) = match guest.open(&request).await {
        Err(GuestError::Failed(failure)) if is_absence(failure.kind) => return Ok(String::new()),
        opened => opened?,
    };
    let mut operation = operation.gathered();
    let mut text = Vec::new();
    while let Some(item) = operation.from.next().await? {
        if let Item::Data(bytes) = item {
            text.extend(bytes);
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

async fn exists(guest: &Guest, path: &str) -> Result<bool, GuestError> {
    match guest.call(&Request::Stat { path: path.into(), user: Some(ROOT.into()), follow: true }).await {
        Ok(_) => Ok(true),
        Err(GuestError::Failed(failure)) if is_absence(failure.kind) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_absence(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::IsADirectory)
}

async fn append(guest: &Guest, path: &str, before: &str, line: &str) -> Result<(), GuestError> {
    let break_before = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    write(guest, path, format!("{break_before}{line}\n").as_bytes(), WriteMode::Append, 0o644).await
}

async fn write(guest: &Guest, path: &str, bytes: &[u8], how: WriteMode, mode: u32) -> Result<(), GuestError> {
    let user = Some(ROOT.to_owned());
    let request = Request::Write { path: path.into(), user, how, mode: Some(mode), parents: true };
    let mut operation = guest.send(&request).await?;
    operation.to.data(bytes).await?;
    operation.to.end().await?;
    operation.reply().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_without_what_is_broken_in_them() {
        let users = "root:x:0:0::/root:/bin/sh\nada:x:1000:1001::/home/ada:/bin/sh\nbroken\n::\n";
        assert_eq!(names(users).collect::<Vec<_>>(), ["root", "ada", "broken", ""]);
        assert_eq!(numbers(users).collect::<Vec<_>>(), [0, 1000]);
    }
}
