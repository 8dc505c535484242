//! What a data directory's sandboxes left on the host.
//!
//! The check is bound to one directory, so that tests can run side by side: a trace counts when it names the directory
//! (a mount, a socket, a loop device, an open file, a command line) or is in its realm of the control groups. What ends
//! in the background gets some time first.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ends of processes and removals in the background may take this long after the last command has returned.
const SETTLE: Duration = Duration::from_secs(30);

/// Checks on drop; a test that leaves something fails, unless it failed already.
pub struct LeakCheck {
    directory: PathBuf,
    namespaces: BTreeSet<String>,
}

impl LeakCheck {
    pub fn new(directory: &Path) -> LeakCheck {
        let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
        LeakCheck { directory, namespaces: named_namespaces() }
    }

    /// Everything that is left, one line each; empty if nothing is.
    pub fn traces(&self) -> Vec<String> {
        let mut traces = self.processes();
        traces.extend(self.mounts());
        traces.extend(self.sockets());
        traces.extend(self.loop_devices());
        traces.extend(self.control_groups());
        traces.extend(self.files());
        traces.extend(named_namespaces().difference(&self.namespaces).map(|name| format!("network namespace {name}")));
        traces
    }

    /// Waits until nothing is left.
    ///
    /// # Panics
    /// If something stays.
    pub fn settle(&self) {
        let start = Instant::now();
        loop {
            let traces = self.traces();
            if traces.is_empty() {
                return;
            }
            assert!(start.elapsed() < SETTLE, "left behind by this test:\n  {}", traces.join("\n  "));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn named(&self, text: &str) -> bool {
        self.directory.to_str().is_some_and(|directory| text.contains(directory))
    }

    fn processes(&self) -> Vec<String> {
        let us = std::process::id();
        let mut left = Vec::new();
        for pid in numbers_in("/proc").filter(|&pid| pid != us) {
            let proc = PathBuf::from(format!("/proc/{pid}"));
            let command = fs::read(proc.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let links = ["cwd", "exe", "root"].into_iter().map(|name| proc.join(name));
            let files = fs::read_dir(proc.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
            let holds = links.chain(files).filter_map(|link| fs::read_link(link).ok());
            let held = holds.filter_map(|path| path.to_str().map(str::to_owned)).find(|path| self.named(path));
            if self.named(&command) || held.is_some() {
                left.push(format!("process {pid} {command} {}", held.unwrap_or_default()));
            }
        }
        left
    }

    fn mounts(&self) -> Vec<String> {
        mounts_of(&self.directory).into_iter().map(|place| format!("mount at {place}")).collect()
    }

    /// Sockets of this network namespace, where the host binds the guests' sockets.
    fn sockets(&self) -> Vec<String> {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        sockets.lines().filter(|line| self.named(line)).map(|line| format!("socket {line}")).collect()
    }

    /// Where the host's mounts are private, a process that makes a mount namespace meanwhile (such as an ordinary
    /// user's server of another test) keeps a copy of the pool's mount for as long as it lives. Then this test cannot
    /// release the device.
    fn loop_devices(&self) -> Vec<String> {
        let left = loop_devices_of(&self.directory);
        if left.is_empty() || self.is_mounted_elsewhere() { Vec::new() } else { left }
    }

    fn is_mounted_elsewhere(&self) -> bool {
        let mounts = |pid: u32| fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        numbers_in("/proc").any(|pid| self.named(&mounts(pid)))
    }

    fn control_groups(&self) -> Vec<String> {
        let realms = realms_below(&self.directory);
        let mut left = Vec::new();
        for hierarchy in hierarchies() {
            for realm in &realms {
                let groups = fs::read_dir(hierarchy.join(realm)).into_iter().flatten().flatten();
                let groups = groups.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                left.extend(groups.map(|group| format!("control group {}", group.path().display())));
            }
        }
        left
    }

    /// A sandbox's own directory below any data directory that the test used.
    fn files(&self) -> Vec<String> {
        let mut left = Vec::new();
        for data in data_directories(&self.directory) {
            for kind in ["sandboxes", "trash"] {
                let entries = fs::read_dir(data.join(kind)).into_iter().flatten().flatten();
                left.extend(entries.map(|entry| format!("files {}", entry.path().display())));
            }
        }
        left
    }
}

impl Drop for LeakCheck {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.settle();
        }
    }
}

/// The directory itself and what is at most two levels below: `data`, `data/run`.
fn data_directories(directory: &Path) -> Vec<PathBuf> {
    let below = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
    };
    let first = below(directory);
    let second: Vec<_> = first.iter().flat_map(|path| below(path)).collect();
    std::iter::once(directory.to_owned()).chain(first).chain(second).collect()
}

/// Where something of a directory is mounted, the last mount first.
pub(crate) fn mounts_of(directory: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = mounts.lines().rev().filter(|line| directory.to_str().is_some_and(|name| line.contains(name)));
    ours.filter_map(|line| line.split(' ').nth(4).map(str::to_owned)).collect()
}

pub(crate) fn is_mount_point(place: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).map(Path::new) == Some(place))
}

pub(crate) fn loop_devices_of(directory: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backed = devices.filter_map(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let ours = directory.to_str().is_some_and(|name| file.contains(name));
        ours.then(|| format!("loop device {} on {}", device.path().display(), file.trim()))
    });
    backed.collect()
}

/// Where control groups are mounted.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    groups.filter_map(|line| line.split(' ').nth(4).map(PathBuf::from)).collect()
}

/// The realms of the engines of these directories: each engine writes its own into `realm`.
pub(crate) fn realms_below(directory: &Path) -> Vec<String> {
    let files = data_directories(directory).into_iter().map(|data| data.join("realm"));
    files.filter_map(|file| fs::read_to_string(file).ok()).map(|name| name.trim().to_owned()).collect()
}

fn named_namespaces() -> BTreeSet<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("cove")).collect()
}

pub(crate) fn numbers_in(directory: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stays_in_the_directory_is_found_and_its_end_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let check = LeakCheck::new(directory.path());
        assert!(check.traces().is_empty());
        let mut child = std::process::Command::new("sleep").arg("60").current_dir(directory.path()).spawn().unwrap();
        let traces = check.traces();
        assert!(traces.iter().any(|trace| trace.starts_with(&format!("process {} ", child.id()))), "{traces:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        check.settle();
    }

    #[test]
    fn a_mount_that_another_namespace_keeps_is_that_ones() {
        let directory = tempfile::tempdir().unwrap();
        let check = LeakCheck::new(directory.path());
        let script = "mount -t tmpfs none \"$0\" && echo ready && read _";
        let mut child = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(directory.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut said).unwrap();
        assert_eq!(said, "ready\n");
        assert!(check.is_mounted_elsewhere() && check.mounts().is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!check.is_mounted_elsewhere());
    }

    #[test]
    fn files_of_a_sandbox_and_a_bound_socket_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let check = LeakCheck::new(directory.path());
        let sandbox = directory.path().join("data/sandboxes/k3fk3fk3fk3fk3fk3fk3");
        fs::create_dir_all(&sandbox).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(sandbox.join("guest.sock")).unwrap();
        let traces = check.traces().join("\n");
        assert!(traces.contains("files ") && traces.contains("socket "), "{traces}");
        drop(socket);
        fs::remove_dir_all(directory.path().join("data")).unwrap();
        assert!(check.traces().is_empty());
    }
}
