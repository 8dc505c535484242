//! Which sandboxes of a data directory really run, as the kernel reports it, without asking the server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::leak::numbers_in;

/// The guests of every sandbox: processes that are PID 1 of their namespace and are in a control group of this
/// directory's realm. More than one for an id means that a sandbox runs twice.
pub fn guests(data: &Path) -> BTreeMap<String, Vec<u32>> {
    let realm = fs::read_to_string(data.join("realm")).unwrap_or_default();
    let marker = format!("/{}/", realm.trim());
    let mut guests: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for pid in numbers_in("/proc") {
        // A process that ends meanwhile does not count.
        let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { continue };
        let Some(id) = groups.lines().find_map(|line| Some(line.split_once(&marker)?.1.split('/').next()?.to_owned()))
        else {
            continue;
        };
        if is_first_of_its_namespace(pid) {
            guests.entry(id).or_default().push(pid);
        }
    }
    guests
}

fn is_first_of_its_namespace(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let numbers: Vec<&str> = field("NSpid:").split_whitespace().collect();
    let dead = field("State:").trim_start().starts_with(['Z', 'X']);
    numbers.len() > 1 && numbers.last() == Some(&"1") && !dead
}

/// Children of a process that run `program` and are not sandboxes: a server's spawners.
pub fn spawners(server: u32) -> Vec<u32> {
    let is_spawner = |&pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent(pid) == Some(server) && String::from_utf8_lossy(&command).contains("__cove-spawner")
    };
    numbers_in("/proc").filter(is_spawner).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
