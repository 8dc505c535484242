//! What a restart of the host does to a data directory, without restarting the host.
//!
//! The server must be down. This kills every process of every sandbox, removes control groups, mounts and loop devices
//! of the directory, and marks the records as from an earlier boot.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::guests::guests;
use crate::leak::{hierarchies, loop_devices_of, mounts_of, numbers_in, realms_below};
use crate::wait::{LIMIT, until};

/// A boot that never was.
const EARLIER: &str = "00000000-0000-0000-0000-000000000000";

/// # Panics
/// If something of the directory cannot be ended.
pub fn reboot(data: &Path) {
    until("everything of the directory to end", LIMIT, || clear(data));
    let records = fs::read_dir(data.join("sandboxes")).into_iter().flatten().flatten();
    for record in records.map(|entry| entry.path().join("running.json")).filter(|path| path.exists()) {
        let text = fs::read_to_string(&record).expect("read a record");
        // A power cut leaves some empty.
        let Ok(mut life) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
        life["boot"] = EARLIER.into();
        fs::write(&record, life.to_string()).expect("write a record");
    }
    let layers = fs::read_dir(data.join("base")).into_iter().flatten().flatten().map(|entry| entry.path());
    let written = layers.filter(|path| path.extension().is_some_and(|extension| extension == "written"));
    for noted in written.chain([data.join("boot")]).filter(|path| path.exists()) {
        fs::write(noted, EARLIER).expect("note an earlier boot");
    }
}

/// One try to end and remove everything of a directory; returns whether nothing is left.
pub(crate) fn clear(data: &Path) -> bool {
    // Without a realm there are no groups of it, and the host's other groups are not ours.
    let realms: Vec<_> = realms_below(data).into_iter().filter(|name| name.starts_with("cove-")).collect();
    thaw(&realms);
    for pid in numbers_in("/proc").filter(|&pid| is_of(pid, &realms)) {
        kill(pid);
    }
    let mut clean = guests(data).is_empty();
    for realm in hierarchies().iter().flat_map(|top| realms.iter().map(move |realm| top.join(realm))) {
        clean &= remove_groups(&realm);
    }
    for mount in mounts_of(data) {
        // Busy mounts are tried again.
        let _ = Command::new("umount").arg(&mount).stderr(Stdio::null()).status();
    }
    clean && mounts_of(data).is_empty() && loop_devices_of(data).is_empty()
}

/// A control group and those below it.
fn remove_groups(group: &Path) -> bool {
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    for child in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_groups(&child.path());
    }
    fs::remove_dir(group).is_ok() || !group.exists()
}

fn is_of(pid: u32, realms: &[String]) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    realms.iter().any(|realm| groups.contains(&format!("/{realm}/")))
}

/// A group frozen by the v1 freezer does not react to a kill.
fn thaw(realms: &[String]) {
    for realm in hierarchies().iter().flat_map(|top| realms.iter().map(move |realm| top.join(realm))) {
        for group in fs::read_dir(realm).into_iter().flatten().flatten() {
            let state = group.path().join("freezer.state");
            if state.exists() {
                let _ = fs::write(state, "THAWED");
            }
        }
    }
}

/// At once.
pub fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // Already gone: nothing to do.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
