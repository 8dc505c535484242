//! Control groups: makes one with limits, freezes, reads, kills and removes it.

use super::{Finding, Verdict};
use crate::cgroup::{Absent, Error, Group, Hierarchy, Layout, Version, hand_over, honours_weights};
use crate::spec::Limits;

const CONTROLLERS: [(&str, &str); 6] = [
    ("memory", "memory limits"),
    ("cpu", "processor limits and shares"),
    ("pids", "limits on processes"),
    ("cpuset", "truthful numbers of processors inside sandboxes"),
    ("io", "shares of disk bandwidth"),
    ("freezer", "pause and resume"),
];

pub(super) fn examine(realms: &[String]) -> Vec<Finding> {
    let hierarchy = hierarchy(realms);
    let use_of = if hierarchy.verdict == Verdict::Ok { Use::Ours } else { Use::OfTheHostAlone };
    let mut findings = vec![hierarchy];
    findings.extend(controllers(use_of));
    findings
}

/// On version 1 a group is handed to an ordinary user by the name of a data directory's realm, so these are tried first. As root
/// a realm of our own does, which nobody else uses.
fn hierarchy(realms: &[String]) -> Finding {
    let name = "control groups";
    let refused = "memory, cpus and pause are refused when asked for";
    let handed = realms
        .iter()
        .filter(|_| !super::is_root())
        .find_map(|realm| Hierarchy::of_realm(realm).ok().filter(|hierarchy| hierarchy.absent().is_none()));
    let own = format!("cove-doctor-{}", std::process::id());
    let found = handed.map_or_else(|| Hierarchy::of_realm(&own), Ok);
    let hierarchy = match found {
        Ok(hierarchy) => hierarchy,
        Err(error) => {
            return Finding::missing(name, format!("no limits can be set: {error}"), "run as root").required();
        }
    };
    if let Some(absent) = hierarchy.absent() {
        return Finding::missing(name, format!("{}: {refused}", absent.reason), remedy(absent, &own, realms));
    }
    let limits = Limits { cpus: 0.5, ..Limits::default() };
    let attempt = hierarchy.create(&format!("try-{}", std::process::id()), &limits).and_then(|group| {
        let tried = try_out(&group);
        tried.and(group.remove())
    });
    match (attempt, hierarchy.version()) {
        (Ok(()), Version::V2) => Finding::ok(name, "version 2: limits, pause, kill and accounts work"),
        (Ok(()), _) => Finding::ok(name, "version 1: limits, pause, kill and accounts work"),
        (Err(error), _) => {
            let remedy = "run as root, or have all controllers delegated (Delegate=yes of systemd)";
            Finding::missing(name, format!("limits do not hold: {error}"), remedy)
        }
    }
}

/// On version 1 root hands over groups with the names of the user's data directories; a remedy with the name of this try
/// is of no use.
fn remedy(absent: &Absent, own: &str, realms: &[String]) -> String {
    if !absent.remedy.contains(own) {
        return absent.remedy.clone();
    }
    if realms.is_empty() {
        return "run as root, or try `cove run --memory 1G -- true`: it shows what root has to type".into();
    }
    let layout = Layout::of_this_process().unwrap_or_default();
    format!("run as root, or type as root: {}", hand_over(&layout, realms, crate::privilege::caller()))
}

fn try_out(group: &Group) -> Result<(), Error> {
    group.freeze()?;
    group.thaw()?;
    group.usage()?;
    group.kill()
}

/// Who can use the controllers that the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Ours,
    OfTheHostAlone,
}

fn controllers(use_of: Use) -> Vec<Finding> {
    let layout = Layout::of_this_process().unwrap_or_default();
    let place = |controller: &str| {
        let v1_name = if controller == "io" { "blkio" } else { controller };
        if layout.v2_controllers.iter().any(|offered| offered == controller) {
            Some("version 2")
        } else if controller == "freezer" && layout.v2.is_some() {
            // Freezing is part of the tree itself there.
            Some("version 2")
        } else if layout.v1.contains_key(v1_name) {
            Some("version 1")
        } else {
            None
        }
    };
    let finding = |(controller, means): &(&str, &str)| {
        let name = format!("controller {controller}");
        match place(controller) {
            Some("version 1") if *controller == "io" && !honours_weights() => Finding::weaker(
                &name,
                "version 1, and no disk's scheduler looks at weights: one sandbox's disk traffic can slow the others",
                "boot with control groups version 2, or use the bfq scheduler",
            ),
            Some(version) if use_of == Use::Ours => Finding::ok(&name, format!("{means} ({version})")),
            // The remedy is that of the groups.
            Some(version) => Finding {
                verdict: Verdict::Weaker,
                ..Finding::ok(&name, format!("the host has it ({version}), sandboxes cannot use it: no {means}"))
            },
            None => Finding::missing(
                &name,
                format!("no {means}"),
                format!("enable it: boot without cgroup_disable={controller}, with a kernel that has it"),
            ),
        }
    };
    CONTROLLERS.iter().map(finding).collect()
}
