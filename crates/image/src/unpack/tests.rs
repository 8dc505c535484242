//! Layers of honest builders and of attackers, on the real filesystem. The layers are written by the `tar` crate or byte by
//! byte, not by our own writer.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::tar::{Builder, EntryType, Header};
use cove_testkit::need;
use rustix::fs::{Mode, OFlags, XattrFlags};

use super::*;

/// A tree to unpack into, and something beside it that must stay as it is.
struct Ground {
    directory: tempfile::TempDir,
    tree: Tree,
}

impl Ground {
    fn new() -> Self {
        Ground::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/secret"), "as it was").unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = rustix::fs::open(directory.path().join("root"), flags, Mode::empty()).unwrap();
        Ground { tree: Tree::new(root, limits).unwrap(), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    fn apply(&mut self, layer: Layer) -> Applied {
        self.tree.apply(&layer.bytes()[..], None).unwrap()
    }

    fn refused(&mut self, layer: Layer) -> String {
        let error = self.tree.apply(&layer.bytes()[..], None).unwrap_err();
        assert!(
            !matches!(error, Error::Host { .. } | Error::Full { .. }),
            "the image's fault is not the host's: {error}"
        );
        self.check_outside();
        error.to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn exists(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    fn names(&self, folder: &str) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(self.path(folder)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    fn check_outside(&self) {
        let names = |path: &Path| {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.directory.path()), ["outside", "root"]);
        assert_eq!(names(&self.outside()), ["secret"]);
        let secret = self.outside().join("secret");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "as it was");
        assert_eq!(secret.metadata().unwrap().nlink(), 1, "linked to");
    }
}

struct Layer(Builder<Vec<u8>>);

/// With the name as it is, `..` and all.
fn header(kind: EntryType, path: &[u8], size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path);
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header
}

impl Layer {
    fn new() -> Self {
        Layer(Builder::new(Vec::new()))
    }

    fn entry(mut self, mut header: Header, data: &[u8]) -> Self {
        header.set_cksum();
        self.0.append(&header, data).unwrap();
        self
    }

    fn file(self, path: &str, text: &str) -> Self {
        self.entry(header(EntryType::Regular, path.as_bytes(), text.len()), text.as_bytes())
    }

    fn folder(self, path: &str) -> Self {
        self.entry(header(EntryType::Directory, path.as_bytes(), 0), b"")
    }

    fn link(self, kind: EntryType, path: &str, target: &str) -> Self {
        let mut header = header(kind, path.as_bytes(), 0);
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
        self.entry(header, b"")
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.link(EntryType::Symlink, path, target)
    }

    fn hard_link(self, path: &str, target: &str) -> Self {
        self.link(EntryType::Link, path, target)
    }

    fn records(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().map(|(key, value)| (*key, *value))).unwrap();
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

// What honest layers mean.

#[test]
fn files_keep_what_they_are() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    let mut program = header(EntryType::Regular, b"./bin/program", 3);
    program.set_mode(0o4751);
    program.set_uid(1000);
    program.set_gid(65_535);
    let mut fifo = header(EntryType::Fifo, b"run/fifo", 0);
    fifo.set_mode(0o666);
    let applied = ground.apply(
        Layer::new()
            .folder("./")
            .records(&[("mtime", b"1500000000.25")])
            .entry(program, b"abc")
            .symlink("/bin/link", "program")
            .hard_link("bin/again", "bin/program")
            .entry(fifo, b""),
    );
    let there = ground.path("bin/program").metadata().unwrap();
    assert_eq!((there.mode() & 0o7777, there.uid(), there.gid(), there.nlink()), (0o4751, 1000, 65_535, 2));
    assert_eq!((there.mtime(), there.mtime_nsec()), (1_500_000_000, 250_000_000));
    assert_eq!(fs::read_link(ground.path("bin/link")).unwrap(), Path::new("program"));
    assert_eq!(ground.path("bin/link").symlink_metadata().unwrap().mtime(), 1_000_000_000);
    let fifo = ground.path("run/fifo").metadata().unwrap();
    assert!(fifo.file_type().is_fifo());
    assert_eq!(fifo.mode() & 0o7777, 0o666);
    assert_eq!(ground.path("bin").metadata().unwrap().mode() & 0o7777, 0o755, "a folder that no entry names");
    assert_eq!(ground.path("").metadata().unwrap().mtime(), 1_000_000_000, "the root is an entry too");
    assert_eq!((applied.entries, applied.skipped), (5, Skipped::default()));
}

#[test]
fn a_folders_time_survives_what_is_put_into_it() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(Layer::new().folder("a").folder("a/b").file("a/b/c", "x").folder("d").file("a/e", "y"));
    for folder in ["a", "a/b", "d"] {
        assert_eq!(ground.path(folder).metadata().unwrap().mtime(), 1_000_000_000, "{folder}");
    }
}

#[test]
fn later_layers_replace_merge_and_delete() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(
        Layer::new()
            .file("file", "old")
            .file("gone", "x")
            .folder("merged")
            .file("merged/below", "1")
            .folder("tree")
            .file("tree/deep/x", "x")
            .file("becomes-folder", "x")
            .symlink("link", "merged")
            .file("etc/keep", "k"),
    );
    let mut merged = header(EntryType::Directory, b"merged", 0);
    merged.set_mode(0o700);
    ground.apply(
        Layer::new()
            .file("file", "new")
            .file(".wh.gone", "")
            .entry(merged, b"")
            .file("merged/above", "2")
            .file("tree", "now a file")
            .folder("becomes-folder")
            .folder("link")
            .file("link/own", "x")
            .file("etc/.wh.never-there", "")
            .file("nowhere/.wh.x", "")
            .file(".wh..wh.plnk/12.34", "aufs"),
    );
    assert_eq!(ground.read("file"), "new");
    assert!(!ground.exists("gone") && !ground.exists("nowhere") && !ground.exists(".wh..wh.plnk"));
    assert_eq!(ground.names("merged"), ["above", "below"]);
    assert_eq!(ground.path("merged").metadata().unwrap().mode() & 0o7777, 0o700);
    assert_eq!(ground.read("tree"), "now a file");
    assert!(ground.path("becomes-folder").is_dir());
    assert!(ground.path("link").symlink_metadata().unwrap().is_dir(), "a folder replaces a link");
    assert_eq!(ground.names("link"), ["own"]);
    assert_eq!(ground.read("etc/keep"), "k");
    let all = ground.names("");
    assert!(!all.iter().any(|name| name.as_encoded_bytes().starts_with(b".wh.")), "{all:?}");
}

#[test]
fn folders_are_found_through_links_as_in_a_merged_usr() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(
        Layer::new()
            .folder("usr/lib")
            .symlink("lib", "usr/lib")
            .symlink("abs", "/usr/lib")
            .symlink("up", "../../../usr"),
    );
    ground.apply(Layer::new().file("lib/a", "1").file("abs/b", "2").file("up/lib/c", "3").file("lib/new/d", "4"));
    assert_eq!(ground.names("usr/lib"), ["a", "b", "c", "new"]);
    assert!(ground.path("lib").symlink_metadata().unwrap().is_symlink());
    ground.apply(Layer::new().file("lib/.wh.a", "").hard_link("abs/e", "lib/b"));
    assert_eq!(ground.names("usr/lib"), ["b", "c", "e", "new"]);
    ground.check_outside();
}

#[test]
fn an_opaque_mark_counts_wherever_it_stands() {
    if !need::root() {
        return;
    }
    for place in ["first", "last"] {
        let mut ground = Ground::new();
        ground.apply(
            Layer::new()
                .file("d/old", "x")
                .file("d/both/old", "x")
                .file("d/both/same", "old")
                .file("d/sub/x", "x")
                .file("e", "x"),
        );
        let mut layer = Layer::new().folder("d");
        if place == "first" {
            layer = layer.file("d/.wh..wh..opq", "");
        }
        layer = layer.file("d/new", "n").file("d/both/same", "new");
        if place == "last" {
            layer = layer.file("d/.wh..wh..opq", "");
        }
        ground.apply(layer);
        assert_eq!(ground.names("d"), ["both", "new"], "{place}");
        assert_eq!(ground.names("d/both"), ["same"], "{place}");
        assert_eq!(ground.read("d/both/same"), "new");
        assert!(ground.exists("e"));
    }
}

#[test]
fn a_name_written_and_whited_out_in_one_layer_stays() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(
        Layer::new().file("a", "old").file("b", "old").file("d/old", "x").file("i/old", "x").file("source", "s"),
    );
    ground.apply(
        Layer::new()
            .file("a", "new")
            .file(".wh.a", "")
            .file(".wh.b", "")
            .file("b", "new")
            .folder("d")
            .file("d/new", "n")
            .file(".wh.d", "")
            .file("i/new", "n")
            .file(".wh.i", "")
            .hard_link("moved", "source")
            .file(".wh.source", ""),
    );
    assert_eq!((ground.read("a"), ground.read("b")), ("new".into(), "new".into()));
    assert_eq!(ground.names("d"), ["new"]);
    assert_eq!(ground.names("i"), ["new"]);
    assert_eq!(ground.read("moved"), "s");
    assert!(!ground.exists("source"), "a second name of a lower file does not keep the first");
}

#[test]
fn replacing_a_file_leaves_its_other_names_alone() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(Layer::new().file("a", "shared").hard_link("b", "a"));
    ground.apply(Layer::new().file("a", "mine"));
    assert_eq!((ground.read("a"), ground.read("b")), ("mine".into(), "shared".into()));
    ground.apply(Layer::new().hard_link("b", "b").hard_link("c", "./b"));
    assert_eq!(ground.path("b").metadata().unwrap().nlink(), 2);
}

#[test]
fn zeros_become_holes_and_holes_stay() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    let mut content = vec![0; 4 << 20];
    content[..5].copy_from_slice(b"begin");
    content[3 << 20..(3 << 20) + 3].copy_from_slice(b"end");
    let mut sparse = b"2\n0\n5\n1048576\n4\n".to_vec();
    sparse.resize(512, 0);
    sparse.extend_from_slice(b"hellotail");
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.realsize", b"8388608"),
    ];
    ground.apply(
        Layer::new()
            .entry(header(EntryType::Regular, b"zeros", content.len()), &content)
            .records(&records)
            .entry(header(EntryType::Regular, b"GNUSparseFile.1/sparse", sparse.len()), &sparse),
    );
    assert_eq!(fs::read(ground.path("zeros")).unwrap(), content);
    assert!(ground.path("zeros").metadata().unwrap().blocks() * 512 < 1 << 20);
    let sparse = fs::read(ground.path("sparse")).unwrap();
    assert_eq!((sparse.len(), &sparse[..5], &sparse[1 << 20..(1 << 20) + 4]), (8 << 20, &b"hello"[..], &b"tail"[..]));
    assert!(ground.path("sparse").metadata().unwrap().blocks() * 512 < 1 << 20);
    assert!(!ground.exists("GNUSparseFile.1"));
}

#[test]
fn compressed_layers_unpack_to_the_same() {
    if !need::root() {
        return;
    }
    let plain = Layer::new().file("a", "text").file("b", &"long ".repeat(10_000)).bytes();
    let digest = Digest::of(&plain);
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let members: Vec<u8> = plain.chunks(700).flat_map(gzip).collect();
    for layer in [plain.clone(), gzip(&plain), members, zstd::encode_all(&plain[..], 3).unwrap()] {
        let mut ground = Ground::new();
        let applied = ground.tree.apply(&layer[..], Some(&digest)).unwrap();
        assert_eq!((applied.diff_id, applied.bytes), (digest, plain.len() as u64));
        assert_eq!(ground.read("b").len(), 50_000);
    }
}

// What hostile layers try.

#[test]
fn cannot_unpack_outside() {
    if !need::root() {
        return;
    }
    for name in ["../x", "a/../../x", "..", "a/..", "./../x", "/../x"] {
        let mut ground = Ground::new();
        assert!(ground.refused(Layer::new().file(name, "x")).contains("leads upwards"), "{name}");
        assert!(ground.refused(Layer::new().folder(name)).contains("leads upwards"), "{name}");
    }
    let mut ground = Ground::new();
    ground.apply(Layer::new().file("/x", "inside").file("//y//./z", "inside"));
    assert_eq!((ground.read("x"), ground.read("y/z")), ("inside".into(), "inside".into()));
    assert!(!Path::new("/x").exists());
}

#[test]
fn cannot_write_through_a_link_of_the_image() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    let outside = ground.outside().to_str().unwrap().to_owned();
    ground.apply(
        Layer::new()
            .symlink("absolute", &outside)
            .symlink("relative", "../outside")
            .symlink("deep", "../../../../../../../../../../../..")
            .symlink("secret", &format!("{outside}/secret")),
    );
    // As the last name it is replaced.
    ground.apply(Layer::new().file("secret", "mine"));
    assert!(ground.path("secret").symlink_metadata().unwrap().is_file());
    // As a folder it leads to the same name inside, where nothing is.
    for name in ["absolute/new", "relative/new"] {
        assert!(ground.refused(Layer::new().file(name, "x")).contains("link that leads to nothing"), "{name}");
        assert!(
            ground.refused(Layer::new().hard_link("h", &name.replace("new", "secret"))).contains("leads to nothing")
        );
    }
    ground.apply(Layer::new().file("deep/inside", "x"));
    assert_eq!(ground.read("inside"), "x", "the top is as high as it goes");
    ground.apply(
        Layer::new().file("absolute/.wh.secret", "").file("relative/.wh..wh..opq", "").file("deep/.wh.outside", ""),
    );
    ground.check_outside();
}

#[test]
fn cannot_use_links_that_were_there_before() {
    if !need::root() {
        return;
    }
    // A tree that a former layer could have made, with magic links too.
    let mut ground = Ground::new();
    symlink("/proc/self/cwd", ground.path("magic")).unwrap();
    symlink("/proc/self/root", ground.path("root")).unwrap();
    for name in ["magic/x", "root/tmp/x", "root/x"] {
        assert!(ground.refused(Layer::new().file(name, "x")).contains("link that leads to nothing"), "{name}");
    }
}

#[test]
fn cannot_link_to_the_hosts_files() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    let outside = ground.outside().to_str().unwrap().to_owned();
    for target in ["/etc/shadow", "etc/shadow", &format!("{outside}/secret"), "missing"] {
        assert!(ground.refused(Layer::new().hard_link("h", target)).contains("leads to nothing"), "{target}");
    }
    for target in ["../outside/secret", "a/../../outside/secret"] {
        assert!(ground.refused(Layer::new().hard_link("h", target)).contains("leads upwards"), "{target}");
    }
    for target in ["", "/", "folder"] {
        let layer = Layer::new().folder("folder").hard_link("h", target);
        assert!(ground.refused(layer).contains("leads to a directory"), "{target}");
    }
    // A second name of a symlink is a symlink: what it leads to is not touched.
    ground.apply(Layer::new().symlink("s", &format!("{outside}/secret")).hard_link("h", "s"));
    assert!(ground.path("h").symlink_metadata().unwrap().is_symlink());
    ground.apply(Layer::new().file("h", "mine"));
    ground.check_outside();
    // What is in the way has the target in it.
    assert!(ground.refused(Layer::new().file("d/t", "x").hard_link("d", "d/t")).contains("leads to nothing"));
}

#[test]
fn cannot_follow_links_in_circles() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(Layer::new().symlink("a", "b").symlink("b", "a").symlink("self", "self"));
    for name in ["a/x", "self/x"] {
        assert!(ground.refused(Layer::new().file(name, "x")).contains("circle"), "{name}");
    }
    assert!(ground.refused(Layer::new().file("f", "x").file("f/x", "x")).contains("is none"));
}

#[test]
fn cannot_white_out_what_is_no_name() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(Layer::new().file("d/keep", "x"));
    for name in [".wh.", ".wh..", ".wh...", "d/.wh.", "d/.wh...", "d/.wh.."] {
        assert!(ground.refused(Layer::new().file(name, "")).contains("whiteout of nothing"), "{name}");
    }
    assert!(ground.refused(Layer::new().file(".wh.d/x", "")).contains("no folder"));
    assert_eq!(ground.read("d/keep"), "x");
    // The root itself can be opaque: it is emptied, not removed.
    ground.apply(Layer::new().file(".wh..wh..opq", "").file("new", ""));
    assert_eq!(ground.names(""), ["new"]);
}

#[test]
fn cannot_make_devices() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    ground.apply(Layer::new().file("dev/null", "was here"));
    let device = |kind, path: &str, numbers: (u32, u32)| {
        let mut header = header(kind, path.as_bytes(), 0);
        header.set_device_major(numbers.0).unwrap();
        header.set_device_minor(numbers.1).unwrap();
        header
    };
    let applied = ground.apply(
        Layer::new()
            .entry(device(EntryType::Char, "dev/null", (1, 3)), b"")
            .entry(device(EntryType::Block, "dev/sda", (8, 0)), b"")
            .entry(device(EntryType::Char, "whiteout", (0, 0)), b""),
    );
    assert_eq!(applied.skipped.devices, 3);
    assert!(ground.names("dev").is_empty() && !ground.exists("whiteout"));
    let unknown = header(EntryType::new(b'V'), b"label", 0);
    assert!(ground.refused(Layer::new().entry(unknown, b"")).contains("type"));
}

#[test]
fn cannot_set_attributes_that_the_host_obeys() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    let raw = ground.path("probe");
    fs::write(&raw, "").unwrap();
    rustix::fs::setxattr(&raw, "user.probe", b"x", XattrFlags::empty()).unwrap();
    let second = [&0x0200_0001_u32.to_le_bytes()[..], &(1_u32 << 1 | 1 << 3).to_le_bytes(), &[0; 12]].concat();
    let third = |root: u32| [&0x0300_0001_u32.to_le_bytes()[..], &second[4..], &root.to_le_bytes()].concat();
    let (own, foreign) = (third(0), third(100_000));
    let applied = ground.apply(
        Layer::new()
            .records(&[
                ("SCHILY.xattr.user.mine", b"1\n2"),
                ("SCHILY.xattr.user.overlay.opaque", b"y"),
                ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.user.overlay.metacopy", b""),
                ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                ("SCHILY.xattr.security.selinux", b"x"),
                ("SCHILY.xattr.security.capability", &second),
            ])
            .file("second", "x")
            .records(&[("SCHILY.xattr.security.capability", &own)])
            .file("third", "x")
            .records(&[("SCHILY.xattr.security.capability", &foreign)])
            .file("foreign", "x")
            .records(&[("SCHILY.xattr.user.overlay.opaque", b"y"), ("SCHILY.xattr.user.mine", b"d")])
            .folder("folder")
            .records(&[("SCHILY.xattr.user.mine", b"d")])
            .symlink("link", "second"),
    );
    let of = |name: &str, attribute_name: &str| attribute(&ground.path(name), attribute_name);
    assert_eq!(of("second", "user.mine"), Some(b"1\n2".to_vec()));
    assert_eq!(of("second", "security.capability"), Some(second.clone()), "with 0x0a in it");
    assert_eq!(of("third", "security.capability"), Some(second), "in the form without an owner");
    assert_eq!(of("foreign", "security.capability"), None);
    assert_eq!(of("folder", "user.mine"), Some(b"d".to_vec()));
    for name in ["second", "folder"] {
        for attribute_name in
            ["user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy", "trusted.overlay.opaque"]
        {
            assert_eq!(of(name, attribute_name), None, "{name}: {attribute_name}");
        }
    }
    assert_eq!(applied.skipped.attributes, 5 + 1 + 1 + 1);
}

#[test]
fn owners_beyond_the_sandbox_are_nobody() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    let mut far = header(EntryType::Regular, b"far", 0);
    far.set_uid(4_294_967_294);
    far.set_gid(65_536);
    let applied = ground.apply(
        Layer::new()
            .entry(far, b"")
            .records(&[("uid", b"99999999999999999999"), ("gid", b"5")])
            .file("records", "")
            .file("near", ""),
    );
    let owner = |name| (ground.path(name).metadata().unwrap().uid(), ground.path(name).metadata().unwrap().gid());
    assert_eq!((owner("far"), owner("records"), owner("near")), ((65_534, 65_534), (65_534, 5), (0, 0)));
    assert_eq!(applied.skipped.owners, 2);
}

#[test]
fn an_ordinary_users_files_stay_their_own() {
    if !need::root() {
        return;
    }
    let ground = Ground::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = rustix::fs::open(ground.path(""), flags, Mode::empty()).unwrap();
    let mut tree = Tree::new(root, Limits::default()).unwrap().with_owners(Owners::Caller);
    let mut theirs = header(EntryType::Regular, b"theirs", 0);
    theirs.set_uid(1000);
    theirs.set_mode(0o4755);
    let applied = tree.apply(&Layer::new().entry(theirs, b"").symlink("link", "x").bytes()[..], None).unwrap();
    let there = ground.path("theirs").metadata().unwrap();
    assert_eq!((there.uid(), there.mode() & 0o7777, applied.skipped.owners), (0, 0o4755, 1));
}

#[test]
fn a_bomb_is_noticed_while_it_goes_off() {
    if !need::root() {
        return;
    }
    let small = || Limits { bytes: 1 << 20, entries: 100, ..Limits::default() };
    // Zeros that compress to nothing.
    let zeros = Layer::new().entry(header(EntryType::Regular, b"zeros", 64 << 20), &vec![0; 64 << 20]).bytes();
    let packed = zstd::encode_all(&zeros[..], 1).unwrap();
    assert!(packed.len() < 1 << 20);
    for layer in [&packed, &zeros] {
        let error = Ground::with(small()).tree.apply(&layer[..], None).unwrap_err();
        assert!(matches!(error, Error::Limit(Limit::Bytes(1_048_576))), "{error}");
    }
    // Behind the end of the archive, where nothing is unpacked.
    let behind = [Layer::new().file("a", "x").bytes(), vec![0; 2 << 20]].concat();
    let error = Ground::with(small()).tree.apply(&behind[..], None).unwrap_err();
    assert!(matches!(error, Error::Limit(Limit::Bytes(_))), "{error}");
    // Many layers are counted together.
    let mut ground = Ground::with(small());
    let half = Layer::new().file("a", &"x".repeat(600_000)).bytes();
    ground.tree.apply(&half[..], None).unwrap();
    assert!(matches!(ground.tree.apply(&half[..], None), Err(Error::Limit(Limit::Bytes(_)))));
    // Entries.
    let many = (0..101).fold(Layer::new(), |layer, number| layer.file(&number.to_string(), ""));
    assert!(Ground::with(small()).refused(many).contains("more than 100 entries"));
}

#[test]
fn a_tebibyte_of_holes_is_as_large_as_it_says() {
    if !need::root() {
        return;
    }
    let mut map = b"1\n0\n0\n".to_vec();
    map.resize(512, 0);
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"huge"),
        ("GNU.sparse.realsize", b"1099511627776"),
    ];
    let pax = Layer::new().records(&records).entry(header(EntryType::Regular, b"x", map.len()), &map);
    assert!(Ground::new().refused(pax).contains("larger than"));
    let mut gnu = header(EntryType::GNUSparse, b"huge", 0);
    let fields = gnu.as_gnu_mut().unwrap();
    fields.sparse[0].offset.copy_from_slice(format!("{:011o}\0", 0).as_bytes());
    fields.sparse[0].numbytes.copy_from_slice(format!("{:011o}\0", 0).as_bytes());
    fields.set_real_size(1 << 40);
    assert!(Ground::new().refused(Layer::new().entry(gnu, b"")).contains("larger than"));
}

#[test]
fn records_attributes_and_names_have_limits() {
    if !need::root() {
        return;
    }
    let large = vec![b'x'; 64 << 10];
    let names: Vec<String> = (0..100).map(|number| format!("SCHILY.xattr.user.{number}")).collect();
    let records: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &large[..])).collect();
    let too_many = Layer::new().records(&records).file("a", "");
    assert!(Ground::new().refused(too_many).contains("larger than 4194304 bytes"));
    // Fewer of them fit into the archive, but hardly into a filesystem: they are left out, and counted.
    let mut ground = Ground::new();
    let applied = ground.apply(Layer::new().records(&records[..20]).file("a", "kept"));
    assert!(applied.skipped.attributes <= 20);
    assert_eq!(ground.read("a"), "kept");
    let path = "d/".repeat(2500);
    assert!(
        Ground::new().refused(Layer::new().records(&[("path", path.as_bytes())]).file("a", "")).contains("too long")
    );
    let deep = "d/".repeat(300);
    assert!(
        Ground::new().refused(Layer::new().records(&[("path", deep.as_bytes())]).file("a", "")).contains("too deep")
    );
    let wide = "w".repeat(300);
    assert!(Ground::new().refused(Layer::new().records(&[("path", wide.as_bytes())]).file("a", "")).contains("255"));
    let wide = format!("{wide}/x");
    assert!(Ground::new().refused(Layer::new().records(&[("path", wide.as_bytes())]).file("a", "")).contains("255"));
    let zero = Layer::new().records(&[("path", b"a\0b")]).file("a", "");
    assert!(Ground::new().refused(zero).contains("zero byte"));
}

#[test]
fn cannot_go_deeper_through_links() {
    if !need::root() {
        return;
    }
    // Each link adds 200 folders to the one before.
    let folders = vec!["d"; 200].join("/");
    let mut ground = Ground::new();
    let first =
        Layer::new().records(&[("path", folders.as_bytes())]).folder("x").symlink("l1", &vec!["d"; 49].join("/"));
    ground.apply(first);
    let second = format!("l1/{}", vec!["d"; 210].join("/"));
    let error = ground.refused(Layer::new().records(&[("path", second.as_bytes())]).folder("x"));
    assert!(error.contains("too deep"), "{error}");
    let fits = format!("l1/{}", vec!["d"; 100].join("/"));
    ground.apply(Layer::new().records(&[("path", fits.as_bytes())]).folder("x"));
}

#[test]
fn time_runs_out() {
    if !need::root() {
        return;
    }
    // Ten thousand members without content: the decoder itself reads on and on.
    let empty = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()).finish().unwrap();
    let members = empty.repeat(10_000);
    let deadline = Some(Instant::now());
    let error = Ground::with(Limits { deadline, ..Limits::default() }).tree.apply(&members[..], None).unwrap_err();
    assert!(matches!(error, Error::Limit(Limit::Time)), "{error}");
    // A source that never ends.
    let begun = Instant::now();
    let deadline = Some(begun + Duration::from_millis(200));
    let endless = Layer::new().entry(header(EntryType::Regular, b"endless", 0), b"").bytes();
    let mut large = header(EntryType::Regular, b"endless", 0);
    large.set_size(u64::from(u32::MAX) * 8);
    large.set_cksum();
    let endless = std::io::Cursor::new([large.as_bytes(), &endless[..0]].concat()).chain(std::io::repeat(1));
    let limits = Limits { deadline, bytes: u64::MAX, ..Limits::default() };
    let mut ground = Ground::with(limits);
    let error = ground.tree.apply(SlowDown(endless), None).unwrap_err();
    assert!(matches!(error, Error::Limit(Limit::Time)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Gives a little at a time, so that the disk stays empty.
struct SlowDown<R>(R);

impl<R: Read> Read for SlowDown<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(4096);
        std::thread::sleep(Duration::from_millis(1));
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn many_marks_cost_no_more_than_the_files() {
    if !need::root() {
        return;
    }
    let mut layer = (0..3000).fold(Layer::new(), |layer, number| layer.file(&format!("d/{number}"), ""));
    for _ in 0..3000 {
        layer = layer.file("d/.wh..wh..opq", "").file(".wh.d", "");
    }
    let begun = Instant::now();
    let mut ground = Ground::new();
    ground.apply(layer);
    assert_eq!(ground.names("d").len(), 3000);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn another_content_than_the_image_says_is_refused() {
    if !need::root() {
        return;
    }
    let layer = Layer::new().file("a", "x").bytes();
    let error = Ground::new().tree.apply(&layer[..], Some(&Digest::of(b"other"))).unwrap_err();
    assert!(matches!(error, Error::OtherContent { found, .. } if found == Digest::of(&layer)), "{error}");
    // A cut stream is not taken for a small layer.
    let packed = zstd::encode_all(&layer[..], 3).unwrap();
    for cut in [&layer[..700], &packed[..packed.len() - 2]] {
        assert!(matches!(Ground::new().tree.apply(cut, None), Err(Error::Broken(_))));
    }
}

#[test]
fn a_full_disk_is_not_the_images_fault() {
    if !need::root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let _mounted = Mounted::tmpfs(directory.path(), "size=1m");
    let root = rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut tree = Tree::new(root, Limits::default()).unwrap();
    let layer = Layer::new().file("a", &"x".repeat(4 << 20)).bytes();
    let error = tree.apply(&layer[..], None).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
}

/// A filesystem of its own, gone at the end.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path, options: &str) -> Self {
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("none", at, "tmpfs", rustix::mount::MountFlags::empty(), Some(options.as_c_str()))
            .unwrap();
        Mounted(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).expect("unmount");
    }
}

#[test]
fn cannot_cross_into_another_filesystem() {
    if !need::root() {
        return;
    }
    let mut ground = Ground::new();
    fs::create_dir(ground.path("mounted")).unwrap();
    let _mounted = Mounted::tmpfs(&ground.path("mounted"), "size=1m");
    assert!(ground.refused(Layer::new().file("mounted/x", "x")).contains("another filesystem"));
}
