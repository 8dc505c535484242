//! What memory the machine has in use, and by how much that grew.
//!
//! No one line of /proc/meminfo is the truth. `MemAvailable` takes caches that could be given back for free memory, and rises when
//! somebody else ends; the counters of what is in use know nothing of page cache. Both are read, and the larger growth is reported.
//! Kernel objects are counted one by one where that is allowed (/proc/slabinfo): objects that fill the gaps which others left do not
//! show in the size of the whole.

use std::fs;
use std::time::{Duration, Instant};

/// Taken together: memory that is in use and belongs to somebody.
const USED: [&str; 6] = ["AnonPages", "Shmem", "PageTables", "SecPageTables", "Percpu", "Slab"];

/// How often a machine that comes to rest is looked at, and how many looks in a row have to find nothing given back.
const EVERY: Duration = Duration::from_millis(250);
const QUIET_LOOKS: u32 = 6;
/// Less than this between two looks is no change.
const STILL_KIB: u64 = 512;

#[derive(Debug, Clone, Copy)]
pub struct Memory {
    available: u64,
    used: u64,
    slab: u64,
    objects: Option<u64>,
}

impl Memory {
    /// `None` without /proc.
    pub fn look() -> Option<Memory> {
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        let slabinfo = fs::read_to_string("/proc/slabinfo").ok();
        Memory::of(&meminfo, slabinfo.as_deref())
    }

    fn of(meminfo: &str, slabinfo: Option<&str>) -> Option<Memory> {
        let line = |name: &str| line_of(meminfo, name);
        // Stacks lie in vmalloc's memory where the kernel is built so; then they are in both lines.
        let mapped = line("VmallocUsed").unwrap_or(0).max(line("KernelStack").unwrap_or(0));
        let used = USED.into_iter().filter_map(line).sum::<u64>() + mapped;
        Some(Memory {
            available: line("MemAvailable")?,
            used,
            slab: line("Slab")?,
            objects: slabinfo.map(|text| objects_bytes(text) >> 10),
        })
    }

    /// KiB in use now that were not before, by whichever account finds more. Less than nothing where memory was given back.
    pub fn growth_since(&self, before: &Memory) -> i64 {
        let less = |now: u64, then: u64| i64::try_from(now).unwrap_or(0) - i64::try_from(then).unwrap_or(0);
        let by_room = less(before.available, self.available);
        let by_pages = less(self.used, before.used);
        let objects = self.objects.zip(before.objects).map(|(now, then)| less(now, then));
        let by_objects = objects.map_or(by_pages, |objects| by_pages - less(self.slab, before.slab) + objects);
        by_room.max(by_pages).max(by_objects)
    }

    /// What the kernel gives back behind the back of those who freed it.
    fn is_given_back_since(&self, before: &Memory) -> bool {
        self.used + STILL_KIB < before.used
    }
}

/// Waits until nothing is given back any more: control groups, namespaces and page tables of what ended a moment ago go by and by.
/// A machine that does not come to rest is measured as it is.
pub async fn settle(within: Duration) {
    let began = Instant::now();
    let (mut last, mut quiet) = (Memory::look(), 0);
    while quiet < QUIET_LOOKS && began.elapsed() < within {
        tokio::time::sleep(EVERY).await;
        let now = Memory::look();
        let still = now.zip(last).is_none_or(|(now, last)| !now.is_given_back_since(&last));
        quiet = if still { quiet + 1 } else { 0 };
        last = now;
    }
}

/// A line of /proc/meminfo, in KiB.
pub fn line_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Objects in use times their size: the second and the fourth column.
fn objects_bytes(slabinfo: &str) -> u64 {
    let caches = slabinfo.lines().skip(2).filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let active: u64 = columns.next()?.parse().ok()?;
        let size: u64 = columns.nth(1)?.parse().ok()?;
        Some(active * size)
    });
    caches.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meminfo(available: u64, anonymous: u64, slab: u64) -> String {
        format!(
            "MemAvailable: {available} kB\nAnonPages: {anonymous} kB\nSlab: {slab} kB\nKernelStack: 16 kB\nPercpu: 8 kB\n"
        )
    }

    fn slabinfo(active: u64) -> String {
        format!("slabinfo - version: 2.1\n# name\ndentry {active} 9000 1024 21 1 : tunables 0 0 0 : slabdata 1 1 0\n")
    }

    #[test]
    fn the_account_that_finds_more_is_told() {
        let before = Memory::of(&meminfo(10_000, 100, 50), None).unwrap();
        let by_room = Memory::of(&meminfo(9_000, 200, 60), None).unwrap();
        assert_eq!(by_room.growth_since(&before), 1000);
        // Somebody else ended and made room.
        let by_pages = Memory::of(&meminfo(12_000, 200, 60), None).unwrap();
        assert_eq!(by_pages.growth_since(&before), 110);
        let nothing = Memory::of(&meminfo(12_000, 90, 50), None).unwrap();
        assert_eq!(nothing.growth_since(&before), -10);
    }

    #[test]
    fn objects_that_fill_gaps_count_too() {
        let before = Memory::of(&meminfo(10_000, 100, 50), Some(&slabinfo(1000))).unwrap();
        let after = Memory::of(&meminfo(10_000, 100, 50), Some(&slabinfo(1300))).unwrap();
        assert_eq!(after.growth_since(&before), 300);
    }

    #[tokio::test]
    async fn a_machine_that_does_not_rest_is_not_waited_for_without_end() {
        let began = Instant::now();
        settle(Duration::from_millis(300)).await;
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
