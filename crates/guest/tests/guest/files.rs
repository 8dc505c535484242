use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use cove_protocol::file::{Entry, FileKind, WriteMode};
use cove_protocol::{Event, Failure, FailureKind, Kind, Reply, Request};
use cove_testkit::{Need, skip};

use crate::client::{Guest, Seen, argv, wait_until};

pub fn write(path: &str) -> Request {
    Request::Write { path: path.into(), user: None, how: WriteMode::Replace, mode: None, parents: false }
}

fn write_as(path: &str, user: &str) -> Request {
    Request::Write { path: path.into(), user: Some(user.into()), how: WriteMode::Replace, mode: None, parents: false }
}

pub fn put(guest: &Guest, request: &Request, bytes: &[u8]) -> Result<Entry, Failure> {
    let mut host = guest.send(request);
    for chunk in bytes.chunks(64 << 10) {
        host.send(Kind::Data, chunk);
    }
    host.end();
    host.reply().map(entry_of)
}

pub fn entry_of(reply: Reply) -> Entry {
    match reply {
        Reply::Entry { entry } => entry,
        other => panic!("{other:?}"),
    }
}

fn read(path: &str) -> Request {
    Request::Read { path: path.into(), user: None, offset: 0, length: None }
}

fn get(guest: &Guest, request: &Request) -> Result<Vec<u8>, Failure> {
    let mut host = guest.send(request);
    host.reply().map(|reply| {
        entry_of(reply);
        host.rest().data
    })
}

fn stat(guest: &Guest, path: &str, follow: bool) -> Result<Entry, Failure> {
    guest.call(&Request::Stat { path: path.into(), user: None, follow }).map(entry_of)
}

pub fn entries(seen: &Seen) -> Vec<Entry> {
    seen.events
        .iter()
        .flat_map(|event| match event {
            Event::Entries { entries } => entries.clone(),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn list(guest: &Guest, path: &str, depth: u32) -> Vec<Entry> {
    let (_, mut host) = guest.open(&Request::List { path: path.into(), user: None, depth });
    entries(&host.rest())
}

fn names(directory: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        directory.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read_back_whole_and_in_parts() {
    let guest = Guest::start();
    let path = guest.path("file");
    let bytes: Vec<u8> = (0..1_000_000u32).map(|number| (number % 251) as u8).collect();
    let entry = put(&guest, &write(&path), &bytes).unwrap();
    assert_eq!((entry.name.as_str(), entry.path.as_str(), entry.kind), ("file", path.as_str(), FileKind::File));
    assert_eq!((entry.size, entry.mode, entry.owner.as_str()), (1_000_000, 0o644, "root"));
    assert_eq!(get(&guest, &read(&path)).unwrap(), bytes);
    let part = Request::Read { path: path.clone(), user: None, offset: 500_000, length: Some(7) };
    assert_eq!(get(&guest, &part).unwrap(), bytes[500_000..500_007]);
    let beyond = Request::Read { path: path.clone(), user: None, offset: 2_000_000, length: None };
    assert_eq!(get(&guest, &beyond).unwrap(), b"");
    assert_eq!(stat(&guest, &path, false).unwrap().size, 1_000_000);
}

#[test]
fn a_write_that_is_cut_off_leaves_the_old_file_and_nothing_else() {
    let guest = Guest::start();
    let path = guest.path("file");
    std::fs::write(&path, "old").unwrap();
    let mut host = guest.send(&write(&path));
    host.send(Kind::Data, b"new and half");
    wait_until("the new file is begun", || names(guest.room.path()).len() == 3);
    drop(host);
    wait_until("nothing is left of it", || names(guest.room.path()) == ["file", "guest.sock"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
}

#[test]
fn a_replaced_file_keeps_its_mode_and_owner() {
    let guest = Guest::start();
    let path = guest.path("file");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&path, Some(65534), Some(99)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4751)).unwrap();
    let before = std::fs::metadata(&path).unwrap().ino();
    let entry = put(&guest, &write(&path), b"new").unwrap();
    assert_eq!((entry.mode, entry.uid, entry.gid, entry.owner.as_str()), (0o4751, 65534, 99, "nobody"));
    assert_ne!(entry.inode, before);
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
}

#[test]
fn the_other_ways_to_write() {
    let guest = Guest::start();
    let path = guest.path("file");
    let with = |how| Request::Write { path: path.clone(), user: None, how, mode: Some(0o600), parents: false };
    let entry = put(&guest, &with(WriteMode::Create), b"0123456789").unwrap();
    assert_eq!(entry.mode, 0o600);
    assert_eq!(put(&guest, &with(WriteMode::Create), b"x").unwrap_err().kind, FailureKind::AlreadyExists);
    put(&guest, &with(WriteMode::Append), b"abc").unwrap();
    put(&guest, &with(WriteMode::At(2)), b"--").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"01--456789abc");
    let inode = std::fs::metadata(&path).unwrap().ino();
    assert_eq!(put(&guest, &with(WriteMode::InPlace), b"short").unwrap().inode, inode);
    assert_eq!(std::fs::read(&path).unwrap(), b"short");
    put(&guest, &with(WriteMode::At(1 << 30)), b"far").unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), (1 << 30) + 3);
    assert!(metadata.blocks() < 1000, "a leap leaves a hole");
    assert_eq!(put(&guest, &with(WriteMode::At(u64::MAX)), b"x").unwrap_err().kind, FailureKind::InvalidArgument);
}

#[test]
fn zeros_become_holes() {
    let guest = Guest::start();
    let path = guest.path("file");
    let bytes = [vec![1; 100_000], vec![0; 10_000_000], vec![2; 10], vec![0; 5_000_000]].concat();
    put(&guest, &write(&path), &bytes).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1_000_000);
}

#[test]
fn parents_are_made_when_asked_for() {
    let guest = Guest::start();
    let path = guest.path("a/b/c/file");
    assert_eq!(put(&guest, &write(&path), b"x").unwrap_err().kind, FailureKind::NotFound);
    let request = Request::Write { path: path.clone(), user: None, how: WriteMode::Replace, mode: None, parents: true };
    put(&guest, &request, b"x").unwrap();
    assert_eq!(std::fs::metadata(guest.path("a/b")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn writing_goes_through_symlinks_there_or_not() {
    let guest = Guest::start();
    symlink("real", guest.path("link")).unwrap();
    symlink(guest.path("link"), guest.path("link to link")).unwrap();
    put(&guest, &write(&guest.path("link to link")), b"one").unwrap();
    assert_eq!(std::fs::read(guest.path("real")).unwrap(), b"one");
    put(&guest, &write(&guest.path("link")), b"two").unwrap();
    assert_eq!(std::fs::read(guest.path("real")).unwrap(), b"two");
    assert!(std::fs::symlink_metadata(guest.path("link")).unwrap().is_symlink());
    symlink("circle", guest.path("circle")).unwrap();
    assert_eq!(put(&guest, &write(&guest.path("circle")), b"x").unwrap_err().kind, FailureKind::InvalidArgument);
}

#[test]
fn a_user_can_do_what_that_user_could_do_and_no_more() {
    let guest = Guest::start();
    std::fs::set_permissions(guest.room.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let own = guest.path("own");
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let entry = put(&guest, &write_as(&format!("{own}/file"), "nobody"), b"mine").unwrap();
    assert_eq!((entry.uid, entry.gid), (65534, 65534));
    let failure = put(&guest, &write_as(&guest.path("foreign"), "nobody"), b"x").unwrap_err();
    assert_eq!(failure.kind, FailureKind::PermissionDenied);
    assert!(failure.message.contains("foreign"), "{failure}");
    let shadow = Request::Read { path: "/etc/shadow".into(), user: Some("nobody".into()), offset: 0, length: None };
    let failure = guest.call(&shadow).unwrap_err();
    assert_eq!(failure, Failure::new(FailureKind::PermissionDenied, "read /etc/shadow: permission denied"));
    // A file of root's in the user's own directory: could be exchanged, but not written.
    std::fs::write(format!("{own}/roots"), "root's").unwrap();
    let failure = put(&guest, &write_as(&format!("{own}/roots"), "nobody"), b"x").unwrap_err();
    assert_eq!(failure.kind, FailureKind::PermissionDenied);
    // A writable file in a directory that is not: written in place.
    std::fs::write(guest.path("open"), "old old old").unwrap();
    std::fs::set_permissions(guest.path("open"), PermissionsExt::from_mode(0o666)).unwrap();
    let entry = put(&guest, &write_as(&guest.path("open"), "nobody"), b"new").unwrap();
    assert_eq!((entry.uid, entry.size), (0, 3));
    // A symlink of the user's does not lend the rights of root.
    symlink("/etc/shadow", format!("{own}/link")).unwrap();
    let link = Request::Read { path: format!("{own}/link"), user: Some("nobody".into()), offset: 0, length: None };
    assert_eq!(guest.call(&link).unwrap_err().kind, FailureKind::PermissionDenied);
    let chown = Request::SetAttributes {
        path: format!("{own}/file"),
        user: Some("nobody".into()),
        mode: None,
        owner: Some("root".into()),
        group: None,
    };
    assert_eq!(guest.call(&chown).unwrap_err().kind, FailureKind::PermissionDenied);
}

#[test]
fn the_guests_own_memory_is_no_file() {
    let guest = Guest::start();
    std::fs::set_permissions(guest.room.path(), PermissionsExt::from_mode(0o777)).unwrap();
    symlink("/proc/self/mem", guest.path("link")).unwrap();
    let task = std::fs::read_dir(format!("/proc/{}/task", guest.pid())).unwrap().next().unwrap().unwrap();
    let paths = [
        "/proc/self/mem".to_owned(),
        "/proc/thread-self/mem".to_owned(),
        format!("/proc/{}/mem", guest.pid()),
        format!("/proc/{}/environ", guest.pid()),
        format!("/proc/self/task/{}/mem", task.file_name().to_str().unwrap()),
        guest.path("link"),
    ];
    for path in paths {
        for user in ["root", "nobody"] {
            let read = Request::Read { path: path.clone(), user: Some(user.into()), offset: 4096, length: Some(1) };
            assert!(guest.call(&read).is_err(), "{path} as {user}");
            let write = Request::Write {
                path: path.clone(),
                user: Some(user.into()),
                how: WriteMode::At(4096),
                mode: None,
                parents: false,
            };
            assert!(put(&guest, &write, b"x").is_err(), "{path} as {user}");
        }
    }
    assert!(guest.call(&read("/proc/self/fd/0")).is_err());
    for how in [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append] {
        let path = "/proc/sys/kernel/hostname".to_owned();
        let write = Request::Write { path, user: Some("nobody".into()), how, mode: None, parents: false };
        assert_eq!(put(&guest, &write, b"mine").unwrap_err().kind, FailureKind::PermissionDenied, "{how:?}");
    }
    assert!(!get(&guest, &read("/proc/version")).unwrap().is_empty(), "the rest of /proc can be read");
}

#[test]
fn what_is_no_regular_file_is_refused_by_its_kind() {
    let guest = Guest::start();
    guest.shell(&format!("mkfifo {}", guest.path("pipe")));
    assert_eq!(guest.call(&read("/etc")).unwrap_err().kind, FailureKind::IsADirectory);
    assert_eq!(guest.call(&read(&guest.path("pipe"))).unwrap_err().kind, FailureKind::InvalidArgument);
    assert_eq!(guest.call(&read(&guest.path("guest.sock"))).unwrap_err().kind, FailureKind::NotFound);
    assert_eq!(guest.call(&read("/dev/zero")).unwrap_err().kind, FailureKind::InvalidArgument);
    assert_eq!(guest.call(&read("/etc/passwd/x")).unwrap_err().kind, FailureKind::NotADirectory);
    assert_eq!(put(&guest, &write("/etc"), b"x").unwrap_err().kind, FailureKind::IsADirectory);
    assert_eq!(put(&guest, &write(&guest.path("pipe")), b"x").unwrap_err().kind, FailureKind::InvalidArgument);
    assert_eq!(put(&guest, &write("/"), b"x").unwrap_err().kind, FailureKind::InvalidArgument);
    assert_eq!(put(&guest, &write("/tmp/\0"), b"x").unwrap_err().kind, FailureKind::InvalidArgument);
    let long = format!("/tmp/{}", "x".repeat(300));
    assert_eq!(put(&guest, &write(&long), b"x").unwrap_err().kind, FailureKind::InvalidArgument);
}

#[test]
fn a_full_disk_is_exhaustion_and_the_host_hears_it_after_sending_all() {
    let guest = Guest::start();
    let small = guest.path("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = guest.run(argv(&["mount", "-t", "tmpfs", "-o", "size=1m", "none", &small]));
    assert_eq!(mounted.code(), Some(0), "{}", mounted.err());
    let failure = put(&guest, &write(&format!("{small}/big")), &vec![7; 8 << 20]).unwrap_err();
    let left = names(std::path::Path::new(&small));
    guest.run(argv(&["umount", &small]));
    assert_eq!(failure.kind, FailureKind::Exhausted);
    assert!(failure.message.contains("small/big") && failure.message.contains("no space"), "{failure}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn links_are_seen_as_links_unless_followed() {
    let guest = Guest::start();
    std::fs::write(guest.path("file"), "12345").unwrap();
    symlink("file", guest.path("link")).unwrap();
    let link = stat(&guest, &guest.path("link"), false).unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some("file")));
    let file = stat(&guest, &guest.path("link"), true).unwrap();
    assert_eq!((file.kind, file.size, file.path), (FileKind::File, 5, guest.path("link")));
    let root = stat(&guest, "/", false).unwrap();
    assert_eq!((root.name.as_str(), root.path.as_str(), root.kind), ("/", "/", FileKind::Directory));
    assert_eq!(stat(&guest, "~", false).unwrap().path, "/root");
    assert_eq!(stat(&guest, &guest.path("none"), false).unwrap_err().kind, FailureKind::NotFound);
}

#[test]
fn a_directory_is_listed_as_deep_as_asked() {
    let guest = Guest::start();
    for path in ["d/b/c/e", "d/a"] {
        std::fs::create_dir_all(guest.path(path)).unwrap();
    }
    std::fs::write(guest.path("d/b/file"), "").unwrap();
    symlink("/usr", guest.path("d/link")).unwrap();
    let base = guest.path("d");
    let paths = |depth| list(&guest, &base, depth).into_iter().map(|it| it.path[base.len() + 1..].to_owned());
    assert_eq!(paths(1).collect::<Vec<_>>(), ["a", "b", "link"]);
    assert_eq!(paths(2).collect::<Vec<_>>(), ["a", "b", "b/c", "b/file", "link"]);
    assert_eq!(paths(9).collect::<Vec<_>>(), ["a", "b", "b/c", "b/c/e", "b/file", "link"]);
    symlink("d", guest.path("way")).unwrap();
    assert_eq!(list(&guest, &guest.path("way"), 1)[0].path, guest.path("way/a"));
    let file = Request::List { path: guest.path("d/b/file"), user: None, depth: 1 };
    assert_eq!(guest.call(&file).unwrap_err().kind, FailureKind::NotADirectory);
}

#[test]
fn a_directory_of_many_files_is_listed_in_portions() {
    let guest = Guest::start();
    std::fs::create_dir(guest.path("many")).unwrap();
    for number in 0..9000 {
        std::fs::write(guest.path(&format!("many/{number:05}-{}", "x".repeat(100))), "").unwrap();
    }
    assert_eq!(list(&guest, &guest.path("many"), 1).len(), 9000);
}

#[test]
fn a_directory_is_made_with_those_above_and_told_if_it_was_there() {
    let guest = Guest::start();
    let make = |path: &str, mode| {
        guest.call(&Request::MakeDirectory { path: guest.path(path), user: None, mode }).map(|reply| match reply {
            Reply::Made { entry, existed } => (entry.mode, existed),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(make("a/b/c", Some(0o700)), Ok((0o700, false)));
    assert_eq!(make("a/b/c", None), Ok((0o700, true)));
    assert_eq!(make("a/b/../d", None), Ok((0o755, false)));
    std::fs::write(guest.path("file"), "").unwrap();
    assert_eq!(make("file", None).unwrap_err().kind, FailureKind::NotADirectory);
    assert_eq!(make("file/below", None).unwrap_err().kind, FailureKind::NotADirectory);
    symlink("a", guest.path("link")).unwrap();
    assert_eq!(make("link/e", None), Ok((0o755, false)));
    assert!(std::path::Path::new(&guest.path("a/e")).is_dir());
}

#[test]
fn mode_and_owner_are_set_through_links() {
    let guest = Guest::start();
    std::fs::write(guest.path("file"), "").unwrap();
    symlink("file", guest.path("link")).unwrap();
    let set = |mode, owner: Option<&str>, group: Option<&str>| {
        let (owner, group) = (owner.map(str::to_owned), group.map(str::to_owned));
        guest.call(&Request::SetAttributes { path: guest.path("link"), user: None, mode, owner, group }).map(entry_of)
    };
    let entry = set(Some(0o640), Some("nobody"), Some("nogroup")).unwrap();
    assert_eq!((entry.mode, entry.owner.as_str(), entry.group.as_str()), (0o640, "nobody", "nogroup"));
    assert_eq!(set(None, Some("1234"), None).unwrap().uid, 1234);
    assert_eq!(set(None, None, Some("77")).unwrap().gid, 77);
    assert_eq!(set(None, Some("mallory"), None).unwrap_err().kind, FailureKind::InvalidArgument);
    assert_eq!(std::fs::metadata(guest.path("file")).unwrap().uid(), 1234);
}

#[test]
fn metadata_is_kept_with_the_file_and_replaced_as_a_whole() {
    let guest = Guest::start();
    std::fs::write(guest.path("file"), "").unwrap();
    let set = |values: &[(&str, &str)]| {
        let values = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = Request::SetMetadata { path: guest.path("file"), user: None, prefix: "e2b.".into(), values };
        guest.call(&request).map(|reply| entry_of(reply).metadata)
    };
    match set(&[("a", "1"), ("b", "2")]) {
        Ok(metadata) => assert_eq!(metadata["e2b.a"], "1"),
        // The machine's temporary directory may be on a filesystem without them.
        Err(failure) if failure.kind == FailureKind::Unsupported => return skip(Need::FileAttributes, failure),
        Err(failure) => panic!("{failure}"),
    }
    let metadata = set(&[("b", "3")]).unwrap();
    assert_eq!(metadata.into_iter().collect::<Vec<_>>(), [("e2b.b".to_owned(), "3".to_owned())]);
    assert_eq!(stat(&guest, &guest.path("file"), false).unwrap().metadata["e2b.b"], "3");
    assert_eq!(set(&[("c", &"x".repeat(9000))]).unwrap_err().kind, FailureKind::InvalidArgument);
}

#[test]
fn a_large_file_goes_in_and_out_in_little_memory() {
    let guest = Guest::start();
    let path = guest.path("big");
    let chunk: Vec<u8> = (0..64 << 10).map(|number| (number % 255) as u8 + 1).collect();
    let mut host = guest.send(&write(&path));
    let mut most = 0;
    for turn in 0..4 << 10 {
        host.send(Kind::Data, &chunk);
        if turn % 256 == 0 {
            most = most.max(guest.status("VmRSS"));
        }
    }
    host.end();
    assert_eq!(entry_of(host.reply().unwrap()).size, 256 << 20);
    let (_, mut host) = guest.open(&read(&path));
    let mut total = 0;
    loop {
        let frame = host.frame().unwrap();
        if frame.kind == Kind::End {
            break;
        }
        total += frame.payload.len();
        if total % (16 << 20) == 0 {
            most = most.max(guest.status("VmRSS"));
        }
    }
    assert_eq!(total, 256 << 20);
    assert!(most < 12_000, "{most} KiB");
}

#[test]
fn a_file_that_was_to_be_new_takes_nobodys_place() {
    let guest = Guest::start();
    let path = guest.path("file");
    let create = Request::Write { path: path.clone(), user: None, how: WriteMode::Create, mode: None, parents: false };
    let mut host = guest.send(&create);
    host.send(Kind::Data, b"late");
    let directory = std::path::Path::new(&path).parent().unwrap();
    wait_until("the upload has begun", || names(directory).iter().any(|name| name.starts_with(".cove-new-")));
    std::fs::write(&path, "first").unwrap();
    host.end();
    assert_eq!(host.reply().unwrap_err().kind, FailureKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
    assert!(!names(directory).iter().any(|name| name.starts_with(".cove-new-")), "nothing remains of it");
}
