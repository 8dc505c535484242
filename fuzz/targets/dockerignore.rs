//! Rules and a path: it is in or out, within the time that its length allows.

#![no_main]

use cove_image::dockerfile::Ignore;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (path, rules) = text.split_once('\n').unwrap_or(("a", text));
    let Ok(ignore) = Ignore::parse(rules) else { return };
    let is_out = ignore.excludes(path);
    if ignore.excludes_all_below(path) {
        assert!(is_out && ignore.excludes(&format!("{path}/below")));
    }
    // One more rule for everything decides.
    let all = Ignore::parse(&format!("{rules}\n**")).expect("one more line");
    assert!(path.split('/').all(|part| matches!(part, "" | "." | "..")) || all.excludes(path) || path.contains(".."));
});
