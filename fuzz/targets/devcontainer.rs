//! What a repository asks for is understood, or refused with a reason.

#![no_main]

use cove_image::devcontainer::{Devcontainer, Origin};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match Devcontainer::parse(text) {
    Err(problem) => assert!(!problem.to_string().is_empty(), "refused without a reason"),
    Ok(found) => {
        assert!(found.features.iter().all(|feature| feature.path.starts_with("./")));
        assert!(found.container_env.keys().all(|name| !name.is_empty() && !name.contains('=')));
        if let Origin::Build { dockerfile, context, .. } = found.origin {
            for path in [dockerfile, context] {
                assert!(!path.starts_with('/') && path.matches("..").count() <= path.len(), "{path}");
            }
        }
    }
});
