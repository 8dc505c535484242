//! Layers are made as overlayfs makes them, exported, and imported again: what comes back is what a sandbox saw.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cove_testkit::need;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, mknodat, setxattr};

use super::*;
use crate::archive::{Archive, Kind as ArchiveKind};
use crate::config::Defaults;
use crate::unpack::{self, Tree};

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn part(path: &Path) -> Vec<Part> {
    vec![Part::new(open(path))]
}

/// Two layers as overlayfs leaves them.
fn layers(room: &Path) -> [std::path::PathBuf; 2] {
    let (below, above) = (room.join("below"), room.join("above"));
    for folder in ["etc", "opaque", "merged"] {
        fs::create_dir_all(below.join(folder)).unwrap();
        fs::create_dir_all(above.join(folder)).unwrap();
    }
    for file in ["etc/gone", "etc/stays", "opaque/old", "merged/below", "replaced"] {
        fs::write(below.join(file), "below").unwrap();
    }
    fs::create_dir(below.join("tree")).unwrap();
    fs::write(below.join("tree/x"), "x").unwrap();
    // Above: a deletion, a directory that hides the one below, a merge, a replacement.
    mknodat(CWD, above.join("etc/gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    mknodat(CWD, above.join("tree"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    setxattr(above.join("opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    fs::write(above.join("opaque/new"), "new").unwrap();
    fs::write(above.join("merged/above"), "above").unwrap();
    fs::write(above.join("replaced"), "above").unwrap();
    fs::set_permissions(above.join("replaced"), fs::Permissions::from_mode(0o4711)).unwrap();
    rustix::fs::chown(above.join("replaced"), Some(rustix::fs::Uid::from_raw(1000)), None).unwrap();
    fs::set_permissions(above.join("replaced"), fs::Permissions::from_mode(0o4711)).unwrap();
    setxattr(above.join("replaced"), "user.mine", b"a\nb", XattrFlags::empty()).unwrap();
    fs::hard_link(above.join("replaced"), above.join("another name")).unwrap();
    symlink("merged/above", above.join("link")).unwrap();
    mknodat(CWD, above.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    // What cannot be in an image.
    mknodat(CWD, above.join("device"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3)).unwrap();
    fs::write(above.join(".wh.etc"), "a trap").unwrap();
    [below, above]
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn check(tree: &Path) {
    assert_eq!(names(tree), ["another name", "etc", "fifo", "link", "merged", "opaque", "replaced"]);
    assert_eq!(names(&tree.join("etc")), ["stays"]);
    assert_eq!(names(&tree.join("opaque")), ["new"]);
    assert_eq!(names(&tree.join("merged")), ["above", "below"]);
    let replaced = tree.join("replaced").metadata().unwrap();
    assert_eq!((replaced.mode() & 0o7777, replaced.uid(), replaced.nlink()), (0o4711, 1000, 2));
    assert_eq!(fs::read_to_string(tree.join("another name")).unwrap(), "above");
    let mut value = [0; 10];
    assert_eq!(rustix::fs::getxattr(tree.join("replaced"), "user.mine", &mut value).unwrap(), 3);
    let mut list = [0; 1000];
    assert_eq!(rustix::fs::listxattr(tree.join("opaque"), &mut list[..]).unwrap(), 0, "the overlay's own mark");
    assert_eq!(fs::read_link(tree.join("link")).unwrap(), Path::new("merged/above"));
}

#[test]
fn layers_come_back_as_they_were_seen() {
    if !need::root() {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let [below, above] = layers(room.path());
    let limits = Limits::default();
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let (mut one, mut two, mut all) = (Vec::new(), Vec::new(), Vec::new());
        let first = layer(&part(&below), &mut one, compression, &limits).unwrap();
        let second = layer(&part(&above), &mut two, compression, &limits).unwrap();
        assert_eq!(second.skipped, Skipped { specials: 1, names: 1 });
        let single = flat(&[part(&below), part(&above)], &mut all, compression, &limits).unwrap();
        for stack in [&[(&one, &first), (&two, &second)][..], &[(&all, &single)]] {
            let target = tempfile::tempdir().unwrap();
            let mut tree = Tree::new(open(target.path()), unpack::Limits::default()).unwrap();
            for (bytes, written) in stack {
                assert_eq!(Digest::of(bytes), written.descriptor.digest);
                assert_eq!(bytes.len() as u64, written.descriptor.size);
                tree.apply(&bytes[..], Some(&written.diff_id)).unwrap();
            }
            check(target.path());
        }
    }
}

#[test]
fn the_same_files_make_the_same_layer() {
    if !need::root() {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let [below, _] = layers(room.path());
    let written = || layer(&part(&below), io::sink(), Compression::Gzip, &Limits::default()).unwrap();
    assert_eq!(written(), written());
}

#[test]
fn an_archive_is_a_layout_and_what_docker_loads() {
    if !need::root() {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let [below, above] = layers(room.path());
    let mut files = Vec::new();
    let mut written = Vec::new();
    for path in [&below, &above] {
        let mut file = tempfile::tempfile().unwrap();
        written.push(layer(&part(path), &mut file, Compression::Gzip, &Limits::default()).unwrap());
        files.push(file);
    }
    let defaults = Defaults { env: vec![("A".into(), "b".into())], user: Some("app".into()), ..Defaults::default() };
    let config = Config { config: defaults.to_run(), ..Config::default() };
    let image = Image::new(&config, &written).unwrap();
    let mut out = tempfile::tempfile().unwrap();
    let digest = archive(&image, &mut files, &["some.example/app:1".into()], &mut out).unwrap();

    // As a layout.
    let opened = Archive::open(out.try_clone().unwrap(), tempfile::tempfile, &unpack::Limits::default()).unwrap();
    assert_eq!(opened.kind(), ArchiveKind::Layout);
    for name in [None, Some("some.example/app:1"), Some("1")] {
        let found = opened.image(name, &Platform::host()).unwrap();
        assert_eq!((found.digest, found.config.defaults()), (Some(digest), defaults.clone()));
        let target = tempfile::tempdir().unwrap();
        let mut tree = Tree::new(open(target.path()), unpack::Limits::default()).unwrap();
        for layer in &found.layers {
            tree.apply(layer.open(), layer.diff_id.as_ref()).unwrap();
        }
        check(target.path());
    }
    // As `docker load` of older versions reads it: without the layout's own files.
    out.seek(SeekFrom::Start(0)).unwrap();
    let mut builder = ::tar::Builder::new(tempfile::tempfile().unwrap());
    for entry in ::tar::Archive::new(&out).entries().unwrap() {
        let mut entry = entry.unwrap();
        if !matches!(&*entry.path_bytes(), b"oci-layout" | b"index.json") {
            let header = entry.header().clone();
            builder.append(&header, &mut entry).unwrap();
        }
    }
    let opened = Archive::open(builder.into_inner().unwrap(), tempfile::tempfile, &unpack::Limits::default()).unwrap();
    assert_eq!(opened.kind(), ArchiveKind::Docker);
    let found = opened.image(Some("some.example/app:1"), &Platform::host()).unwrap();
    assert_eq!((found.layers.len(), found.digest), (2, Some(Digest::of(&image.config))));
    // A layer that changed on disk is noticed.
    files[0].set_len(10).unwrap();
    assert!(archive(&image, &mut files, &[], io::sink()).is_err());
}

#[test]
fn parts_have_their_place_in_the_image() {
    if !need::root() {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    for (folder, file) in [("root", "etc"), ("usr", "bin")] {
        fs::create_dir(room.path().join(folder)).unwrap();
        fs::write(room.path().join(folder).join(file), folder).unwrap();
    }
    let parts = vec![
        Part::new(open(&room.path().join("root"))),
        Part { directory: open(&room.path().join("usr")), prefix: "usr".into() },
    ];
    let mut bytes = Vec::new();
    flat(&[parts], &mut bytes, Compression::None, &Limits::default()).unwrap();
    let target = tempfile::tempdir().unwrap();
    Tree::new(open(target.path()), unpack::Limits::default()).unwrap().apply(&bytes[..], None).unwrap();
    assert_eq!(fs::read_to_string(target.path().join("usr/bin")).unwrap(), "usr");
    assert_eq!(fs::read_to_string(target.path().join("etc")).unwrap(), "root");
}

#[test]
fn what_is_too_much_or_only_a_reference_is_refused() {
    if !need::root() {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    fs::create_dir_all(room.path().join("a/b/c")).unwrap();
    fs::write(room.path().join("a/file"), "x".repeat(1000)).unwrap();
    let exported = |limits: Limits| {
        layer(&part(room.path()), io::sink(), Compression::None, &limits).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(exported(Limits::default()), Ok(()));
    let error = exported(Limits { depth: 2, ..Limits::default() }).unwrap_err();
    assert_eq!(error, "export /a/b/c: folders lie within each other more than 2 deep");
    assert!(exported(Limits { bytes: 999, ..Limits::default() }).unwrap_err().contains("larger than 999 bytes"));
    assert!(exported(Limits { entries: 3, ..Limits::default() }).unwrap_err().contains("more than 3 files"));
    setxattr(room.path().join("a"), "user.overlay.redirect", b"/b", XattrFlags::empty()).unwrap();
    assert!(exported(Limits::default()).unwrap_err().contains("reference to another layer"));
}
