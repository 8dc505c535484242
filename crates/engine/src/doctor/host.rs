//! The machine around the kernel: tools, limits, other isolation, what the built-in template shows.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_sys::probe;
use rustix::process::{Resource, getrlimit};

use super::{Finding, is_root};

pub(super) fn kernel() -> Finding {
    let told = rustix::system::uname();
    let (system, release) = (told.sysname().to_string_lossy(), told.release().to_string_lossy());
    Finding::ok("kernel", format!("{system} {release} on {}", told.machine().to_string_lossy()))
}

pub(super) fn privilege() -> Finding {
    if is_root() {
        return Finding::ok("privilege", "root: everything below was tried with full rights");
    }
    Finding::weaker(
        "privilege",
        "an ordinary user: the same walls, ids that your sandboxes share, limits on memory and processors only where delegated, \
         none on a server's disk",
        "run as root for all of it",
    )
}

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![seccomp(), landlock(), gvisor(), kvm(), reboot()];
    findings.extend([inotify(), processes(), descriptors(), core_dumps()]);
    findings.extend(terminals());
    findings.extend(["bash", "python3", "git", "node"].map(tool));
    findings
}

fn seccomp() -> Finding {
    match probe::seccomp_can_refuse() {
        Ok(()) => Finding::ok("seccomp", "dangerous system calls are refused inside"),
        Err(error) => Finding::missing(
            "seccomp",
            format!("no filter on system calls: {error}"),
            "a kernel with CONFIG_SECCOMP_FILTER, of 4.14 or newer",
        ),
    }
    .required()
}

fn landlock() -> Finding {
    match probe::landlock_version() {
        Ok(version) => Finding::ok("landlock", format!("version {version}: a second wall around files is possible")),
        Err(error) => Finding::weaker(
            "landlock",
            format!("no second wall around files: {error}"),
            "a kernel of 5.13 or newer, booted with landlock in lsm=",
        ),
    }
}

fn gvisor() -> Finding {
    let Some(program) = find_program("runsc") else {
        return Finding::weaker(
            "gvisor",
            "runsc is not installed: no sandboxes with a kernel of their own in user space",
            "install runsc (gvisor.dev) to offer the isolation `gvisor`",
        );
    };
    let output = Command::new(&program).arg("--version").output();
    let version = output.ok().filter(|output| output.status.success());
    match version.map(|output| String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_owned()) {
        Some(version) => Finding::ok("gvisor", version),
        None => Finding::weaker("gvisor", format!("{} does not run", program.display()), "install runsc anew"),
    }
}

/// That it opens is not that a guest boots: nested virtualisation often does the one without the other.
fn kvm() -> Finding {
    let remedy = "only for the isolation `microvm`: a host with /dev/kvm that this user may open";
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    match opened.and_then(|device| probe::kvm_version(device.as_fd())) {
        Ok(version) => {
            Finding::ok("kvm", format!("/dev/kvm opens, interface {version}; whether guests boot shows when one does"))
        }
        Err(error) => Finding::weaker("kvm", format!("/dev/kvm: {error}"), remedy),
    }
}

/// What of a paused sandbox outlives the machine. CRIU could write processes to disk. Debian 12 has version 3.17, which does
/// not run on a kernel of today (its vDSO is another); there was no newer one to build on.
fn reboot() -> Finding {
    let why = match find_program("criu").map(|program| Command::new(program).arg("--version").output()) {
        None => "CRIU 4 or newer is not installed".to_owned(),
        Some(output) => {
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            why_without_criu(&text)
        }
    };
    Finding::weaker(
        "pause over a reboot",
        format!(
            "a pause keeps files and, while this machine stays up, processes (frozen); processes do not survive a \
             reboot: {why}"
        ),
        "`cove pause --durable` writes a manifest of the files that `cove fsck` proves; programs start again from them",
    )
}

/// By what `criu --version` prints.
fn why_without_criu(text: &str) -> String {
    let version = text.lines().find_map(|line| line.strip_prefix("Version:")).map(str::trim);
    let major = |version: &str| version.split('.').next().and_then(|number| number.parse::<u32>().ok());
    match version {
        Some(version) if major(version).is_some_and(|major| major >= 4) => {
            format!("CRIU {version} is installed, but this version of Cove does not use it")
        }
        Some(version) => format!("CRIU {version} is older than 4"),
        None => "criu is installed and does not run".to_owned(),
    }
}

/// Counted against the owner of a sandbox's user namespace: as root each has one of its own, an ordinary user's sandboxes share
/// theirs.
fn inotify() -> Finding {
    let instances = number("/proc/sys/fs/inotify/max_user_instances");
    let (found, enough) = if is_root() {
        (format!("a sandbox can watch files {instances} times"), 128)
    } else {
        (format!("all sandboxes together can watch files {instances} times"), 8192)
    };
    if instances >= enough {
        return Finding::ok("inotify", found);
    }
    Finding::weaker(
        "inotify",
        found,
        "sysctl -w fs.inotify.max_user_instances=1048576 fs.inotify.max_user_watches=1048576",
    )
}

fn processes() -> Finding {
    let most = number("/proc/sys/kernel/pid_max");
    if most > 100_000 {
        return Finding::ok("process numbers", format!("{most} processes on this host"));
    }
    Finding::weaker(
        "process numbers",
        format!("{most} processes on this host: enough for some thousand sandboxes"),
        "sysctl -w kernel.pid_max=4194304",
    )
}

/// Nothing where they are enough, or where a server that runs as root raises their number by itself.
fn terminals() -> Option<Finding> {
    const ENOUGH: u64 = 1 << 20;
    const FILE: &str = "/proc/sys/kernel/pty/max";
    let host = number(FILE);
    if host == 0 || host >= ENOUGH || fs::OpenOptions::new().write(true).open(FILE).is_ok() {
        return None;
    }
    Some(Finding::weaker(
        "terminals",
        format!("{host} for the whole host: {} sandboxes can use up all of them", host / 128),
        format!("sysctl -w kernel.pty.max={ENOUGH}"),
    ))
}

fn descriptors() -> Finding {
    const PLENTY: u64 = 1 << 30;
    let host = number("/proc/sys/fs/file-max");
    // A server that runs as root raises it by itself.
    if host < PLENTY && fs::OpenOptions::new().write(true).open("/proc/sys/fs/file-max").is_err() {
        return Finding::weaker(
            "open files",
            format!("{host} for the whole host: one sandbox can use up all of them"),
            format!("sysctl -w fs.file-max={}", i64::MAX),
        );
    }
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if limit >= 65_536 {
        return Finding::ok("open files", format!("a process may open {limit}"));
    }
    Finding::weaker(
        "open files",
        format!("a process may open {limit}: enough for about {} sandboxes", limit / 3),
        "raise the hard limit: LimitNOFILE=1048576 in the unit, or ulimit -Hn",
    )
}

/// The pattern is one for all: a pipe in it starts a program of the host as root, with arguments from the sandbox.
fn core_dumps() -> Finding {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    match pattern.trim().strip_prefix('|') {
        Some(program) => Finding::weaker(
            "core dumps",
            format!("the kernel gives crashes to {program}; sandboxes cannot have any written"),
            "nothing needs to be done; sysctl -w kernel.core_pattern=core keeps the program out of it",
        ),
        None => Finding::ok("core dumps", "no program of the host is started by a crash"),
    }
}

/// The built-in template shows the host's `/usr`.
fn tool(name: &str) -> Finding {
    let label = format!("template base: {name}");
    let places = ["/usr/local/bin", "/usr/bin"].map(|place| Path::new(place).join(name));
    match places.iter().find(|path| is_executable(path)) {
        Some(path) => Finding::ok(&label, path.display().to_string()),
        None if find_program(name).is_some() => Finding::weaker(
            &label,
            "installed outside /usr, where sandboxes do not see it",
            format!("install {name} from the distribution, or use a template of your own"),
        ),
        None => Finding::weaker(
            &label,
            "not installed on this host",
            format!("install {name}, or use a template of your own"),
        ),
    }
}

/// In `PATH`, and where administration programs are, which a user's `PATH` often leaves out.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn number(path: &str) -> u64 {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_criu_is_there_the_reason_is_told() {
        assert_eq!(why_without_criu("Version: 3.17.1\nGitID: v3.17.1"), "CRIU 3.17.1 is older than 4");
        assert!(why_without_criu("Version: 4.0\n").starts_with("CRIU 4.0 is installed, but"));
        assert!(why_without_criu("Version: 10\n").starts_with("CRIU 10 is installed, but"));
        assert_eq!(why_without_criu(""), "criu is installed and does not run");
    }
}
