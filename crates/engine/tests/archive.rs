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
        self.store.export(&id(letter), &UNLIMITED, Vec::new()).unwrap()
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
    cove_testkit::need::root()
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

/// An attribute's name may have whatever its file's owner likes.
#[test]
fn attributes_of_any_name_come_back() {
    let house = House::new();
    let file = house.create('a').root_upper.join("file");
    fs::write(&file, "x").unwrap();
    let names = [
        "user.two\nlines",
        "user.a=b",
        "user.a b",
        "user.50%",
        "user.%41",
        "user.\u{e9}",
        "user.plain",
        "user.=",
        "user.\n",
    ];
    for name in names {
        setxattr(&file, name, name.as_bytes(), XattrFlags::empty()).unwrap();
    }
    let again = house.import('b', &house.export('a')[..]).unwrap().root_upper.join("file");
    let mut value = [0; 64];
    for name in names {
        let length = getxattr(&again, name, &mut value[..]).unwrap_or_else(|errno| panic!("{name:?}: {errno}"));
        assert_eq!(&value[..length], name.as_bytes());
    }
    let mut list = [0; 1024];
    let length = rustix::fs::listxattr(&again, &mut list[..]).unwrap();
    assert_eq!(list[..length].iter().filter(|byte| **byte == 0).count(), names.len(), "and no others");
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
    assert!(text.contains("16 MiB"), "{text}");
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
    assert!(matches!(house.store.export(&id('x'), &UNLIMITED, io::sink()), Err(Error::NotFound(_))));
}

/// Bytes that this process holds at this moment.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Notes the most memory that was held while it was written to.
struct Scale {
    most: u64,
    bytes: u64,
}

impl io::Write for Scale {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.bytes += buffer.len() as u64;
        self.most = self.most.max(memory());
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn hard_links_with_long_names_take_no_memory() {
    let house = House::new();
    let upper = house.create('a');
    // As long as a path can be: 3,900 bytes in front of every name.
    let deep: std::path::PathBuf = std::iter::repeat_n("d".repeat(250), 14).collect();
    let folder = upper.root_upper.join(deep);
    fs::create_dir_all(&folder).unwrap();
    for number in 0..8000 {
        let name = folder.join(number.to_string());
        fs::write(&name, "x").unwrap();
        fs::hard_link(&name, folder.join(format!("{number}-too"))).unwrap();
    }
    let before = memory();
    let scale = house.store.export(&id('a'), &UNLIMITED, Scale { most: 0, bytes: 0 }).unwrap();
    let grown = scale.most.saturating_sub(before);
    assert!(grown < 12 << 20, "{} MiB more for 8000 files with two names each", grown >> 20);

    let again = house.import('b', &house.export('a')[..]).unwrap();
    let folder = again.root_upper.join(folder.strip_prefix(&upper.root_upper).unwrap());
    let told = fs::metadata(folder.join("7999")).unwrap();
    assert_eq!((told.nlink(), told.ino()), (2, fs::metadata(folder.join("7999-too")).unwrap().ino()));
    let left: Vec<_> = fs::read_dir(again.root_upper.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(left.len(), 4, "what several names meant is gone when all are there: {left:?}");
}

#[test]
fn holes_of_any_size_and_number_survive_and_take_no_room() {
    let house = House::new();
    let upper = house.create('a');
    let huge = File::create(upper.root_upper.join("huge")).unwrap();
    huge.write_all_at(b"end", 300 << 30).unwrap();
    File::create(upper.root_upper.join("nothing")).unwrap().set_len(4 << 40).unwrap();
    let many = File::create(upper.root_upper.join("many")).unwrap();
    // In the long run as many as no list has room for.
    let holes: u64 = if std::env::var_os("COVE_LONG").is_some() { 300_000 } else { 20_000 };
    for number in 0..holes {
        many.write_all_at(&number.to_le_bytes(), number * 8192).unwrap();
    }
    let before = memory();
    let scale = house.store.export(&id('a'), &UNLIMITED, Scale { most: 0, bytes: 0 }).unwrap();
    // What is written, and the smallest holes of the file that has too many of them.
    assert!(scale.bytes < holes * 8192 + (64 << 20), "{} MiB", scale.bytes >> 20);
    assert!(scale.most.saturating_sub(before) < 64 << 20, "{} MiB more", (scale.most - before) >> 20);

    let mut archive = tempfile::tempfile().unwrap();
    house.store.export(&id('a'), &UNLIMITED, io::BufWriter::new(&archive)).unwrap();
    io::Seek::rewind(&mut archive).unwrap();
    let begun = std::time::Instant::now();
    let again = house.import('b', io::BufReader::new(archive)).unwrap();
    assert!(begun.elapsed().as_secs() < 60, "nobody reads the holes: {:?}", begun.elapsed());
    let huge = File::open(again.root_upper.join("huge")).unwrap();
    let told = huge.metadata().unwrap();
    assert_eq!(told.len(), (300 << 30) + 3);
    assert!(told.blocks() * 512 < 1 << 20);
    let mut end = [0; 3];
    huge.read_exact_at(&mut end, 300 << 30).unwrap();
    assert_eq!(&end, b"end");
    assert_eq!(fs::metadata(again.root_upper.join("nothing")).unwrap().len(), 4 << 40);
    let many = File::open(again.root_upper.join("many")).unwrap();
    let told = many.metadata().unwrap();
    assert!(told.blocks() * 512 < holes * 5000, "its holes are holes: {} MiB", (told.blocks() * 512) >> 20);
    for number in [0_u64, 77, holes - 1] {
        let mut value = [0; 8];
        many.read_exact_at(&mut value, number * 8192).unwrap();
        assert_eq!(u64::from_le_bytes(value), number);
    }
}

#[test]
fn what_import_would_refuse_is_refused_while_the_files_are_there() {
    let house = House::new();
    let upper = house.create('a');
    fs::write(upper.root_upper.join("large"), vec![7; 60 << 20]).unwrap();
    let small = Limits { disk: Some(10 << 20), ..UNLIMITED };
    let refused = house.store.export(&id('a'), &small, io::sink()).err().unwrap().to_string();
    assert!(refused.contains("could not be restored"), "{refused}");
    assert!(house.store.names().unwrap().contains(&id('a')));
    if is_root() {
        chown(upper.root_upper.join("large"), Some(70_000), Some(0)).unwrap();
        let refused = house.store.export(&id('a'), &UNLIMITED, io::sink()).err().unwrap().to_string();
        assert!(refused.contains("65536 ids"), "{refused}");
    }
}

#[test]
fn copies_that_share_their_blocks_are_in_an_archive_once_and_share_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    if store.kind().unwrap() != cove_engine::storage::Kind::Pool {
        return cove_testkit::skip(cove_testkit::Need::Pool, store.detail().unwrap());
    }
    let limits = Limits { disk: Some(200 << 20), ..UNLIMITED };
    let upper = directories(store.create(&id('a'), Storage::Disk, &limits).unwrap());
    let first = upper.root_upper.join("first");
    let bytes: Vec<u8> =
        (0..40_u32 << 18).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(&first, &bytes).unwrap();
    for number in 0..8 {
        let copy = File::create(upper.root_upper.join(format!("copy{number}"))).unwrap();
        rustix::fs::ioctl_ficlone(&copy, File::open(&first).unwrap()).unwrap();
    }
    fs::set_permissions(upper.root_upper.join("copy3"), fs::Permissions::from_mode(0o600)).unwrap();
    store.sync(&id('a')).unwrap();
    let archive = store.export(&id('a'), &limits, Vec::new()).unwrap();
    assert!(archive.len() < 50 << 20, "40 MiB, nine times: {} MiB", archive.len() >> 20);

    let again = directories(store.import(&id('b'), &limits, &archive[..]).unwrap());
    for name in ["first", "copy0", "copy7"] {
        assert!(fs::read(again.root_upper.join(name)).unwrap() == bytes, "{name} has its bytes");
    }
    assert_eq!(fs::metadata(again.root_upper.join("copy3")).unwrap().mode() & 0o777, 0o600);
    store.sync(&id('b')).unwrap();
    let used = store.used(&id('b')).unwrap().bytes;
    assert!(used < 60 << 20, "they share their blocks: {} MiB", used >> 20);
    store.remove(&id('a')).unwrap();
    store.remove(&id('b')).unwrap();
    store.empty_trash().unwrap();
}
