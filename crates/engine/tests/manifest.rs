//! What files a sandbox has is written down, and every difference is found later: on trees that hostile code has made.

mod house;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_engine::spec::{Limits, Root, Storage, Under};
use cove_engine::storage::{Against, Checked, Digest, Error as StorageError, How, ProblemKind, Sealed, Store, Upper};
use cove_engine::{Error, SandboxId, Spec};
use cove_testkit::need;
use house::{House, new_id, new_layer};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, mknodat, utimensat};

fn quiet(_files: u64, _bytes: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A stopped sandbox's files on plain directories.
struct Files {
    store: Store,
    id: SandboxId,
    root: PathBuf,
    usr: PathBuf,
    data: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open_plain(data.path(), "a test").unwrap();
        let id = new_id();
        let limits = Limits { disk: None, ..Limits::default() };
        let Upper::Directories(made) = store.create(&id, Storage::Disk, &limits).unwrap() else { panic!("on disk") };
        Files { store, id, root: made.root_upper, usr: made.usr_upper, data }
    }

    fn seal(&self) -> Sealed {
        self.store.seal(&self.id, &[], &quiet).unwrap()
    }

    fn check(&self, digest: &Digest) -> Checked {
        self.store.check(&self.id, Some(digest), &quiet).unwrap()
    }

    /// What a check tells, as `kind path: detail`.
    fn told(&self, digest: &Digest) -> Vec<String> {
        told(&self.check(digest))
    }

    fn manifest(&self) -> PathBuf {
        self.data.path().join("storage/manifests").join(self.id.as_str())
    }
}

fn told(checked: &Checked) -> Vec<String> {
    let mut all: Vec<String> = checked
        .problems
        .iter()
        .map(|problem| format!("{:?} {}: {}", problem.kind, problem.path, problem.detail))
        .collect();
    all.sort();
    all
}

fn named(folder: &Path, name: &[u8]) -> PathBuf {
    folder.join(OsStr::from_bytes(name))
}

fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Does something to a file and sets its time back, as a disk that fails does.
fn behind_its_back(path: &Path, act: impl FnOnce()) {
    let before = fs::symlink_metadata(path).unwrap();
    act();
    set_time(path, before.mtime(), before.mtime_nsec());
}

/// All that a tree can hold.
fn hostile_tree(files: &Files) {
    let (root, usr) = (&files.root, &files.usr);
    fs::write(root.join("plain"), "plain").unwrap();
    fs::write(named(root, b"new\nline"), "n").unwrap();
    fs::write(named(root, b"not\xff\xfeutf8"), "u").unwrap();
    fs::write(named(root, &b"l".repeat(255)), "long").unwrap();
    fs::write(root.join("\u{1b}[31mred"), "").unwrap();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::set_permissions(root.join("a/b"), Permissions::from_mode(0o1777)).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"end", 50 << 20).unwrap();
    File::create(root.join("hole")).unwrap().set_len(1 << 40).unwrap();
    fs::hard_link(root.join("plain"), root.join("a/same")).unwrap();
    symlink(OsStr::from_bytes(b"/nowhere/\xff"), root.join("link")).unwrap();
    symlink("a", root.join("twin")).unwrap();
    drop(UnixListener::bind(root.join("socket")).unwrap());
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    lsetxattr(root.join("plain"), "user.mark", b"\x00\xff", XattrFlags::empty()).unwrap();
    fs::create_dir(usr.join("bin")).unwrap();
    fs::write(usr.join("bin/tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(usr.join("bin/tool"), Permissions::from_mode(0o4755)).unwrap();
    set_time(&usr.join("bin/tool"), -5, 7);
    if need::root() {
        for name in ["whiteout", "other-whiteout"] {
            mknodat(CWD, root.join(name), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }
        std::os::unix::fs::chown(root.join("a/b/c"), Some(1000), Some(1001)).unwrap();
        let capability: Vec<u8> = [0x0200_0001_u32, 2, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        lsetxattr(usr.join("bin/tool"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    }
}

#[test]
fn a_hostile_tree_is_noted_and_found_as_it_was() {
    let files = Files::new();
    hostile_tree(&files);
    let sealed = files.seal();
    assert!(sealed.files > 15 && sealed.bytes > 0 && sealed.bytes < 1 << 20, "{sealed:?}");
    let checked = files.check(&sealed.digest);
    assert!(checked.is_sound(), "{checked:?}");
    assert_eq!((checked.how, checked.files, checked.bytes), (How::Manifest, sealed.files, sealed.bytes));
    assert_eq!(files.seal().digest, sealed.digest, "the same files have the same manifest");
    // Without a manifest everything is read all the same.
    let read = files.store.check(&files.id, None, &quiet).unwrap();
    assert!(read.is_sound() && read.how == How::Read && read.files == sealed.files, "{read:?}");
    let mode = fs::metadata(files.manifest()).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600, "names of files are nobody else's business");
}

/// One difference that a check must find, and what it must tell.
struct Case {
    what: &'static str,
    does: fn(&Files),
    tells: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        what: "a file is gone",
        does: |files| behind_its_back(&files.root, || fs::remove_file(named(&files.root, b"new\nline")).unwrap()),
        tells: &["Missing /new\\nline: it was a file"],
    },
    Case {
        what: "a folder is gone with all in it",
        does: |files| behind_its_back(&files.usr, || fs::remove_dir_all(files.usr.join("bin")).unwrap()),
        tells: &["Missing /usr/bin: it was a directory"],
    },
    Case {
        what: "names were added",
        does: |files| {
            behind_its_back(&files.root.join("a"), || {
                fs::write(named(&files.root.join("a"), b"\xffnew"), "").unwrap();
                fs::create_dir(files.root.join("a/folder")).unwrap();
            });
        },
        tells: &["Added /a/\\xffnew: ", "Added /a/folder: "],
    },
    Case {
        what: "one byte is another",
        does: |files| {
            let path = named(&files.root, b"not\xff\xfeutf8");
            behind_its_back(&path, || fs::write(&path, "v").unwrap());
        },
        tells: &["Changed /not\\xff\\xfeutf8: content"],
    },
    Case {
        what: "a hole has something in it",
        does: |files| {
            let path = files.root.join("hole");
            behind_its_back(&path, || {
                fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"x", 1 << 39).unwrap();
            });
        },
        tells: &["Changed /hole: content"],
    },
    Case {
        what: "data has become a hole",
        does: |files| {
            let path = files.root.join("sparse");
            behind_its_back(&path, || {
                let file = File::create(&path).unwrap();
                file.write_all_at(b"begin", 0).unwrap();
                file.set_len((50 << 20) + 3).unwrap();
            });
        },
        tells: &["Changed /sparse: content"],
    },
    Case {
        what: "a file grew",
        does: |files| {
            let path = files.usr.join("bin/tool");
            // Writing takes set-user-id and capabilities away: what else differs depends on who runs this.
            fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
        },
        tells: &["Changed /usr/bin/tool: "],
    },
    Case {
        what: "mode and time",
        does: |files| {
            fs::set_permissions(files.root.join("a/b"), Permissions::from_mode(0o755)).unwrap();
            set_time(&files.root.join("a/b/c"), 1, 0);
        },
        tells: &["Changed /a/b/c: time", "Changed /a/b: mode"],
    },
    Case {
        what: "an attribute",
        does: |files| lsetxattr(files.root.join("plain"), "user.mark", b"", XattrFlags::empty()).unwrap(),
        // It is one file with two names.
        tells: &["Changed /a/same: attributes", "Changed /plain: attributes"],
    },
    Case {
        what: "a link leads elsewhere",
        does: |files| {
            let path = files.root.join("twin");
            behind_its_back(&files.root, || {
                let time = fs::symlink_metadata(&path).unwrap();
                fs::remove_file(&path).unwrap();
                symlink("b", &path).unwrap();
                set_time(&path, time.mtime(), time.mtime_nsec());
            });
        },
        tells: &["Changed /twin: target"],
    },
    Case {
        what: "two names are no longer one file",
        does: |files| {
            let path = files.root.join("a/same");
            behind_its_back(&files.root.join("a"), || {
                let time = fs::symlink_metadata(&path).unwrap();
                fs::remove_file(&path).unwrap();
                fs::write(&path, "plain").unwrap();
                lsetxattr(&path, "user.mark", b"\x00\xff", XattrFlags::empty()).unwrap();
                set_time(&path, time.mtime(), time.mtime_nsec());
            });
        },
        tells: &["Changed /a/same: links", "Changed /plain: links"],
    },
    Case {
        what: "a pipe has become a file",
        does: |files| {
            behind_its_back(&files.root, || {
                fs::remove_file(files.root.join("pipe")).unwrap();
                fs::write(files.root.join("pipe"), "").unwrap();
            });
        },
        tells: &["Changed /pipe: it was a pipe, and is a file"],
    },
];

#[test]
fn every_difference_is_found_and_named() {
    for Case { what, does, tells } in CASES {
        let files = Files::new();
        hostile_tree(&files);
        let sealed = files.seal();
        does(&files);
        let told = files.told(&sealed.digest);
        assert_eq!(told.len(), tells.len(), "{what}: {told:?}");
        for (told, wanted) in told.iter().zip(*tells) {
            assert!(told.starts_with(wanted), "{what}: {told:?}, not {wanted:?}");
        }
        assert!(!files.check(&sealed.digest).is_sound(), "{what}: a check changes nothing");
    }
}

#[test]
fn devices_owners_and_capabilities_are_compared_too() {
    if !need::root() {
        return;
    }
    let files = Files::new();
    hostile_tree(&files);
    let sealed = files.seal();
    let (whiteout, tool) = (files.root.join("whiteout"), files.usr.join("bin/tool"));
    behind_its_back(&files.root, || {
        let time = fs::symlink_metadata(&whiteout).unwrap();
        fs::remove_file(&whiteout).unwrap();
        mknodat(CWD, &whiteout, FileType::CharacterDevice, Mode::empty(), rustix::fs::makedev(1, 3)).unwrap();
        set_time(&whiteout, time.mtime(), time.mtime_nsec());
    });
    rustix::fs::lremovexattr(&tool, "security.capability").unwrap();
    std::os::unix::fs::chown(files.root.join("a/b/c"), Some(0), Some(1001)).unwrap();
    assert_eq!(
        files.told(&sealed.digest),
        ["Changed /a/b/c: owner", "Changed /usr/bin/tool: attributes", "Changed /whiteout: device"]
    );
}

#[test]
fn a_manifest_that_is_cut_flipped_gone_or_anothers_is_told() {
    let files = Files::new();
    hostile_tree(&files);
    let sealed = files.seal();
    let whole = fs::read(files.manifest()).unwrap();
    let only = |bytes: &[u8], wanted: &str| {
        fs::write(files.manifest(), bytes).unwrap();
        let checked = files.check(&sealed.digest);
        assert_eq!(checked.problems.len(), 1, "{checked:?}");
        assert_eq!(checked.problems[0].kind, ProblemKind::Manifest);
        assert!(checked.problems[0].detail.contains(wanted), "{checked:?}");
    };
    only(&whole[..whole.len() / 2], "its checksum does not hold");
    only(&whole[..10], "is cut off");
    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 1;
    only(&flipped, "its checksum does not hold");
    fs::write(files.root.join("later"), "").unwrap();
    let later = files.seal();
    assert_ne!(later.digest, sealed.digest);
    assert!(files.told(&sealed.digest)[0].contains("is another one"), "{:?}", files.told(&sealed.digest));
    fs::remove_file(files.manifest()).unwrap();
    assert!(files.told(&later.digest)[0].contains("is not there"));
}

/// The most memory that this process has had since [`forget_peak`], in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

#[test]
fn a_hundred_thousand_files_take_little_memory_and_one_more_is_named() {
    let files = Files::new();
    let many = files.root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..100_000 {
        let name = format!("{number:06}-{}", "n".repeat(100));
        fs::write(many.join(name), if number % 1000 == 0 { "data" } else { "" }).unwrap();
    }
    forget_peak();
    let before = peak();
    let sealed = files.seal();
    let sound = files.check(&sealed.digest);
    assert!(sound.is_sound() && sound.files == 100_003, "{} {:?}", sound.files, sound.problems);
    fs::write(many.join("one more"), "").unwrap();
    let mut told = files.told(&sealed.digest);
    told.retain(|problem| !problem.starts_with("Changed /many: time"));
    assert_eq!(told, ["Added /many/one more: "]);
    let more = peak().saturating_sub(before);
    assert!(more < 24 << 10, "{more} KiB more");
}

#[test]
fn what_no_manifest_can_hold_is_refused_by_name_and_leaves_nothing() {
    let files = Files::new();
    let deep: PathBuf = std::iter::repeat_n("d", 300).collect();
    fs::create_dir_all(files.root.join(deep)).unwrap();
    let refused = files.store.seal(&files.id, &[], &quiet).unwrap_err();
    assert!(refused.to_string().contains("deeper than 256 folders"), "{refused}");
    assert_eq!(fs::read_dir(files.manifest().parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn work_that_is_given_up_leaves_nothing_and_so_does_a_process_that_died_at_it() {
    let files = Files::new();
    hostile_tree(&files);
    let stop = |files: u64, _: u64| if files > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    assert!(matches!(files.store.seal(&files.id, &[], &stop), Err(StorageError::Interrupted)));
    let sealed = files.seal();
    assert!(matches!(files.store.check(&files.id, Some(&sealed.digest), &stop), Err(StorageError::Interrupted)));
    let folder = files.manifest().parent().unwrap().to_owned();
    fs::write(folder.join("new-zzzzz-1-0"), "half of one").unwrap();
    Store::open_plain(files.data.path(), "a test").unwrap();
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [files.id.as_str()]);
    files.store.remove(&files.id).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "it goes with its sandbox");
}

#[test]
fn a_paused_sandbox_is_proven_with_its_layers_and_a_running_one_is_not_judged() {
    if !need::root() {
        return;
    }
    for house in [House::open(), House::open_plain()] {
        let source = house.engine.launch(&house.on_disk()).unwrap().id;
        house.output(&source, "echo below > ~/below; ln ~/below ~/too");
        let layer = new_layer();
        house.engine.capture(&source, &layer).unwrap();
        house.engine.destroy(&source).unwrap();
        let root = Root { under: Under::Host, over: vec![layer] };
        let id = house.engine.launch(&Spec { root, ..house.on_disk() }).unwrap().id;
        house.output(&id, "echo mine > ~/mine; rm ~/below; sleep 1000 >/dev/null 2>&1 &");
        assert!(matches!(house.engine.seal(&id, &quiet), Err(Error::AlreadyRunning(_))), "its files change");

        house.engine.pause(&id).unwrap();
        let sealed = house.engine.seal(&id, &quiet).unwrap();
        let checked = house.engine.check(&id, Some(&sealed.digest), &quiet).unwrap();
        assert!(checked.is_sound() && checked.files == sealed.files, "{checked:?}");
        let [(below, digest)] = checked.layers[..] else { panic!("{:?}", checked.layers) };
        assert_eq!(below, layer);
        let of_layer = house.engine.check_layer(&layer, Against::Manifest(digest), &quiet).unwrap();
        assert!(of_layer.is_sound() && of_layer.how == How::Manifest, "{of_layer:?}");

        // A byte of the layer is another one.
        let path = house.top().join("layers").join(layer.to_string()).join("root/home/user/below");
        behind_its_back(&path, || {
            fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"B", 0).unwrap();
        });
        let of_layer = house.engine.check_layer(&layer, Against::Manifest(digest), &quiet).unwrap();
        assert_eq!(told(&of_layer), ["Changed /home/user/below: content", "Changed /home/user/too: content"]);
        behind_its_back(&path, || {
            fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"b", 0).unwrap();
        });
        assert!(house.engine.check_layer(&layer, Against::Own, &quiet).unwrap().is_sound());

        // Another engine finds the same.
        let house = house.reopen();
        house.engine.found().unwrap();
        assert!(house.engine.check(&id, Some(&sealed.digest), &quiet).unwrap().is_sound());
        house.engine.resume(&id).unwrap();
        assert!(matches!(house.engine.check(&id, Some(&sealed.digest), &quiet), Err(Error::AlreadyRunning(_))));
        house.output(&id, "echo other > ~/mine");
        house.engine.stop(&id, Duration::from_secs(5)).unwrap();
        let changed = told(&house.engine.check(&id, Some(&sealed.digest), &quiet).unwrap());
        assert!(changed.iter().any(|problem| problem.starts_with("Changed /home/user/mine: ")), "{changed:?}");
        let again = house.engine.seal(&id, &quiet).unwrap();
        assert!(house.engine.check(&id, Some(&again.digest), &quiet).unwrap().is_sound());

        house.engine.destroy(&id).unwrap();
        house.engine.remove_layer(&layer).unwrap();
        assert_eq!(fs::read_dir(house.top().join("manifests")).unwrap().count(), 0);
        house.assert_empty();
    }
}

#[test]
fn a_volume_is_looked_at_while_others_use_it() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_plain(data.path(), "a test").unwrap();
    let volume = "v".repeat(20).parse().unwrap();
    store.make_volume(&volume, None).unwrap();
    fs::write(data.path().join("storage/volumes").join("v".repeat(20)).join("file"), "x").unwrap();
    let checked = store.check_volume(&volume, &quiet).unwrap();
    assert!(checked.is_sound() && checked.how == How::Names && checked.files == 1, "{checked:?}");
    assert!(store.check_volume(&"w".repeat(20).parse().unwrap(), &quiet).is_err());
}
