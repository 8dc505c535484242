//! Bytes in use on a disk.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::super::super::peers::said;

/// How often a disk that comes to rest is looked at, and how many looks in a row have to find the same.
const EVERY: Duration = Duration::from_millis(250);
const QUIET_LOOKS: u32 = 4;
const RESTED_WITHIN: Duration = Duration::from_secs(30);

/// Of the filesystem that holds `path`, when nothing changes any more: btrfs frees what was deleted by and by. One that does
/// not come to rest is told as it is.
pub async fn used_at_rest(path: &Path) -> Result<u64, String> {
    let began = Instant::now();
    let (mut last, mut quiet) = (tokio::task::block_in_place(|| used(path))?, 0);
    while quiet < QUIET_LOOKS && began.elapsed() < RESTED_WITHIN {
        tokio::time::sleep(EVERY).await;
        let now = tokio::task::block_in_place(|| used(path))?;
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

/// Of the filesystem that holds `path`, with everything written out.
fn used(path: &Path) -> Result<u64, String> {
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    let folder = File::open(path).map_err(told)?;
    rustix::fs::syncfs(&folder).map_err(|errno| told(errno.into()))?;
    let line = ["btrfs", "filesystem", "df", "--raw", &path.display().to_string()].map(str::to_owned);
    // Of another filesystem it is an error, and the counters below are exact there.
    if let Some(bytes) = said(&line, Stdio::null()).ok().and_then(|text| of_btrfs(&text)) {
        return Ok(bytes);
    }
    let space = rustix::fs::statvfs(path).map_err(|errno| told(errno.into()))?;
    Ok((space.f_blocks - space.f_bfree) * space.f_frsize)
}

/// Data and metadata, as often as they are stored: `Metadata, DUP: total=268435456, used=114688`. The counters of statfs(2)
/// move in whole blocks of space that btrfs has taken for metadata.
fn of_btrfs(text: &str) -> Option<u64> {
    let mut all = None;
    for line in text.lines() {
        let Some((kind, numbers)) = line.split_once(':') else { continue };
        let used: u64 = match numbers.split("used=").nth(1) {
            Some(number) => number.trim().parse().ok()?,
            None => continue,
        };
        // Set aside out of the metadata.
        if kind.starts_with("GlobalReserve") {
            continue;
        }
        let copies = if kind.ends_with("DUP") || kind.ends_with("RAID1") { 2 } else { 1 };
        all = Some(all.unwrap_or(0) + used * copies);
    }
    all
}

/// Of everything in a folder, without what is mounted below it.
pub fn below(folder: &Path) -> Result<u64, String> {
    let line = ["du", "-s", "-x", "-B1", &folder.display().to_string()].map(str::to_owned);
    let told = said(&line, Stdio::null())?;
    let number = told.split_whitespace().next().and_then(|word| word.parse().ok());
    number.ok_or_else(|| format!("du said {told:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btrfs_counts_what_is_stored_twice_twice() {
        let text = "Data, single: total=8388608, used=65536\nSystem, DUP: total=8388608, used=16384\n\
                    Metadata, DUP: total=33554432, used=114688\nGlobalReserve, single: total=3407872, used=4096\n";
        assert_eq!(of_btrfs(text), Some(65_536 + 2 * 16_384 + 2 * 114_688));
        assert_eq!(of_btrfs("ERROR: not a btrfs filesystem: /tmp\n"), None);
    }

    #[test]
    fn what_is_written_is_counted() {
        // In memory: the test need not wait for what others write to a disk.
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let before = below(place.path()).unwrap();
        std::fs::write(place.path().join("file"), vec![1u8; 4 << 20]).unwrap();
        assert!(below(place.path()).unwrap() >= before + (4 << 20));
        assert!(used(place.path()).unwrap() >= 4 << 20);
        let nothing = place.path().join("nothing");
        assert!(below(&nothing).is_err() && used(&nothing).is_err());
    }
}
