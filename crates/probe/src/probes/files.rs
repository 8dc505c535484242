//! What of the host's files can be seen or changed from inside.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use cove_sys::attack;

use crate::{Canaries, Outcome, Probe, each, held, must_fail, not_applicable, not_held};

pub const PROBES: &[Probe] = &[
    Probe { name: "cannot_read_the_hosts_shadow_file", meaning: "password hashes of the host", run: shadow },
    Probe {
        name: "cannot_see_roots_home",
        meaning: "keys and configuration of the host's root",
        run: |_| hidden("/root", &[]),
    },
    Probe {
        name: "cannot_see_other_homes",
        meaning: "people's files on the host",
        run: |_| hidden("/home", &["user", "daytona"]),
    },
    Probe { name: "cannot_see_srv", meaning: "files that the host serves", run: |_| hidden("/srv", &[]) },
    Probe { name: "cannot_see_boot", meaning: "kernels and boot configuration", run: |_| hidden("/boot", &[]) },
    Probe { name: "cannot_see_the_hosts_var", meaning: "databases, logs and spools of the host", run: var },
    Probe {
        name: "cannot_read_canary_files",
        meaning: "a file of the host, the data directory or a neighbour",
        run: canary_files,
    },
    Probe {
        name: "cannot_reach_canaries_through_proc_root",
        meaning: "the host's files behind /proc/PID/root",
        run: through_proc_root,
    },
    Probe { name: "cannot_climb_above_the_root", meaning: "the host's files behind ..", run: climb },
    Probe {
        name: "cannot_escape_by_chroot",
        meaning: "the host's files behind a second chroot",
        run: escape_by_chroot,
    },
    Probe { name: "cannot_escape_by_symlink", meaning: "the host's files behind a link", run: escape_by_symlink },
    Probe {
        name: "cannot_hard_link_out_of_the_sandbox",
        meaning: "a host file kept and changed through a second name",
        run: hard_link,
    },
    Probe {
        name: "cannot_escape_through_inherited_descriptors",
        meaning: "a host directory left open (CVE-2024-21626)",
        run: inherited_descriptors,
    },
    Probe {
        name: "cannot_open_pid_ones_descriptors",
        meaning: "the control socket or a host file of PID 1",
        run: pid_one_descriptors,
    },
    Probe {
        name: "cannot_overwrite_the_guest_program",
        meaning: "the host runs what the sandbox wrote (CVE-2019-5736)",
        run: overwrite_guest,
    },
    Probe {
        name: "cannot_overwrite_the_hosts_usr",
        meaning: "programs of the host changed from inside",
        run: write_usr,
    },
    Probe { name: "cannot_see_host_paths_in_mountinfo", meaning: "the host's layout", run: mountinfo },
    Probe { name: "cannot_see_block_devices", meaning: "the host's disks", run: block_devices },
    Probe {
        name: "cannot_see_foreign_sockets",
        meaning: "docker.sock, dbus, systemd of the host",
        run: foreign_sockets,
    },
];

fn shadow(_: &Canaries) -> Outcome {
    match fs::read_to_string("/etc/shadow") {
        Err(error) => held(format!("read /etc/shadow: {error}")),
        Ok(text) if text.lines().any(|line| line.split(':').nth(1).is_some_and(|hash| hash.starts_with('$'))) => {
            not_held("/etc/shadow holds password hashes")
        }
        Ok(_) => held("/etc/shadow is the sandbox's own and holds no hash"),
    }
}

/// A directory must be absent or contain nothing but the given names.
fn hidden(path: &str, allowed: &[&str]) -> Outcome {
    match fs::read_dir(path) {
        Err(error) => held(format!("list {path}: {error}")),
        Ok(entries) => {
            let names: Vec<String> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            match names
                .iter()
                .find(|name| !allowed.contains(&name.as_str()) && !name.starts_with(".bash") && *name != ".profile")
            {
                Some(name) => not_held(format!("{path} shows {name}")),
                None => held(format!("{path} shows nothing of the host")),
            }
        }
    }
}

fn var(_: &Canaries) -> Outcome {
    each(
        [
            "/var/lib/dpkg/status",
            "/var/log/dpkg.log",
            "/var/lib/docker",
            "/var/lib/postgresql",
            "/var/spool/cron",
            "/var/lib/systemd",
        ]
        .map(|path| must_fail(&format!("stat {path}"), fs::metadata(path))),
    )
}

fn is_canary(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.contains(Canaries::WORD))
}

fn canary_files(canaries: &Canaries) -> Outcome {
    each(canaries.files.iter().map(|path| match is_canary(Path::new(path)) {
        true => not_held(format!("{path} of the host can be read")),
        false => held(format!("{path} of the host cannot be read")),
    }))
}

fn through_proc_root(canaries: &Canaries) -> Outcome {
    each(canaries.files.iter().flat_map(|file| {
        ["/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/1/task/1/root"].map(|prefix| {
            let path = PathBuf::from(format!("{prefix}{file}"));
            if is_canary(&path) {
                not_held(format!("{} can be read", path.display()))
            } else {
                held(path.display().to_string())
            }
        })
    }))
}

fn climb(canaries: &Canaries) -> Outcome {
    each(canaries.files.iter().flat_map(|file| {
        ["/..", "/../../../..", "/tmp/../../../..", "/proc/self/cwd/../../../.."].map(|prefix| {
            let path = PathBuf::from(format!("{prefix}{file}"));
            if is_canary(&path) {
                not_held(format!("{} can be read", path.display()))
            } else {
                held(path.display().to_string())
            }
        })
    }))
}

/// The classic escape: keep a descriptor of the old root, change the root below it, go up.
fn escape_by_chroot(canaries: &Canaries) -> Outcome {
    let inside = std::env::temp_dir().join("cove-probe-chroot");
    if let Err(error) = fs::create_dir_all(&inside) {
        return not_applicable(format!("no writable directory: {error}"));
    }
    let name = std::ffi::CString::new(inside.to_string_lossy().as_bytes()).unwrap_or_default();
    if let Err(error) = attack::chroot(&name) {
        return held(format!("chroot: {error}"));
    }
    let before = fs::metadata(".").map(|metadata| (metadata.dev(), metadata.ino())).ok();
    for _ in 0..64 {
        if std::env::set_current_dir("..").is_err() {
            break;
        }
    }
    let _ = attack::chroot(c".");
    let now = fs::metadata("/").map(|metadata| (metadata.dev(), metadata.ino())).ok();
    if now.is_some() && now == canaries.root_inode {
        return not_held("climbed to the host's root directory");
    }
    match canaries.files.iter().find(|file| is_canary(Path::new(file))) {
        Some(file) => not_held(format!("{file} of the host can be read after a second chroot")),
        None => {
            let entries = fs::read_dir("/").map(|entries| entries.flatten().count()).unwrap_or(0);
            held(format!(
                "chroot is allowed, but what lies above ({entries} entries, was {before:?}, is {now:?}) is not the host"
            ))
        }
    }
}

fn escape_by_symlink(canaries: &Canaries) -> Outcome {
    each(canaries.files.iter().enumerate().map(|(number, file)| {
        let link = std::env::temp_dir().join(format!("cove-probe-link-{number}"));
        let _ = fs::remove_file(&link);
        if let Err(error) = symlink(format!("../../../../../..{file}"), &link) {
            return not_applicable(format!("no link could be made: {error}"));
        }
        let outcome = if is_canary(&link) {
            not_held(format!("{file} can be read through a link"))
        } else {
            held(format!("{file} through a link"))
        };
        let _ = fs::remove_file(&link);
        outcome
    }))
}

fn hard_link(canaries: &Canaries) -> Outcome {
    let targets = canaries.files.iter().map(String::as_str).chain(["/proc/1/exe", "/proc/self/exe", "/dev/null"]);
    each(targets.map(|target| {
        let name = std::env::temp_dir().join("cove-probe-hard-link");
        let _ = fs::remove_file(&name);
        let outcome = must_fail(&format!("link {target}"), fs::hard_link(target, &name));
        let _ = fs::remove_file(&name);
        outcome
    }))
}

/// Every descriptor but the three standard ones must be our own; none may be a directory that leads out.
fn inherited_descriptors(canaries: &Canaries) -> Outcome {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return not_applicable("no /proc") };
    let mut seen = Vec::new();
    for entry in entries.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let directory = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
        if directory && !target.starts_with("/proc") {
            for file in &canaries.files {
                let path = entry.path().join(format!("../../../../../..{file}"));
                if is_canary(&path) {
                    return not_held(format!(
                        "descriptor {} ({}) leads to the host",
                        entry.path().display(),
                        target.display()
                    ));
                }
            }
            return not_held(format!("a directory was left open: {} -> {}", entry.path().display(), target.display()));
        }
        seen.push(target.display().to_string());
    }
    held(format!("open: {}", seen.join(", ")))
}

fn pid_one_descriptors(_: &Canaries) -> Outcome {
    match fs::read_dir("/proc/1/fd") {
        Err(error) => held(format!("list /proc/1/fd: {error}")),
        Ok(entries) => each(
            entries
                .flatten()
                .map(|entry| must_fail(&format!("open {}", entry.path().display()), fs::File::open(entry.path()))),
        ),
    }
}

fn overwrite_guest(_: &Canaries) -> Outcome {
    let write = |path: &str| fs::OpenOptions::new().write(true).open(path);
    each([
        must_fail("write /proc/1/exe", write("/proc/1/exe")),
        must_fail(
            "truncate /proc/1/exe",
            fs::File::create("/proc/1/exe")
                .and_then(|_| Err::<(), _>(io::Error::other("emptied")))
                .or_else(|error| if error.to_string() == "emptied" { Ok(()) } else { Err(error) }),
        ),
    ])
}

/// Writing below /usr may work: then it must land in the sandbox's own layer. The host checks that its file is untouched;
/// from inside only a shared, writable mount can be seen.
fn write_usr(_: &Canaries) -> Outcome {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let (point, options) = (fields.nth(4).unwrap_or(""), fields.next().unwrap_or(""));
        let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("");
        let below = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"]
            .iter()
            .any(|top| point == *top || point.starts_with(&format!("{top}/")));
        if below && kind != "overlay" && kind != "tmpfs" && options.split(',').any(|option| option == "rw") {
            return not_held(format!("{point} is a writable {kind} mount"));
        }
    }
    held("no directory of programs is a writable mount of the host")
}

fn mountinfo(canaries: &Canaries) -> Outcome {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let telling = canaries
        .files
        .iter()
        .filter_map(|file| Path::new(file).parent())
        .filter(|parent| parent.components().count() > 2);
    for parent in telling {
        if text.contains(&*parent.to_string_lossy()) {
            return not_held(format!("mountinfo names {}", parent.display()));
        }
    }
    match text.lines().find(|line| {
        line.contains("lowerdir=/")
            || line.contains("upperdir=/var")
            || line.contains("upperdir=/root")
            || line.contains("upperdir=/home")
    }) {
        Some(line) => not_held(format!("mountinfo tells host paths: {line}")),
        None => held(format!("{} mounts, none names a host path", text.lines().count())),
    }
}

fn block_devices(_: &Canaries) -> Outcome {
    let Ok(entries) = fs::read_dir("/dev") else { return held("no /dev") };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_block_device()) {
            return not_held(format!("{} is there", entry.path().display()));
        }
    }
    held("no block device in /dev")
}

fn foreign_sockets(_: &Canaries) -> Outcome {
    each(
        [
            "/run/docker.sock",
            "/var/run/docker.sock",
            "/run/containerd/containerd.sock",
            "/run/dbus/system_bus_socket",
            "/run/systemd/private",
            "/run/podman/podman.sock",
        ]
        .map(|path| must_fail(&format!("connect {path}"), std::os::unix::net::UnixStream::connect(path))),
    )
}
