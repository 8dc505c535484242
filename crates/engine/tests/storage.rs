//! A sandbox's files: made, found again, limited, cloned, removed; nothing is left behind.
//!
//! As root on a host with loop devices and mkfs.btrfs these run on a real pool image; otherwise a test fails or is skipped (see `cove_testkit::need`).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cove_engine::SandboxId;
use cove_engine::spec::{Limits, Storage};
use cove_engine::storage::{Directories, Error, Kind, Store, Upper};
use cove_testkit::need::{self, Need, skip};

/// A data directory of one test. At its end no mount and no loop device of it may be left.
struct Data {
    folder: tempfile::TempDir,
}

impl Data {
    fn new() -> Data {
        Data { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn open(&self) -> Store {
        Store::open(self.path()).unwrap()
    }

    /// A store on a pool, where this host can have one.
    fn pool(&self) -> Option<Store> {
        let store = self.open();
        match store.kind().unwrap() {
            Kind::Pool => Some(store),
            _ => {
                skip(Need::Pool, store.detail().unwrap());
                None
            }
        }
    }

    fn devices(&self) -> Vec<PathBuf> {
        let image = self.path().join("pool.btrfs");
        let behind = |path: &Path| fs::read_to_string(path.join("loop/backing_file")).unwrap_or_default();
        let devices = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
        devices.filter(|device| Path::new(behind(device).trim()) == image).collect()
    }

    fn mounted(&self) -> bool {
        let own = self.path().to_str().unwrap();
        fs::read_to_string("/proc/self/mounts").unwrap().lines().any(|line| line.contains(own))
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A failed test cleans up as well as it can.
            if let Ok(store) = Store::open(self.path()) {
                let _ = store.kind();
                let _ = store.close();
            }
            return;
        }
        assert!(!self.mounted(), "the pool was unmounted");
        eventually("the loop device is free", || self.devices().is_empty());
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what} within twenty seconds");
        std::thread::yield_now();
    }
}

fn id(letter: char) -> SandboxId {
    letter.to_string().repeat(20).parse().unwrap()
}

fn unlimited() -> Limits {
    Limits { disk: None, ..Limits::default() }
}

fn limited(megabytes: u64) -> Limits {
    Limits { disk: Some(megabytes << 20), ..Limits::default() }
}

fn directories(upper: Upper) -> Directories {
    match upper {
        Upper::Directories(directories) => directories,
        Upper::Memory(_) => panic!("a disk was asked for"),
    }
}

/// Writes until the limit, and says how much went in.
fn fill(path: &Path, at_most: u64) -> (u64, Option<std::io::Error>) {
    let mut file = File::create(path).unwrap();
    let block = vec![7; 1 << 20];
    for written in 0..at_most >> 20 {
        let result = file.write_all(&block).and_then(|()| file.sync_data());
        if let Err(error) = result {
            return (written << 20, Some(error));
        }
    }
    (at_most, None)
}

#[test]
fn files_are_found_again_by_a_store_that_comes_back() {
    let data = Data::new();
    let store = data.open();
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    fs::write(upper.root_upper.join("hello"), "x").unwrap();
    assert!(matches!(store.create(&id('a'), Storage::Disk, &unlimited()), Err(Error::Exists(_))), "an id is used once");
    store.close().unwrap();

    let store = data.open();
    assert_eq!(store.names().unwrap(), [id('a')]);
    assert_eq!(store.find(&id('a')).unwrap(), Some(Upper::Directories(upper.clone())));
    assert_eq!(store.find(&id('b')).unwrap(), None);
    assert_eq!(fs::read(upper.root_upper.join("hello")).unwrap(), b"x");
    assert!(store.used(&id('a')).unwrap().bytes > 0);

    store.remove(&id('a')).unwrap();
    assert!(store.is_empty().unwrap());
    store.remove(&id('a')).expect("gone already is fine");
    assert_eq!(store.empty_trash().unwrap(), 1);
    assert_eq!(store.empty_trash().unwrap(), 0);
    store.close().unwrap();
}

#[test]
fn a_disk_limit_holds_and_can_be_moved() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let upper = directories(store.create(&id('a'), Storage::Disk, &limited(20)).unwrap());
    let (written, error) = fill(&upper.root_upper.join("large"), 100 << 20);
    assert_eq!(error.unwrap().raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    assert!((15 << 20..=20 << 20).contains(&written), "{written}");
    let used = store.used(&id('a')).unwrap().bytes;
    assert!((15 << 20..=20 << 20).contains(&used), "{used}");

    let error = store.resize(&id('a'), &limited(10)).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    store.resize(&id('a'), &limited(60)).unwrap();
    let (written, error) = fill(&upper.usr_upper.join("more"), 100 << 20);
    assert!(error.is_some());
    assert!((30 << 20..=45 << 20).contains(&written), "{written}");

    // A neighbour is not touched by it.
    let other = directories(store.create(&id('b'), Storage::Disk, &limited(20)).unwrap());
    assert!(fill(&other.root_upper.join("own"), 5 << 20).1.is_none());
    store.close().unwrap();
}

#[test]
fn a_flood_of_empty_files_meets_the_limit_too() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let upper = directories(store.create(&id('a'), Storage::Disk, &limited(8)).unwrap());
    let made = (0..400_000).take_while(|n| File::create(upper.root_upper.join(format!("{n:0100}"))).is_ok()).count();
    assert!(made < 400_000, "stopped at {made}");
    store.close().unwrap();
}

#[test]
fn a_clone_starts_with_the_same_files_and_goes_its_own_way() {
    let data = Data::new();
    let store = data.open();
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    fs::write(upper.root_upper.join("shared"), "before").unwrap();
    fs::create_dir_all(upper.root_work.join("work/incompat/volatile")).unwrap();

    let clone = directories(store.clone_upper(&id('a'), &id('b'), &unlimited()).unwrap());
    fs::write(upper.root_upper.join("shared"), "after").unwrap();
    assert_eq!(fs::read(clone.root_upper.join("shared")).unwrap(), b"before");
    assert!(!clone.root_work.join("work").exists(), "the overlay starts fresh");
    assert!(matches!(store.clone_upper(&id('a'), &id('b'), &unlimited()), Err(Error::Exists(_))));
    assert!(matches!(store.clone_upper(&id('x'), &id('c'), &unlimited()), Err(Error::NotFound(_))));
    store.close().unwrap();
}

#[test]
fn uppers_made_ahead_are_taken_and_taken_over() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    store.keep_ready(3).unwrap();
    store.close().unwrap();
    let store = data.open();
    assert!(store.is_empty().unwrap(), "what is ready is nobody's");
    for letter in ['a', 'b', 'c', 'd'] {
        let upper = directories(store.create(&id(letter), Storage::Disk, &limited(20)).unwrap());
        assert!(upper.usr_work.exists());
    }
    let (_, error) = fill(&data.path().join("pool/uppers").join(id('b').as_str()).join("root/large"), 30 << 20);
    assert!(error.is_some(), "one made ahead has its limit too");
    store.close().unwrap();
}

#[test]
fn deleted_sandboxes_leave_no_quota_group() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let groups = |store: &Store| store.counted_groups().unwrap();
    let before = groups(&store);
    for letter in ['a', 'b', 'c'] {
        let upper = directories(store.create(&id(letter), Storage::Disk, &limited(20)).unwrap());
        fill(&upper.root_upper.join("file"), 1 << 20);
        store.remove(&id(letter)).unwrap();
    }
    assert_eq!(store.empty_trash().unwrap(), 3);
    eventually("the groups are forgotten", || {
        cove_sys::btrfs::reclaim(File::open(data.path().join("pool")).unwrap()).unwrap();
        store.keep_house().unwrap();
        groups(&store) == before
    });
    store.close().unwrap();
}

#[test]
fn a_pool_in_use_by_two_stores_stays_until_the_last_one_closes() {
    let data = Data::new();
    let Some(first) = data.pool() else { return };
    let second = data.pool().unwrap();
    first.close().unwrap();
    assert!(data.mounted());
    second.create(&id('a'), Storage::Disk, &limited(20)).unwrap();
    second.close().unwrap();
    assert!(!data.mounted());
}

#[test]
fn a_small_pool_grows_when_sandboxes_are_made() {
    let data = Data::new();
    if data.pool().is_none() {
        return;
    }
    let image = data.path().join("pool.btrfs");
    fs::remove_file(&image).unwrap();
    File::create(&image).unwrap().set_len(512 << 20).unwrap();
    let made = std::process::Command::new("mkfs.btrfs").arg("--quiet").arg(&image).status().unwrap();
    assert!(made.success());

    let store = data.pool().unwrap();
    let size = || {
        let told = rustix::fs::statvfs(data.path().join("pool")).unwrap();
        told.f_blocks * told.f_frsize
    };
    assert_eq!(size(), 512 << 20);
    store.create(&id('a'), Storage::Disk, &limited(20)).unwrap();
    assert!(size() > 1 << 30, "the filesystem and its device have grown: {}", size());
    assert_eq!(fs::metadata(&image).unwrap().len(), size());
}

#[test]
fn a_pool_has_every_block_that_it_promises() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let image = data.path().join("pool.btrfs");
    let lacking = || {
        let told = fs::metadata(&image).unwrap();
        told.len().saturating_sub(std::os::unix::fs::MetadataExt::blocks(&told) * 512)
    };
    assert_eq!(lacking(), 0, "from its first moment");
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    fill(&upper.root_upper.join("file"), 300 << 20);
    store.sync(&id('a')).unwrap();
    fs::remove_file(upper.root_upper.join("file")).unwrap();
    store.sync(&id('a')).unwrap();
    // Not by the filesystem itself, and not by somebody who trims all there are.
    let _refused = std::process::Command::new("fstrim").arg(data.path().join("pool")).output();
    assert_eq!(lacking(), 0, "what was deleted is not given back");
    // Dug out by somebody who copies files: had again at the next look.
    let dug = std::process::Command::new("fallocate").arg("--dig-holes").arg(&image).status().unwrap();
    assert!(dug.success() && lacking() > 0);
    assert_eq!(store.health().unwrap().unbacked, 0);
    assert_eq!(lacking(), 0);
}

#[test]
fn an_image_that_promises_more_than_the_disk_has_is_made_smaller() {
    let data = Data::new();
    if data.pool().is_none() {
        return;
    }
    let free = || {
        let told = rustix::fs::statvfs(data.path()).unwrap();
        told.f_bavail * told.f_frsize
    };
    let (image, before) = (data.path().join("pool.btrfs"), free());
    // As earlier versions made them: sparse, and larger than what is there.
    fs::remove_file(&image).unwrap();
    File::create(&image).unwrap().set_len(before * 2).unwrap();
    let made = std::process::Command::new("mkfs.btrfs").args(["--quiet", "--nodiscard"]).arg(&image).status().unwrap();
    assert!(made.success());
    let store = data.pool().unwrap();
    assert!(free() > before / 2, "nobody tried to have it all");
    store.create(&id('a'), Storage::Disk, &limited(20)).unwrap();
    eventually("the promise is one that can be held", || {
        store.make_room().unwrap();
        // To what is used, and some room ahead.
        fs::metadata(&image).unwrap().len() <= 9 << 30
    });
    assert_eq!(store.health().unwrap().unbacked, 0);
}

#[test]
fn a_pool_gives_room_ahead_of_its_writers() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    let before = store.health().unwrap().pool.unwrap();
    // More than it begins with, in steps of less than it has free.
    let mut written = 0;
    let block = vec![7; 200 << 20];
    for number in 0..before.total / (200 << 20) + 2 {
        let done = fs::write(upper.root_upper.join(format!("file{number}")), &block);
        assert!(done.is_ok(), "{done:?} after {written} bytes");
        written += block.len() as u64;
        store.make_room().unwrap();
    }
    let after = store.health().unwrap().pool.unwrap();
    assert!(after.total > before.total && written > before.total, "{before:?} {after:?} {written}");
}

/// The kernel buffers what a program writes: none of it is on the disk when the pool's first room is used up.
#[test]
fn a_writer_that_the_kernel_buffers_meets_no_end_either() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    let before = store.health().unwrap().pool.unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // As often as the engine looks.
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                store.make_room().unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let mut file = File::create(upper.root_upper.join("file")).unwrap();
        let block = vec![7; 1 << 20];
        let done = (0..(before.total + (before.total >> 2)) >> 20).try_for_each(|_| file.write_all(&block));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        done.unwrap();
    });
}

/// Large files that are mostly gone keep what the filesystem gave to large files; then small ones take all that names have.
#[test]
fn a_pool_without_room_for_names_says_so_and_can_be_emptied() {
    let Some(disk) = cove_testkit::disk::Disk::new(500) else { return };
    let store = Store::open(&disk.path().join("data")).unwrap();
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    let top = &upper.root_upper;
    let block = vec![7; 1 << 20];
    let mut large = 0;
    while fs::write(top.join(format!("large{large}")), &block).is_ok() {
        large += 1;
        // As the engine does: what cannot be had now is tried again.
        let _later = store.make_room();
        assert!(large < 1000, "a small disk is full in the end");
    }
    store.sync(&id('a')).unwrap();
    for number in (0..large).filter(|number| number % 8 != 0) {
        fs::remove_file(top.join(format!("large{number}"))).unwrap();
    }
    store.sync(&id('a')).unwrap();
    let small = vec![7; 1900];
    let mut count = 0;
    while fs::write(top.join(format!("small{count}")), &small).is_ok() {
        count += 1;
        if count % 1000 == 0 {
            let _later = store.make_room();
        }
        assert!(count < 1_000_000, "a small disk is full in the end");
    }
    // What is deleted for a moment's air changes nothing.
    for number in (0..large).filter(|number| number % 8 == 0).take(8) {
        fs::remove_file(top.join(format!("large{number}"))).unwrap();
    }
    store.sync(&id('a')).unwrap();
    if store.create(&id('b'), Storage::Disk, &unlimited()).is_err() {
        let refusal = store.health().unwrap().refusal(0);
        assert!(refusal.as_ref().is_some_and(|reason| reason.contains("is full")), "{refusal:?}");
    }
    store.remove(&id('a')).expect("what is there can be removed");
    eventually("there is room again", || {
        let _later = store.empty_trash();
        store.health().unwrap().refusal(0).is_none() && store.create(&id('c'), Storage::Disk, &unlimited()).is_ok()
    });
}

#[test]
fn a_data_directory_deleted_under_its_server_starts_anew() {
    let data = Data::new();
    let Some(lost) = data.pool() else { return };
    lost.create(&id('a'), Storage::Disk, &limited(20)).unwrap();
    fs::remove_file(data.path().join("pool.btrfs")).unwrap();
    // Another server on the same directory, while the old mount is still there.
    let store = data.pool().unwrap();
    assert!(store.is_empty().unwrap(), "the old image is not taken for the new one");
    store.create(&id('b'), Storage::Disk, &limited(20)).unwrap();
    drop(lost);
    drop(store);

    let store = data.pool().unwrap();
    assert_eq!(store.names().unwrap(), [id('b')], "what was written is in the image");
}

#[test]
fn a_pool_that_sandboxes_still_use_is_found_again() {
    let data = Data::new();
    let Some(store) = data.pool() else { return };
    let upper = directories(store.create(&id('a'), Storage::Disk, &limited(20)).unwrap());
    // As the overlay of a running sandbox does: a mount of its own, nowhere to be seen.
    let flags = rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE | rustix::mount::OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let held = rustix::mount::open_tree(rustix::fs::CWD, &upper.root_upper, flags).unwrap();
    drop(store);
    assert!(!data.mounted());
    let write =
        |name: &str| rustix::fs::openat(&held, name, rustix::fs::OFlags::CREATE, rustix::fs::Mode::RWXU).unwrap();
    write("while-closed");

    let store = data.pool().unwrap();
    assert_eq!(data.devices().len(), 1, "the same device");
    assert!(upper.root_upper.join("while-closed").exists());
    write("while-open");
    assert!(upper.root_upper.join("while-open").exists(), "one filesystem, seen twice");
    drop((held, store));
}

#[test]
fn without_a_pool_a_limit_is_refused_with_the_remedy() {
    let data = Data::new();
    let store = Store::open_plain(data.path(), "for this test").unwrap();
    let error = store.create(&id('a'), Storage::Disk, &limited(20)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("for this test") && text.contains("cove doctor"), "{text}");
    assert!(store.is_empty().unwrap(), "and nothing was made");
    let upper = directories(store.create(&id('a'), Storage::Disk, &unlimited()).unwrap());
    fs::write(upper.root_upper.join("file"), vec![1; 10_000]).unwrap();
    std::os::unix::fs::symlink("/usr", upper.root_upper.join("link")).unwrap();
    let used = store.used(&id('a')).unwrap();
    assert!((10_000..1 << 20).contains(&used.bytes), "{used:?}");
    assert_eq!(used.inodes, Some(6), "four directories, a file and a link that is not followed");
    store.clone_upper(&id('a'), &id('b'), &unlimited()).unwrap();
    store.remove(&id('a')).unwrap();
    assert_eq!(store.empty_trash().unwrap(), 1);
}

#[test]
fn a_tmpfs_upper_has_the_size_that_was_asked_for() {
    let data = Data::new();
    let store = data.open();
    let limits = Limits { disk: Some(20 << 20), inodes: Some(100), ..Limits::default() };
    let Upper::Memory(tmpfs) = store.create(&id('m'), Storage::Memory, &limits).unwrap() else {
        panic!("memory was asked for")
    };
    store.remove(&id('m')).unwrap();
    assert_eq!(store.find(&id('m')).unwrap(), None);
    assert!(store.is_empty().unwrap());
    assert!(!data.path().join("pool.btrfs").exists(), "files in memory need no pool");
    if !need::root() {
        return;
    }
    let mount = tmpfs.mount().unwrap();
    let told = rustix::fs::fstatvfs(&mount).unwrap();
    assert_eq!(told.f_blocks * told.f_frsize, 20 << 20);
    assert_eq!(told.f_files, 100);
    assert!(rustix::fs::statat(&mount, "usr-work", rustix::fs::AtFlags::empty()).is_ok());
}
