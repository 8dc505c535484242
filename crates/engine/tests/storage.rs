//! A sandbox's files: made, found again, limited, removed; nothing is left behind.

use std::fs;

use cove_engine::SandboxId;
use cove_engine::spec::{Limits, Storage};
use cove_engine::storage::{Store, Upper};

fn id(letter: char) -> SandboxId {
    letter.to_string().repeat(20).parse().unwrap()
}

fn unlimited() -> Limits {
    Limits { disk: None, ..Limits::default() }
}

#[test]
fn files_are_found_again_by_a_store_that_comes_back() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    let Upper::Directories(upper) = store.create(&id('a'), Storage::Disk, &unlimited()).unwrap() else {
        panic!("a disk was asked for")
    };
    fs::write(upper.root_upper.join("hello"), "x").unwrap();
    assert!(store.create(&id('a'), Storage::Disk, &unlimited()).is_err(), "an id is used once");
    drop(store);

    let store = Store::open(data.path()).unwrap();
    assert_eq!(store.names().unwrap(), [id('a')]);
    assert_eq!(store.find(&id('a')).unwrap(), Some(Upper::Directories(upper)));
    assert_eq!(store.find(&id('b')).unwrap(), None);
    assert!(store.used(&id('a')).unwrap().bytes > 0);

    store.remove(&id('a')).unwrap();
    assert!(store.is_empty().unwrap());
    store.remove(&id('a')).expect("gone already is fine");
    assert_eq!(store.empty_trash().unwrap(), 1);
    assert_eq!(store.empty_trash().unwrap(), 0);
}

#[test]
fn a_tmpfs_upper_has_the_size_that_was_asked_for() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).unwrap();
    let limits = Limits { disk: Some(20 << 20), inodes: Some(100), ..Limits::default() };
    let Upper::Memory(tmpfs) = store.create(&id('m'), Storage::Memory, &limits).unwrap() else {
        panic!("memory was asked for")
    };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mount = tmpfs.mount().unwrap();
    let told = rustix::fs::fstatvfs(&mount).unwrap();
    assert_eq!(told.f_blocks * told.f_frsize, 20 << 20);
    assert_eq!(told.f_files, 100);
    assert!(rustix::fs::statat(&mount, "usr-work", rustix::fs::AtFlags::empty()).is_ok());
}
