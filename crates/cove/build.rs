//! Links the program at a fixed address where it is not static: a program of this size has tens of thousands of relocations,
//! and the loader would write to every page that holds one before `main` begins (a millisecond of every `cove run`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
