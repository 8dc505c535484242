//! A layer from anybody lands in its tree or is refused: nothing outside, no devices, no marks that an overlay obeys.

#![no_main]

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use cove_image::unpack::{Limits, Tree};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{Mode, OFlags};

fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("make a directory");
    let root = directory.path().join("root");
    fs::create_dir(&root).expect("make a folder");
    fs::write(directory.path().join("outside"), "as it was").expect("write a file");
    let open = || rustix::fs::open(&root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open the root");
    let limits = Limits { bytes: 4 << 20, entries: 1000, metadata: 64 << 10, path: 1024, depth: 32, ..Limits::default() };
    let mut tree = Tree::new(open(), limits).expect("a directory");
    // Twice: the second time everything is already there.
    let bytes = with_checksums(bytes);
    drop(tree.apply(&bytes[..], None));
    drop(tree.apply(&bytes[..], None));
    let names: Vec<_> = fs::read_dir(directory.path()).expect("list").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 2, "something landed outside: {names:?}");
    assert_eq!(fs::read(directory.path().join("outside")).expect("read"), b"as it was");
    check(&root, 0);
});

/// A changed header would be refused for its checksum alone, and nothing behind it would be tried.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut all = bytes.to_vec();
    for block in all.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    all
}

fn check(folder: &Path, depth: usize) {
    assert!(depth <= 32, "too deep: {}", folder.display());
    for entry in fs::read_dir(folder).expect("list") {
        let path = entry.expect("an entry").path();
        let kind = path.symlink_metadata().expect("look").file_type();
        assert!(!kind.is_char_device() && !kind.is_block_device(), "{}", path.display());
        let mut names = [0; 65_536];
        let length = rustix::fs::llistxattr(&path, &mut names[..]).expect("list attributes");
        for name in names[..length].split(|byte| *byte == 0) {
            assert!(!name.starts_with(b"user.overlay.") && !name.starts_with(b"trusted."), "{}", path.display());
        }
        if kind.is_dir() {
            check(&path, depth + 1);
        }
    }
}
