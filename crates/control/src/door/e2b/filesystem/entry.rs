//! A file as the dialect describes it.
//!
//! A symlink reports the kind and mode of what it leads to, its own permission string, and where it ends.

use cove_protocol::file::{Entry, FileKind};
use futures::{StreamExt, TryStreamExt};

use super::super::connect::Ending;
use super::super::envd::{Envd, clean, parent};
use super::super::files::metadata;
use super::super::message::filesystem::{EntryInfo, FileType, Timestamp};
use super::{follow, lstat};

/// Links of a listing that are followed at the same time.
const AT_ONCE: usize = 16;

/// A chain of links is followed so far; the kernel gives up at 40.
const MAX_LINKS: usize = 40;

pub async fn describe(envd: &Envd, entry: Entry) -> Result<EntryInfo, Ending> {
    if entry.kind != FileKind::Symlink {
        return Ok(plain(entry));
    }
    // A link that leads in a circle, or through what is no directory, is as good as one that leads nowhere: it must not
    // take the whole listing with it.
    let led_to = match follow(envd, &entry.path).await {
        Err(Ending::Rpc(_)) => None,
        followed => followed?,
    };
    let end = end_of(envd, &entry).await?;
    let mut info = plain(entry);
    info.symlink_target = Some(end);
    if let Some(target) = led_to {
        info.r#type = file_type(target.kind) as i32;
        info.mode = target.mode;
    }
    Ok(info)
}

/// In the order given; only links cost a question of their own.
pub async fn describe_all(envd: &Envd, entries: Vec<Entry>) -> Result<Vec<EntryInfo>, Ending> {
    futures::stream::iter(entries).map(|entry| describe(envd, entry)).buffered(AT_ONCE).try_collect().await
}

/// Where a chain of links ends, whether something is there or not.
async fn end_of(envd: &Envd, link: &Entry) -> Result<String, Ending> {
    let mut at = link.path.clone();
    let mut target = link.target.clone();
    let mut passed = std::collections::HashSet::new();
    for _ in 0..MAX_LINKS {
        let Some(next) = target.filter(|_| passed.insert(at.clone())) else { break };
        at = if next.starts_with('/') { clean(&next) } else { clean(&format!("{}/{next}", parent(&at))) };
        target = lstat(envd, &at).await.ok().flatten().and_then(|entry| entry.target);
    }
    Ok(at)
}

fn plain(entry: Entry) -> EntryInfo {
    EntryInfo {
        permissions: permissions(entry.kind, entry.mode),
        name: entry.name,
        r#type: file_type(entry.kind) as i32,
        path: entry.path,
        size: size(entry.kind, entry.size),
        mode: entry.mode & 0o777,
        owner: entry.owner,
        group: entry.group,
        modified_time: Some(Timestamp::from_milliseconds(entry.modified_ms)),
        symlink_target: None,
        metadata: metadata::shown(&entry.metadata),
    }
}

/// A directory's size means something else on every filesystem; clients know the one whose directories have a block.
fn size(kind: FileKind, size: u64) -> i64 {
    const BLOCK: u64 = 4096;
    let shown = if kind == FileKind::Directory { size.max(BLOCK) } else { size };
    i64::try_from(shown).unwrap_or(i64::MAX)
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::File,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Other => FileType::Unspecified,
    }
}

/// As the original's runtime prints a mode: letters for what is special, then three times `rwx`.
fn permissions(kind: FileKind, mode: u32) -> String {
    let mut text = String::new();
    match kind {
        FileKind::Directory => text.push('d'),
        FileKind::Symlink => text.push('L'),
        FileKind::Other => text.push('?'),
        FileKind::File => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> index) != 0 { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_printed_as_clients_compare_them() {
        for (kind, mode, wanted) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o755, "drwxr-xr-x"),
            (FileKind::Directory, 0o1777, "dtrwxrwxrwx"),
            (FileKind::Symlink, 0o777, "Lrwxrwxrwx"),
            (FileKind::File, 0o4755, "urwxr-xr-x"),
        ] {
            assert_eq!(permissions(kind, mode), wanted);
        }
    }
}
