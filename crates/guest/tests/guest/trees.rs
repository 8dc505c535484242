use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cove_protocol::file::{FileKind, Match};
use cove_protocol::{Event, FailureKind, Reply, Request};

use crate::client::{Guest, argv};
use crate::files::{entries, entry_of};

fn remove(guest: &Guest, path: &str, recursive: bool) -> Result<Reply, FailureKind> {
    guest.call(&Request::Remove { path: path.into(), user: None, recursive }).map_err(|failure| failure.kind)
}

fn rename(guest: &Guest, from: &str, to: &str) -> Result<Reply, FailureKind> {
    guest
        .call(&Request::Move { from: guest.path(from), to: guest.path(to), user: None })
        .map_err(|failure| failure.kind)
}

#[test]
fn a_tree_is_removed_without_following_its_links() {
    let guest = Guest::start();
    std::fs::create_dir_all(guest.path("tree/a/b")).unwrap();
    std::fs::write(guest.path("precious"), "").unwrap();
    std::fs::create_dir(guest.path("outside")).unwrap();
    std::fs::write(guest.path("outside/precious"), "").unwrap();
    symlink("../../precious", guest.path("tree/a/link")).unwrap();
    symlink("../outside", guest.path("tree/directory link")).unwrap();
    for number in 0..500 {
        std::fs::write(guest.path(&format!("tree/a/{number}")), "").unwrap();
    }
    assert_eq!(remove(&guest, &guest.path("tree"), false), Err(FailureKind::NotEmpty));
    assert_eq!(remove(&guest, &guest.path("tree"), true), Ok(Reply::Done));
    assert!(!Path::new(&guest.path("tree")).exists());
    assert!(Path::new(&guest.path("precious")).exists() && Path::new(&guest.path("outside/precious")).exists());
    assert_eq!(remove(&guest, &guest.path("tree"), true), Err(FailureKind::NotFound));
    assert_eq!(remove(&guest, "/", true), Err(FailureKind::InvalidArgument));
    assert_eq!(remove(&guest, &guest.path("x/.."), true), Err(FailureKind::NotFound));
    symlink("outside", guest.path("link")).unwrap();
    assert_eq!(remove(&guest, &guest.path("link"), true), Ok(Reply::Done));
    assert!(Path::new(&guest.path("outside/precious")).exists());
}

#[test]
fn a_tree_deeper_than_there_are_descriptors_is_removed() {
    let guest = Guest::start();
    let script = "import os, sys\nos.chdir(sys.argv[1])\nfor name in ['deep'] + ['d'] * 1500:\n  os.mkdir(name); os.chdir(name); open('f', 'w')";
    let made = guest.run(argv(&["python3", "-c", script, guest.room.path().to_str().unwrap()]));
    assert_eq!(made.code(), Some(0), "{}", made.err());
    assert_eq!(remove(&guest, &guest.path("deep"), true), Ok(Reply::Done));
    assert!(!Path::new(&guest.path("deep")).exists());
}

#[test]
fn a_user_removes_only_what_is_the_users() {
    let guest = Guest::start();
    std::fs::set_permissions(guest.room.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(guest.path("roots")).unwrap();
    let request = Request::Remove { path: guest.path("roots"), user: Some("nobody".into()), recursive: true };
    assert_eq!(guest.call(&request).unwrap_err().kind, FailureKind::PermissionDenied);
}

#[test]
fn a_file_or_a_tree_is_moved() {
    let guest = Guest::start();
    std::fs::create_dir_all(guest.path("a/b")).unwrap();
    std::fs::write(guest.path("a/b/file"), "x").unwrap();
    let Ok(reply) = rename(&guest, "a", "c") else { panic!("not moved") };
    assert_eq!(entry_of(reply).path, guest.path("c"));
    assert_eq!(std::fs::read(guest.path("c/b/file")).unwrap(), b"x");
    assert_eq!(rename(&guest, "none", "d"), Err(FailureKind::NotFound));
    assert_eq!(rename(&guest, "c", "no/such/parent"), Err(FailureKind::NotFound));
    assert_eq!(rename(&guest, "c", "c/b/c"), Err(FailureKind::InvalidArgument));
}

#[test]
fn a_tree_is_moved_to_another_filesystem_with_all_that_belongs_to_it() {
    let guest = Guest::start();
    let script = r#"
        cd "$1"; mkdir other; mount -t tmpfs none other
        mkdir -p tree/sub; echo text > tree/sub/file; ln -s sub/file tree/link; mkfifo tree/pipe
        truncate -s 10M tree/sparse; chown -h 12:34 tree/sub/file tree/link; chmod 4750 tree/sub/file; chmod 0511 tree/sub
        touch -d @1000000000 tree/sub/file tree/sub"#;
    let room = guest.room.path().to_str().unwrap();
    let made = guest.run(argv(&["sh", "-ec", script, "-", room]));
    assert_eq!(made.code(), Some(0), "{}", made.err());
    let moved = rename(&guest, "tree", "other/tree");
    let look =
        r#"cd "$1/other"; find . -mindepth 1 -printf '%P %y %m %U:%G %Ts %l\n' | sort; cat tree/sub/file; umount -l ."#;
    let seen = guest.run(argv(&["sh", "-c", look, "-", room]));
    assert!(moved.is_ok(), "{moved:?}");
    let out = seen.out();
    for expected in [
        "tree/link l 777 12:34",
        "tree/pipe p",
        "tree/sub d 511 0:0 1000000000",
        "tree/sub/file f 4750 12:34 1000000000",
        "sub/file\n",
        "text\n",
    ] {
        assert!(out.contains(expected), "{expected} in {out}");
    }
    assert!(!Path::new(&guest.path("tree")).exists());
}

#[test]
fn a_symlink_is_made_and_told_of() {
    let guest = Guest::start();
    let make = Request::Symlink { path: guest.path("link"), target: "any/where".into(), user: None };
    let entry = entry_of(guest.call(&make).unwrap());
    assert_eq!((entry.kind, entry.target.as_deref()), (FileKind::Symlink, Some("any/where")));
    assert_eq!(guest.call(&make).unwrap_err().kind, FailureKind::AlreadyExists);
}

fn find(guest: &Guest, pattern: &str, limit: Option<u32>) -> Vec<String> {
    let (_, mut host) =
        guest.open(&Request::Find { path: guest.path("d"), pattern: pattern.into(), user: None, limit });
    let base = guest.path("d");
    entries(&host.rest()).into_iter().map(|entry| entry.path[base.len() + 1..].to_owned()).collect()
}

#[test]
fn files_are_found_by_name() {
    let guest = Guest::start();
    std::fs::create_dir_all(guest.path("d/src/deep")).unwrap();
    for path in ["main.rs", "src/main.rs", "src/deep/other.rs", "src/deep/main.py"] {
        std::fs::write(guest.path(&format!("d/{path}")), "").unwrap();
    }
    assert_eq!(find(&guest, "*.rs", None), ["main.rs", "src/deep/other.rs", "src/main.rs"]);
    assert_eq!(find(&guest, "main", None), ["main.rs", "src/deep/main.py", "src/main.rs"]);
    assert_eq!(find(&guest, "d??p", None), ["src/deep"]);
    assert_eq!(find(&guest, "*", Some(2)).len(), 2);
    assert!(find(&guest, "[", None).is_empty());
}

fn grep(guest: &Guest, path: &str, pattern: &str, limit: Option<u32>) -> Vec<Match> {
    let request = Request::Grep { path: guest.path(path), pattern: pattern.into(), user: None, limit };
    let (_, mut host) = guest.open(&request);
    let seen = host.rest();
    let events = seen.events.into_iter().flat_map(|event| match event {
        Event::Matches { matches } => matches,
        other => panic!("{other:?}"),
    });
    events.collect()
}

#[test]
fn lines_are_found_by_what_they_hold() {
    let guest = Guest::start();
    std::fs::create_dir_all(guest.path("d/sub")).unwrap();
    std::fs::write(guest.path("d/one"), "first\nneedle here\r\nneedle needle\nlast needle").unwrap();
    std::fs::write(guest.path("d/sub/two"), "\n\n\nin the (needle.*)\n").unwrap();
    std::fs::write(guest.path("d/binary"), b"needle\0needle").unwrap();
    symlink("one", guest.path("d/link")).unwrap();
    let found = grep(&guest, "d", "needle", None);
    let lines: Vec<_> = found.iter().map(|found| (found.line, found.text.as_str())).collect();
    assert_eq!(lines, [(2, "needle here"), (3, "needle needle"), (4, "last needle"), (4, "in the (needle.*)")]);
    assert_eq!(grep(&guest, "d", "(needle.*)", None).len(), 1);
    assert_eq!(grep(&guest, "d", "needle", Some(2)).len(), 2);
    assert_eq!(grep(&guest, "d/one", "last", None).len(), 1);
    let empty = Request::Grep { path: guest.path("d"), pattern: String::new(), user: None, limit: None };
    assert_eq!(guest.call(&empty).unwrap_err().kind, FailureKind::InvalidArgument);
}

#[test]
fn lines_across_the_pieces_a_file_is_read_in_are_found_and_counted() {
    let guest = Guest::start();
    let mut text = String::new();
    for number in 1..=50_000 {
        text.push_str(&format!("line {number} {}\n", if number % 10_000 == 0 { "needle" } else { "hay" }));
    }
    text.push_str(&format!("{}needle", "x".repeat(300_000)));
    std::fs::write(guest.path("big"), &text).unwrap();
    let lines: Vec<_> = grep(&guest, "big", "needle", None).into_iter().map(|found| found.line).collect();
    assert_eq!(lines, [10_000, 20_000, 30_000, 40_000, 50_000, 50_001]);
}

#[test]
fn a_text_is_replaced_in_each_file_and_failures_are_told_for_each() {
    let guest = Guest::start();
    std::fs::write(guest.path("one"), "a.b.a.b").unwrap();
    std::fs::set_permissions(guest.path("one"), PermissionsExt::from_mode(0o751)).unwrap();
    std::fs::write(guest.path("two"), "nothing").unwrap();
    let before = std::fs::metadata(guest.path("two")).unwrap().ino();
    let paths = vec![guest.path("one"), guest.path("two"), guest.path("none")];
    let request = Request::Replace { paths, pattern: "a.b".into(), replacement: "longer".into(), user: None };
    let Ok(Reply::Replaced { files }) = guest.call(&request) else { panic!("no answer") };
    assert_eq!(files.iter().map(|file| file.count).collect::<Vec<_>>(), [2, 0, 0]);
    assert!(files[0].error.is_none() && files[1].error.is_none());
    assert!(files[2].error.as_ref().unwrap().contains("no such file"));
    assert_eq!(std::fs::read(guest.path("one")).unwrap(), b"longer.longer");
    assert_eq!(std::fs::metadata(guest.path("one")).unwrap().mode() & 0o7777, 0o751);
    assert_eq!(std::fs::metadata(guest.path("two")).unwrap().ino(), before, "an unchanged file is not written");
}

/// A directory on another filesystem than the guest's room.
fn elsewhere() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("cove-guest-").tempdir_in("/dev/shm").unwrap()
}

#[test]
fn a_tree_moves_between_filesystems_with_names_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let (guest, elsewhere) = (Guest::start(), elsewhere());
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let from = elsewhere.path().join("tree");
    std::fs::create_dir_all(from.join(odd).join("inner")).unwrap();
    std::fs::write(from.join(odd).join("inner/file"), "kept").unwrap();
    let moving = Request::Move { from: from.to_str().unwrap().into(), to: guest.path("tree"), user: None };
    guest.call(&moving).unwrap();
    let to = std::path::PathBuf::from(guest.path("tree"));
    assert_eq!(std::fs::read_to_string(to.join(odd).join("inner/file")).unwrap(), "kept");
    assert_eq!((to.read_dir().unwrap().count(), from.exists()), (1, false));
}

#[test]
fn a_tree_too_deep_to_be_copied_is_not_moved_in_part() {
    let (guest, elsewhere) = (Guest::start(), elsewhere());
    let script = "import os, sys\nos.chdir(sys.argv[1])\nfor name in ['deep'] + ['d'] * 300:\n  os.mkdir(name); os.chdir(name)\nopen('f', 'w')";
    let made = guest.run(argv(&["python3", "-c", script, elsewhere.path().to_str().unwrap()]));
    assert_eq!(made.code(), Some(0), "{}", made.err());
    let from = elsewhere.path().join("deep");
    let moving = Request::Move { from: from.to_str().unwrap().into(), to: guest.path("deep"), user: None };
    guest.call(&moving).unwrap_err();
    assert!(from.join(["d"; 300].join("/")).join("f").exists(), "the file at the bottom");
    assert!(!Path::new(&guest.path("deep")).exists());
    let mut packing = guest.send(&Request::TarOut { path: from.to_str().unwrap().into(), user: None });
    assert_eq!(packing.reply(), Ok(Reply::Done));
    let ended = std::iter::from_fn(|| packing.frame()).last().map(|frame| frame.kind);
    assert_eq!(ended, Some(cove_protocol::Kind::Failure), "an archive of a part does not end as if it were whole");
}
