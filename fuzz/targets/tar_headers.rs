//! Headers and records of a tar archive, as the guest reads and writes them.

#![no_main]

use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;

#[path = "../../crates/guest/src/file/tar/header.rs"]
mod header;

fuzz_target!(|bytes: &[u8]| {
    drop(header::records(bytes));
    let Some(block) = bytes.first_chunk::<BLOCK>() else { return };
    if let Ok(read) = header::parse(block) {
        assert!(header::text(&read.path).len() <= read.path.len());
        let written = header::encode(&read);
        assert_eq!(written.len() % BLOCK, 0);
    }
});
