//! The built-in template: the host's own `/usr` under files that are made here.
//!
//! An allow-list, never a deny-list: a sandbox sees `/usr`, what this module writes, and those files of the host's
//! `/etc` that are named in [`COPIED`]: none of them holds a secret on any distribution. The layer is made once per
//! state of the host and named by it, so that opening the engine costs a few stat calls.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::fence::Inside;
use crate::process;

/// Names that people use and a host may not have, each a link to what it has.
const ALIASES: [(&str, &str); 2] = [("python", "/usr/bin/python3"), ("pip", "/usr/bin/pip3")];

/// The user of commands that name none.
pub const USER: u32 = 1000;

/// Raised when what is written here changes.
const EDITION: u32 = 3;

/// Programs that come before the host's of the same name (`PATH` of `cove_protocol::process`), each where the host has it.
const SHIMS: [(&str, &str); 4] = [
    ("apt", include_str!("base/apt-get")),
    ("apt-get", include_str!("base/apt-get")),
    ("df", include_str!("base/df")),
    ("npm", include_str!("base/npm")),
];
/// Beside a layer: the boot that wrote it, for as long as it may not be on the disk.
const WRITTEN: &str = "written";
/// Beside a layer: all of it is on the disk.
const SYNCED: &str = "synced";

/// Host files a sandbox's programs need to find libraries, certificates, names and time.
const COPIED: [&str; 26] = [
    "alternatives",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "inputrc",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "lsb-release",
    "magic",
    "mime.types",
    "os-release",
    "perl",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "services",
    "terminfo",
];

/// Certificates, without the directory of private keys next to them.
const COPIED_TLS: [&str; 3] = ["ssl/certs", "ssl/openssl.cnf", "pki/ca-trust/extracted"];

const DIRECTORIES: [(&str, u32); 28] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/pam.d", 0o755),
    ("etc/sudoers.d", 0o750),
    ("home", 0o755),
    ("home/daytona", 0o755),
    ("home/user", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("opt/cove", 0o755),
    ("opt/cove/bin", 0o755),
    ("opt/cove/shims", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("run/sudo", 0o711),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];

const LINKS: [(&str, &str); 3] = [("var/run", "/run"), ("var/lock", "/run/lock"), ("etc/mtab", "/proc/self/mounts")];

/// The directories of `/` that a merged host keeps in `/usr`.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

const FILES: [(&str, u32, &str); 16] = [
    (
        "etc/passwd",
        0o644,
        "root:*:0:0:root:/root:/bin/bash\n\
         daemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
         www-data:*:33:33:www-data:/var/www:/usr/sbin/nologin\n\
         user:*:1000:1000:user:/home/user:/bin/bash\n\
         daytona:*:1000:1000:daytona:/home/daytona:/bin/bash\n\
         nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    (
        "etc/group",
        0o644,
        "root:*:0:\ndaemon:*:1:\ntty:*:5:\nwww-data:*:33:\nsudo:*:27:user,daytona\nutmp:*:43:\nusers:*:100:\nuser:*:1000:\ndaytona:*:1000:\nnogroup:*:65534:\n",
    ),
    (
        "etc/nsswitch.conf",
        0o644,
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n",
    ),
    ("etc/host.conf", 0o644, "multi on\n"),
    ("etc/shells", 0o644, "/bin/sh\n/bin/bash\n/usr/bin/bash\n"),
    (
        "etc/profile",
        0o644,
        "export PATH=${PATH:-/opt/cove/shims:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cove/bin}\n\
         case \":$PATH:\" in *\":$HOME/.local/bin:\"*) ;; *) PATH=\"$HOME/.local/bin:$PATH\" ;; esac\n\
         export LANG=\"${LANG:-C.UTF-8}\"\n\
         [ -n \"$BASH_VERSION\" ] && [ -n \"$PS1\" ] && [ -r /etc/bash.bashrc ] && . /etc/bash.bashrc\n\
         :\n",
    ),
    ("etc/bash.bashrc", 0o644, "[ -z \"$PS1\" ] && return\nPS1='\\u@\\h:\\w\\$ '\nshopt -s checkwinsize\n"),
    ("etc/environment", 0o644, ""),
    // Nobody else's system is broken by a package: pip may write beside the host's (PEP 668), and root may use it.
    (
        "etc/pip.conf",
        0o644,
        "[global]\nbreak-system-packages = true\nroot-user-action = ignore\ndisable-pip-version-check = true\n",
    ),
    (
        "etc/sudoers",
        0o440,
        "Defaults env_reset\n\
         Defaults secure_path=\"/opt/cove/shims:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cove/bin\"\n\
         root ALL=(ALL:ALL) ALL\nuser ALL=(ALL:ALL) NOPASSWD: ALL\ndaytona ALL=(ALL:ALL) NOPASSWD: ALL\n",
    ),
    // Root of a sandbox is nobody outside of it, and `user` may become root by sudoers: no module needs to ask.
    ("etc/pam.d/other", 0o644, PAM_PERMIT),
    ("etc/pam.d/sudo", 0o644, PAM_PERMIT),
    ("home/user/.profile", 0o644, USERS_PROFILE),
    ("home/user/.bashrc", 0o644, USERS_BASHRC),
    ("home/daytona/.profile", 0o644, USERS_PROFILE),
    ("home/daytona/.bashrc", 0o644, USERS_BASHRC),
];

/// What belongs to [`USER`]. It has two names and two homes: those that clients of either dialect expect.
const USERS: [&str; 7] = [
    "home/user",
    "home/user/.profile",
    "home/user/.bashrc",
    "home/daytona",
    "home/daytona/.profile",
    "home/daytona/.bashrc",
    "workspace",
];

const USERS_PROFILE: &str = "[ -n \"$BASH_VERSION\" ] && [ -f \"$HOME/.bashrc\" ] && . \"$HOME/.bashrc\"\n:\n";
const USERS_BASHRC: &str =
    "case $- in *i*) ;; *) return ;; esac\nalias ls='ls --color=auto'\nalias grep='grep --color=auto'\n";

const PAM_PERMIT: &str = "auth required pam_permit.so\naccount required pam_permit.so\n\
    session required pam_permit.so\npassword required pam_permit.so\n";

/// Those of them that this host keeps outside of `/usr`.
pub fn unmerged() -> Vec<&'static str> {
    let outside = |name: &&str| {
        let path = Path::new("/").join(name);
        path.is_dir() && !path.is_symlink()
    };
    MERGED.into_iter().filter(outside).collect()
}

/// Those whose program the host has.
fn shims() -> impl Iterator<Item = (&'static str, &'static str)> {
    let has = |name: &str| ["/usr/bin", "/usr/local/bin"].iter().any(|place| Path::new(place).join(name).exists());
    SHIMS.into_iter().filter(move |(name, _)| has(name))
}

/// The layer for this state of the host, made if it is not there. `data` is the engine's data directory.
///
/// Syncing thousands of small files would take longer than everything else of a first start. So a layer is used while the boot lasts that
/// wrote it, [`bring_to_disk`] syncs it later, and one that no boot has synced is made anew: a power cut leaves empty files.
pub fn layer(data: &Path, inside: Inside) -> Result<PathBuf, Error> {
    let folder = data.join("base");
    let layer = folder.join(name(inside));
    if is_whole(&layer) {
        return Ok(layer);
    }
    fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
    // Thousands of small files: of several engines that start at the same time, one writes them and the others wait.
    // The kernel releases the lock however its holder ends.
    let path = folder.join("lock");
    let lock = fs::File::create(&path).map_err(Error::file("make", &path))?;
    lock.lock().map_err(Error::file("lock", &path))?;
    if is_whole(&layer) {
        return Ok(layer);
    }
    let draft = folder.join("draft");
    for old in [&draft, &layer] {
        remove(old).map_err(Error::file("remove", old))?;
    }
    match fs::remove_file(beside(&layer, SYNCED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::file("remove", &layer)(error)),
        _ => {}
    }
    write(&draft, inside).map_err(Error::file("write the base layer to", &draft))?;
    let written = beside(&layer, WRITTEN);
    fs::write(&written, process::boot()).map_err(Error::file("write", &written))?;
    fs::rename(&draft, &layer).map_err(Error::file("name", &layer))?;
    Ok(layer)
}

/// Syncs a layer, unless it is synced. Takes as long as the disk takes for all that waits to be written.
pub fn bring_to_disk(layer: &Path) -> Result<(), Error> {
    let synced = beside(layer, SYNCED);
    if synced.exists() || !layer.exists() {
        return Ok(());
    }
    let folder = fs::File::open(layer).map_err(Error::file("open", layer))?;
    rustix::fs::syncfs(&folder).map_err(|errno| Error::file("write out", layer)(errno.into()))?;
    cove_sys::replacement::replace(&synced, b"", 0o644).map_err(Error::file("write", &synced))
}

/// Whether all of it is there: synced, or written since the host started.
fn is_whole(layer: &Path) -> bool {
    let boot = process::boot();
    let written = fs::read_to_string(beside(layer, WRITTEN)).unwrap_or_default();
    // A host that does not tell its boots is trusted.
    layer.exists() && (beside(layer, SYNCED).exists() || written == boot)
}

fn beside(layer: &Path, what: &str) -> PathBuf {
    let mut path = layer.as_os_str().to_owned();
    path.push(".");
    path.push(what);
    path.into()
}

/// By what goes into it.
fn name(inside: Inside) -> String {
    let mut state = DefaultHasher::new();
    (EDITION, env!("CARGO_PKG_VERSION"), DIRECTORIES, LINKS, ALIASES, FILES, USERS).hash(&mut state);
    shims().for_each(|shim| shim.hash(&mut state));
    for source in COPIED.iter().chain(&COPIED_TLS) {
        if let Ok(metadata) = fs::metadata(Path::new("/etc").join(source)) {
            (source, metadata.size(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino()).hash(&mut state);
        }
    }
    let kind = if inside == Inside::Range { "" } else { "-single" };
    format!("{:016x}{kind}", state.finish())
}

fn write(layer: &Path, inside: Inside) -> io::Result<()> {
    fs::create_dir(layer)?;
    fs::set_permissions(layer, fs::Permissions::from_mode(0o755))?;
    for (name, mode) in DIRECTORIES {
        fs::create_dir(layer.join(name))?;
        fs::set_permissions(layer.join(name), fs::Permissions::from_mode(mode))?;
    }
    for name in MERGED {
        match fs::read_link(Path::new("/").join(name)) {
            Ok(target) => symlink(target, layer.join(name))?,
            Err(_) if Path::new("/").join(name).is_dir() => fs::create_dir(layer.join(name))?,
            Err(_) => {}
        }
    }
    for (name, target) in LINKS {
        symlink(target, layer.join(name))?;
    }
    for (name, target) in ALIASES {
        // A link to what is not there leads nowhere; where the host has the name itself, that comes first on the path.
        symlink(target, layer.join("opt/cove/bin").join(name))?;
    }
    for (name, text) in shims() {
        let path = layer.join("opt/cove/shims").join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    for source in COPIED.iter().chain(&COPIED_TLS) {
        let (from, to) = (Path::new("/etc").join(source), layer.join("etc").join(source));
        if fs::symlink_metadata(&from).is_ok() {
            fs::create_dir_all(to.parent().unwrap_or(layer))?;
            copy(&from, &to)?;
        }
    }
    for (name, mode, text) in FILES {
        fs::write(layer.join(name), text)?;
        fs::set_permissions(layer.join(name), fs::Permissions::from_mode(mode))?;
    }
    // With a single id everything is its own, whoever it is.
    if inside != Inside::Range {
        return Ok(());
    }
    for name in USERS {
        chown(layer.join(name), Some(USER), Some(USER))?;
    }
    Ok(())
}

/// Files, links and directories, world-readable ones only; ids become root's. Files that the host lacks are ignored.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(from) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let kind = metadata.file_type();
    if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else if metadata.mode() & 0o004 == 0 {
        Ok(())
    } else if kind.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        Ok(())
    } else if kind.is_file() {
        fs::copy(from, to).map(drop)
    } else {
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_a_power_cut_may_have_emptied_is_made_anew_and_one_that_was_synced_is_not() {
        let data = tempfile::tempdir().unwrap();
        let inside = Inside::Single(USER);
        let made = layer(data.path(), inside).unwrap();
        let passwd = made.join("etc/passwd");
        let whole = fs::read_to_string(&passwd).unwrap();
        let mark = || fs::write(made.join("etc/mark"), "").unwrap();
        mark();
        assert_eq!(layer(data.path(), inside).unwrap(), made);
        assert!(made.join("etc/mark").exists(), "the same boot uses it as it is");

        // The power goes: names are there, contents are not.
        fs::write(&passwd, "").unwrap();
        fs::write(beside(&made, WRITTEN), "an earlier boot").unwrap();
        assert_eq!(layer(data.path(), inside).unwrap(), made);
        assert_eq!(fs::read_to_string(&passwd).unwrap(), whole);
        assert!(!made.join("etc/mark").exists());

        mark();
        bring_to_disk(&made).unwrap();
        fs::write(beside(&made, WRITTEN), "an earlier boot").unwrap();
        layer(data.path(), inside).unwrap();
        assert!(made.join("etc/mark").exists(), "what is synced outlives boots");
    }
}
