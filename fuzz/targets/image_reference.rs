//! What people call an image is a reference that reads back as it is shown, or an error.

#![no_main]

use cove_image::reference::{Names, Reference};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let names = Names { default_registry: "registry.example".into(), ..Names::default() };
    match Reference::parse(text, &names) {
        Err(refused) => assert!(!refused.to_string().is_empty(), "refused without a reason"),
        Ok(reference) => {
            let shown = reference.to_string();
            assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()), "{shown:?}");
            assert!(!reference.name().split('/').any(|part| part.is_empty() || part == ".."), "{shown}");
            assert_eq!(Reference::parse(&shown, &names), Ok(reference));
        }
    }
});
