//! A sandbox's files out as an archive and in again; and what a hostile archive cannot do.
//!
//! On plain directories, so that they run for everybody; whiteouts and owners need root.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use cove_engine::SandboxId;
use cove_engine::spec::{Limits, Storage};
use cove_engine::storage::{Directories, Error, Store, Upper};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, getxattr, mknodat, setxattr};
use tar::{Builder, EntryType, Header};

const UNLIMITED: Limits = Limits { cpus: 1.0, memory: 1 << 30, pids: 10, disk: None, inodes: None };

struct House {
    folder: tempfile::TempDir,
    store: Store,
}

impl House {
    fn new() -> House {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_plain(&folder.path().join("data"), "for this test").unwrap();
        fs::write(folder.path().join("precious"), "untouched").unwrap();
        House { folder, store }
    }

    fn create(&self, letter: char) -> Directories {
        directories(self.store.create(&id(letter), Storage::Disk, &UNLIMITED).unwrap())
    }

    fn export(&self, letter: char) -> Vec<u8> {
        self.store.export(&id(letter), Vec::new()).unwrap()
    }

    fn import(&self, letter: char, archive: impl Read) -> Result<Directories, Error> {
        self.store.import(&id(letter), &UNLIMITED, archive).map(directories)
    }

    /// The archive is refused with these words, and nothing came of it.
    fn refuses(&self, archive: &[u8], words: &str) {
        let text = self.import('z', archive).expect_err("a hostile archive").to_string();
        assert!(text.contains(words), "{text}");
        assert!(!self.store.names().unwrap().contains(&id('z')), "nothing is left");
        self.store.empty_trash().unwrap();
        assert_eq!(fs::read(self.folder.path().join("precious")).unwrap(), b"untouched");
    }
}

fn id(letter: char) -> SandboxId {
    letter.to_string().repeat(20).parse().unwrap()
}

fn directories(upper: Upper) -> Directories {
    match upper {
        Upper::Directories(directories) => directories,
        Upper::Memory(_) => panic!("a disk was asked for"),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    // Ours, so that the tests run for everybody.
    header.set_uid(rustix::process::getuid().as_raw().min(65_535).into());
    header.set_gid(rustix::process::getgid().as_raw().min(65_535).into());
    header.set_mtime(1_000_000_000);
    header
}

/// An archive with one entry, its name and link written as they are: the builder would not let a `..` through.
fn archive(kind: EntryType, name: &str, link: &str) -> Vec<u8> {
    let mut header = header(kind, 0o777);
    let bytes = header.as_gnu_mut().unwrap();
    bytes.name[..name.len()].copy_from_slice(name.as_bytes());
    bytes.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, io::empty()).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn everything_the_overlay_needs_comes_back() {
    let house = House::new();
    let upper = house.create('a');
    fs::create_dir_all(upper.root_upper.join("opaque/inner")).unwrap();
    setxattr(upper.root_upper.join("opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    setxattr(upper.root_upper.join("opaque"), "user.overlay.origin", b"handle", XattrFlags::empty()).unwrap();
    let program = upper.root_upper.join("opaque/program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    setxattr(&program, "user.note", b"two\nlines\0and more", XattrFlags::empty()).unwrap();
    fs::hard_link(&program, upper.root_upper.join("opaque/same")).unwrap();
    symlink("/etc/shadow", upper.usr_upper.join("link")).unwrap();
    let long = "long-".repeat(45);
    fs::write(upper.usr_upper.join(&long), "x").unwrap();
    let sparse = File::create(upper.root_upper.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 20 << 20).unwrap();
    sparse.set_len(50 << 20).unwrap();
    fs::create_dir_all(upper.root_work.join("work/index")).unwrap();
    if is_root() {
        mknodat(CWD, upper.root_upper.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        chown(&program, Some(1000), Some(33)).unwrap();
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();

    let archive = house.export('a');
    assert!(archive.len() < 1 << 20, "holes take no room: {}", archive.len());
    let again = house.import('b', &archive[..]).unwrap();

    let program = again.root_upper.join("opaque/program");
    let told = fs::metadata(&program).unwrap();
    assert_eq!((told.mode() & 0o7777, told.nlink()), (0o4755, 2));
    assert_eq!(told.ino(), fs::metadata(again.root_upper.join("opaque/same")).unwrap().ino());
    let mut value = [0; 64];
    let length = getxattr(&program, "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"two\nlines\0and more");
    let opaque = again.root_upper.join("opaque");
    assert_eq!(getxattr(&opaque, "user.overlay.opaque", &mut value[..]), Ok(1));
    assert!(getxattr(&opaque, "user.overlay.origin", &mut value[..]).is_err(), "a file handle of another place");
    assert_eq!(fs::read_link(again.usr_upper.join("link")).unwrap(), Path::new("/etc/shadow"));
    assert_eq!(fs::read(again.usr_upper.join(&long)).unwrap(), b"x");
    let sparse = fs::metadata(again.root_upper.join("sparse")).unwrap();
    assert_eq!(sparse.len(), 50 << 20);
    assert!(sparse.blocks() * 512 < 1 << 20);
    let content = fs::read(again.root_upper.join("sparse")).unwrap();
    assert_eq!(&content[20 << 20..][..6], b"middle");
    assert!(!again.root_work.join("work").exists());
    if is_root() {
        assert_eq!((told.uid(), told.gid()), (1000, 33));
        let gone = fs::symlink_metadata(again.root_upper.join("gone")).unwrap();
        assert_eq!((gone.mode() & 0o170_000, gone.rdev()), (0o020_000, 0));
    }
    // Directories are listed in any order; both sides have the same entries.
    let names = |archive: &[u8]| -> Vec<String> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(&house.export('b')), names(&archive));
}

#[test]
fn an_archive_cannot_write_outside() {
    let house = House::new();
    for name in ["../precious", "root/../../precious", "/root/x", "precious", "work/x", "root/./../../precious"] {
        house.refuses(&archive(EntryType::Regular, name, ""), "leads out");
    }
    house.refuses(&archive(EntryType::Symlink, "root", "/etc"), "are folders");
    house.refuses(&archive(EntryType::Link, "root/x", "../../../precious"), "leads out of the archive");
    house.refuses(&archive(EntryType::Link, "root/x", "/etc/passwd"), "leads out of the archive");
}

#[test]
fn an_archive_cannot_write_through_its_own_links() {
    let house = House::new();
    let outside = house.folder.path().to_str().unwrap().to_owned();
    let mut builder = Builder::new(Vec::new());
    builder.append_link(&mut header(EntryType::Symlink, 0o777), "root/way", &outside).unwrap();
    builder.append_data(&mut header(EntryType::Regular, 0o644), "root/way/precious", io::empty()).unwrap();
    house.refuses(&builder.into_inner().unwrap(), "root/way/precious");

    // A link where a file is written is replaced, not followed.
    let mut builder = Builder::new(Vec::new());
    builder.append_link(&mut header(EntryType::Symlink, 0o777), "root/x", format!("{outside}/precious")).unwrap();
    builder.append_data(&mut header(EntryType::Regular, 0o600), "root/x", io::empty()).unwrap();
    let upper = house.import('b', &builder.into_inner().unwrap()[..]).unwrap();
    assert!(fs::symlink_metadata(upper.root_upper.join("x")).unwrap().is_file());
    assert_eq!(fs::read(house.folder.path().join("precious")).unwrap(), b"untouched");

    // Nor is one that a hard link goes through.
    let mut builder = Builder::new(Vec::new());
    builder.append_link(&mut header(EntryType::Symlink, 0o777), "root/way", &outside).unwrap();
    builder.append_link(&mut header(EntryType::Link, 0o777), "root/stolen", "root/way/precious").unwrap();
    house.refuses(&builder.into_inner().unwrap(), "root/stolen");
}

#[test]
fn an_archive_cannot_bring_devices_or_foreign_owners() {
    let house = House::new();
    let mut memory = header(EntryType::Char, 0o666);
    memory.set_device_major(1).unwrap();
    memory.set_device_minor(1).unwrap();
    let with = |mut header: Header| {
        let mut builder = Builder::new(Vec::new());
        builder.append_data(&mut header, "root/x", io::empty()).unwrap();
        builder.into_inner().unwrap()
    };
    house.refuses(&with(memory), "no devices but the whiteout");
    house.refuses(&with(header(EntryType::Block, 0o666)), "no block devices");
    let mut foreign = header(EntryType::Regular, 0o644);
    foreign.set_uid(70_000);
    house.refuses(&with(foreign), "65536 ids");
}

#[test]
fn an_archive_cannot_bring_capabilities_or_the_overlays_own_marks() {
    let house = House::new();
    let mut builder = Builder::new(Vec::new());
    let records: [(&str, &[u8]); 3] = [
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
        ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.user.kept", b"yes"),
    ];
    builder.append_pax_extensions(records).unwrap();
    builder.append_data(&mut header(EntryType::Regular, 0o755), "root/x", io::empty()).unwrap();
    let upper = house.import('b', &builder.into_inner().unwrap()[..]).unwrap();
    let mut value = [0; 16];
    let mut has = |name: &str| getxattr(upper.root_upper.join("x"), name, &mut value[..]).is_ok();
    assert!(has("user.kept"));
    assert!(!has("security.capability") && !has("user.overlay.redirect"));
}

#[test]
fn an_archive_cannot_fill_the_hosts_memory_with_a_name() {
    let house = House::new();
    let mut long = header(EntryType::GNULongName, 0o644);
    long.set_size(1 << 40);
    long.set_cksum();
    let endless = io::Cursor::new(long.as_bytes().to_vec()).chain(io::repeat(b'x'));
    let text = house.import('z', endless).unwrap_err().to_string();
    assert!(text.contains("4 MiB"), "{text}");
}

#[test]
fn an_archive_cannot_claim_more_than_the_bounds() {
    let house = House::new();
    let mut huge = header(EntryType::Regular, 0o644);
    huge.set_size(1 << 50);
    huge.as_gnu_mut().unwrap().name[..6].copy_from_slice(b"root/x");
    huge.set_cksum();
    house.refuses(huge.as_bytes(), "256 GiB");
}

#[test]
fn a_torn_archive_leaves_nothing() {
    let house = House::new();
    let upper = house.create('a');
    fs::write(upper.root_upper.join("file"), vec![7; 100_000]).unwrap();
    let whole = house.export('a');
    for length in [600, 5_000, 60_000] {
        assert!(house.import('b', &whole[..length]).is_err(), "{length} of {}", whole.len());
        assert_eq!(house.store.names().unwrap(), [id('a')]);
    }
    house.import('b', &whole[..]).expect("the whole of it is fine");
    assert!(matches!(house.import('b', &whole[..]), Err(Error::Exists(_))));
}

#[test]
fn there_is_nothing_to_export_of_a_sandbox_that_is_not_there() {
    let house = House::new();
    assert!(matches!(house.store.export(&id('x'), io::sink()), Err(Error::NotFound(_))));
}
