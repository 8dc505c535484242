//! Paths from outside never lead out, whatever links lie on the way; and patterns of names are matched or not, never fatal.

#![no_main]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use rustix::fs::{Mode, OFlags};

#[path = "../../crates/guest/src/file/beneath.rs"]
mod beneath;
#[path = "../../crates/guest/src/file/glob.rs"]
mod glob;

/// A directory with every kind of link that could lead out of it.
fn ground() -> &'static Path {
    static GROUND: OnceLock<PathBuf> = OnceLock::new();
    GROUND.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("cove-fuzz-paths-{}", std::process::id()));
        let top = directory.join("top");
        fs::create_dir_all(top.join("a/b")).expect("make directories");
        for (target, link) in [("/", "root"), ("..", "up"), ("a", "in"), ("../../..", "a/far"), ("loop", "loop"), ("/proc/self/root", "magic")] {
            // There from a run before.
            drop(symlink(target, top.join(link)));
        }
        top
    })
}

fuzz_target!(|data: &[u8]| {
    let (pattern, path) = match data.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (&b"*"[..], data),
    };
    let _ = glob::Glob::new(&String::from_utf8_lossy(pattern)).matches(&String::from_utf8_lossy(path));
    let Some(plain) = beneath::plain(path) else { return };
    assert!(!plain.starts_with(b"/") && !plain.split(|&byte| byte == b'/').any(|part| part == b".." || part == b"."));
    let top = rustix::fs::open(ground(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("open the top");
    let found = [beneath::open_parent(&top, &plain).map(|(parent, _)| parent), beneath::open_directory(&top, if plain.is_empty() { b"." } else { &plain })];
    for directory in found.into_iter().flatten() {
        let place = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).expect("its place");
        assert!(place.starts_with(ground()), "{} led to {}", plain.escape_ascii(), place.display());
    }
});
