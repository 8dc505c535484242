//! Builds the guest and hands its bytes to the engine, so that one `cargo build` makes one program.
//!
//! The guest is another binary for another target with its own profile: a nested cargo builds it in a directory of its
//! own, because the outer one holds the lock on the ordinary directory.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let workspace = manifest.ancestors().nth(2).expect("crates/engine lies in a workspace").to_owned();
    // From this package on: clones share a target directory, and another clone's files tell nothing of ours.
    for watched in ["crates/guest", "crates/protocol", "crates/sys", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed=../../{watched}");
    }
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let musl = format!("{architecture}-unknown-linux-musl");
    // musl makes the smaller guest; glibc linked statically does where its target is not installed.
    let (target, flags) = if is_installed(&musl) {
        (musl, "")
    } else {
        (format!("{architecture}-unknown-linux-gnu"), "-C target-feature=+crt-static")
    };
    let directory = guest_directory();
    build(&workspace, &directory, &target, flags);
    let guest = directory.join(&target).join("guest").join("cove-guest");
    println!("cargo::rustc-env=COVE_GUEST_BINARY={}", guest.display());
}

/// Beside `debug` and `release` of the ordinary target directory, shared by both.
fn guest_directory() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let profile = out.ancestors().nth(3).expect("OUT_DIR is <target>/<profile>/build/<package>/out");
    profile.parent().expect("a profile's directory lies in the target directory").join("guest-build")
}

fn is_installed(target: &str) -> bool {
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let printed = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    printed.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn build(workspace: &Path, directory: &Path, target: &str, flags: &str) {
    let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
    let status = Command::new(cargo)
        .current_dir(workspace)
        .args(["build", "--quiet", "--package", "cove-guest", "--bin", "cove-guest", "--profile", "guest"])
        .args(["--target", target])
        .arg("--target-dir")
        .arg(directory)
        // What the outer build was told is not meant for the guest.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("LLVM_PROFILE_FILE")
        .env("RUSTFLAGS", flags)
        .status()
        .expect("start cargo for the guest");
    assert!(status.success(), "the guest did not compile for {target}: {status}");
}
