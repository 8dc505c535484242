//! `scripts/package`: what `make dist` makes of the program it built, here of this one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a program to its end and returns what it printed.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_debian_package_and_the_tarball_hold_what_a_machine_needs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dist");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package");
    // Packing is what is tried here: a line that starts the program is packed sooner than the hundred megabytes of its tests' build.
    let program = folder.path().join("cove");
    std::fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_cove"))).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    printed(script.to_str().unwrap(), &[program.to_str().unwrap(), out.to_str().unwrap()]);

    let sums = std::fs::read_to_string(out.join("SHA256SUMS")).unwrap();
    let names: Vec<&str> = sums.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name).collect();
    let [tarball, package] = names[..] else { panic!("two files: {sums}") };
    let checked = Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&out).status();
    assert!(checked.unwrap().success(), "checksums");

    let package = out.join(package);
    let package = package.to_str().unwrap();
    let version = printed("dpkg-deb", &["--field", package, "Version"]);
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
    assert_eq!(printed("dpkg-deb", &["--field", package, "Depends"]).trim(), "", "a static program depends on nothing");
    let listing = printed("dpkg-deb", &["--contents", package]);
    let modes = |path: &str| {
        let line = listing.lines().find(|line| line.ends_with(&format!(" .{path}")));
        line.unwrap_or_else(|| panic!("{path} is not in\n{listing}")).split_whitespace().take(2).collect::<Vec<_>>()
    };
    assert_eq!(modes("/usr/bin/cove"), ["-rwxr-xr-x", "root/root"]);
    assert_eq!(modes("/etc/cove/cove.toml"), ["-rw-------", "root/root"], "it may hold a password");
    for file in [
        "/lib/systemd/system/cove.service",
        "/usr/share/doc/cove/copyright",
        "/usr/share/doc/cove/changelog.gz",
        "/usr/share/bash-completion/completions/cove",
        "/usr/share/zsh/vendor-completions/_cove",
        "/usr/share/fish/vendor_completions.d/cove.fish",
    ] {
        assert_eq!(modes(file), ["-rw-r--r--", "root/root"], "{file}");
    }
    assert!(listing.lines().all(|line| line.contains(" root/root ")), "{listing}");

    // Whole: the sums in the package are those of its files, and the program in it runs.
    let root = folder.path().join("root");
    printed("dpkg-deb", &["--raw-extract", package, root.to_str().unwrap()]);
    let checked = Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&root).status();
    assert!(checked.unwrap().success(), "md5sums");
    let unit = std::fs::read_to_string(root.join("lib/systemd/system/cove.service")).unwrap();
    let starts = unit.lines().filter(|line| line.starts_with("ExecStart"));
    let mut programs = starts.map(|line| line.split(['=', ' ']).nth(1).unwrap()).peekable();
    assert!(programs.peek().is_some() && programs.all(|program| program == "/usr/bin/cove"), "{unit}");
    let conffiles = std::fs::read_to_string(root.join("DEBIAN/conffiles")).unwrap();
    assert_eq!(conffiles, "/etc/cove/cove.toml\n");
    let own = printed(env!("CARGO_BIN_EXE_cove"), &["--version"]);
    assert_eq!(printed(root.join("usr/bin/cove").to_str().unwrap(), &["--version"]), own);

    printed("tar", &["-xzf", out.join(tarball).to_str().unwrap(), "-C", folder.path().to_str().unwrap()]);
    let unpacked = folder.path().join(tarball.strip_suffix(".tar.gz").unwrap());
    assert_eq!(printed(unpacked.join("cove").to_str().unwrap(), &["--version"]), own);
    for file in ["LICENSE", "README.md", "completions/cove.bash"] {
        assert!(unpacked.join(file).metadata().is_ok_and(|found| found.len() > 0), "{file}");
    }
}
