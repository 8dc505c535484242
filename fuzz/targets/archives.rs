//! An archive from anybody lands in its folder or is refused.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let directory = tempfile::tempdir().expect("make a directory");
    let upper = directory.path().join("upper");
    for folder in ["root", "usr"] {
        fs::create_dir_all(upper.join(folder)).expect("make a folder");
    }
    fs::write(directory.path().join("outside"), "as it was").expect("write a file");
    drop(cove_engine::fuzzing::import(&upper, bytes));
    let names: Vec<_> = fs::read_dir(directory.path()).expect("list").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 2, "something landed outside: {names:?}");
    assert_eq!(fs::read(directory.path().join("outside")).expect("read"), b"as it was");
    let folders = fs::read_dir(&upper).expect("list").map(|entry| entry.expect("an entry").file_name());
    assert!(folders.into_iter().all(|name| name == "root" || name == "usr"));
});
