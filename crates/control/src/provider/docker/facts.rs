//! What a daemon can do, and whether its containers are this machine's own.
//!
//! A daemon on this machine has two advantages: connections to a guest need no `exec`, and our proxy can serve a container's
//! network. Both are proven again for each container ([`super::process`]); here it is decided what the provider promises.

use std::path::PathBuf;

use bollard::models::{SystemInfo, SystemVersion};

use super::client::Host;
use crate::provider::{Isolation, Limit, Unheld};

#[derive(Debug, Clone)]
pub struct Facts {
    /// Why containers' processes cannot be entered from here; `None` where they can.
    pub far: Option<String>,
    /// Limits that the daemon does not enforce.
    pub unheld: Vec<Unheld>,
    /// Whether a directory of a volume can be shown in place of all of it.
    pub subpaths: bool,
    /// Where it keeps everything, on this machine.
    pub root: Option<PathBuf>,
}

/// Part of Docker's interface since this version.
const SUBPATHS: (u32, u32) = (1, 45);

impl Facts {
    pub fn of(info: &SystemInfo, version: &SystemVersion, host: &Host, isolation: Isolation) -> Facts {
        let far = why_far(info, host, isolation);
        let root = info.docker_root_dir.as_ref().map(PathBuf::from).filter(|root| far.is_none() && root.is_dir());
        Facts {
            unheld: unheld(info, root.as_deref()),
            subpaths: version.api_version.as_deref().and_then(pair).is_some_and(|api| api >= SUBPATHS),
            far,
            root,
        }
    }
}

fn pair(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A socket may lead to a machine far away, and a server may run in a container of its own: names, kernels and directories
/// must be the same ones.
fn why_far(info: &SystemInfo, host: &Host, isolation: Isolation) -> Option<String> {
    let here = rustix::system::uname();
    let (name, kernel) = (here.nodename().to_string_lossy(), here.release().to_string_lossy());
    let root = info.docker_root_dir.as_deref().unwrap_or_default();
    let why = if !matches!(host, Host::Socket(_)) {
        "docker is reached by network"
    } else if info.name.as_deref() != Some(&*name) || info.kernel_version.as_deref() != Some(&*kernel) {
        "docker runs on another machine, or this server in a container"
    } else if !std::path::Path::new(root).is_dir() {
        "docker's files are not this machine's"
    } else if !rustix::process::geteuid().is_root() {
        "this server does not run as root"
    } else if info.security_options.iter().flatten().any(|option| maps_users(option)) {
        "docker gives its containers other user ids than they see"
    } else if isolation != Isolation::Namespaces {
        "its runtime has a network of its own"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// With `userns-remap`, or for an ordinary user.
fn maps_users(option: &str) -> bool {
    option.starts_with("name=userns") || option.starts_with("name=rootless")
}

fn unheld(info: &SystemInfo, root: Option<&std::path::Path>) -> Vec<Unheld> {
    let kernel = |limit: Limit, group: &str| Unheld {
        limit,
        why: format!("docker says that its kernel has no {group}"),
        remedy: "give docker a kernel with that control group; `docker info` warns of what is missing".into(),
    };
    let mut all = Vec::new();
    if info.cpu_cfs_quota == Some(false) {
        all.push(kernel(Limit::Cpus, "quota of processor time"));
    }
    if info.memory_limit == Some(false) {
        all.push(kernel(Limit::Memory, "limit of memory"));
    } else if info.swap_limit == Some(false) {
        all.push(Unheld {
            limit: Limit::Memory,
            why: "docker's kernel does not count swap, so that a sandbox gets more than its limit".into(),
            remedy: "turn swap off (swapoff -a), or boot with swapaccount=1".into(),
        });
    }
    if info.pids_limit == Some(false) {
        all.push(kernel(Limit::Pids, "limit of processes"));
    }
    if !holds_disk(info, root) {
        all.push(Unheld {
            limit: Limit::Disk,
            why: format!("docker's storage driver {} cannot limit what a container writes", driver(info)),
            remedy: "put docker's data on XFS with the mount option pquota, or use its driver btrfs or zfs".into(),
        });
    }
    all
}

fn driver(info: &SystemInfo) -> &str {
    info.driver.as_deref().unwrap_or("of no name")
}

/// `overlay2` counts with project quotas of XFS; whether those are on is seen in the table of mounts alone.
fn holds_disk(info: &SystemInfo, root: Option<&std::path::Path>) -> bool {
    match driver(info) {
        "btrfs" | "zfs" | "devicemapper" => true,
        "overlay2" => {
            let backing = info.driver_status.iter().flatten().find_map(|pair| match pair.as_slice() {
                [name, value] if name == "Backing Filesystem" => Some(value.as_str()),
                _ => None,
            });
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            backing == Some("xfs") && root.is_some_and(|root| has_project_quota(&mounts, root))
        }
        _ => false,
    }
}

/// Whether the filesystem with this directory counts by projects: proc(5), mountinfo, the last mount that is above it.
fn has_project_quota(mounts: &str, root: &std::path::Path) -> bool {
    let above = mounts.lines().filter_map(|line| {
        let (place, super_options) = (line.split(' ').nth(4)?, line.rsplit(' ').next()?);
        root.starts_with(place).then_some((place.len(), super_options))
    });
    let nearest = above.max_by_key(|(length, _)| *length);
    nearest.is_some_and(|(_, options)| options.split(',').any(|option| option == "prjquota" || option == "pquota"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(driver: &str) -> SystemInfo {
        SystemInfo {
            driver: Some(driver.into()),
            memory_limit: Some(true),
            swap_limit: Some(true),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(true),
            ..SystemInfo::default()
        }
    }

    #[test]
    fn what_a_daemon_does_not_enforce_is_told_with_a_remedy() {
        let limits = |info: &SystemInfo| unheld(info, None).iter().map(|one| one.limit).collect::<Vec<_>>();
        assert_eq!(limits(&info("btrfs")), []);
        assert_eq!(limits(&info("overlay2")), [Limit::Disk]);
        assert_eq!(limits(&SystemInfo { swap_limit: Some(false), ..info("zfs") }), [Limit::Memory]);
        let nothing = SystemInfo {
            memory_limit: Some(false),
            cpu_cfs_quota: Some(false),
            pids_limit: Some(false),
            ..info("vfs")
        };
        assert_eq!(limits(&nothing), [Limit::Cpus, Limit::Memory, Limit::Pids, Limit::Disk]);
    }

    #[test]
    fn quotas_are_those_of_the_nearest_mount() {
        let mounts = "22 1 8:1 / / rw,relatime - ext4 /dev/a rw\n\
                      23 22 8:2 / /var/lib/docker rw,relatime shared:1 - xfs /dev/b rw,attr2,prjquota\n";
        assert!(has_project_quota(mounts, "/var/lib/docker".as_ref()));
        assert!(has_project_quota(mounts, "/var/lib/docker/data".as_ref()));
        assert!(!has_project_quota(mounts, "/var/lib/other".as_ref()));
    }

    #[test]
    fn a_daemon_elsewhere_is_far() {
        let here = rustix::system::uname();
        let root = std::env::temp_dir().to_str().unwrap().to_owned();
        let own = SystemInfo {
            name: Some(here.nodename().to_str().unwrap().to_owned()),
            kernel_version: Some(here.release().to_str().unwrap().to_owned()),
            docker_root_dir: Some(root),
            ..info("overlay2")
        };
        let socket = Host::parse("unix:///run/docker.sock").unwrap();
        let why = |info: &SystemInfo, host: &Host| why_far(info, host, Isolation::Namespaces).unwrap_or_default();
        assert!(why(&own, &Host::parse("tcp://127.0.0.1:2375").unwrap()).contains("by network"));
        let other = SystemInfo { name: Some("another".into()), ..own.clone() };
        assert!(why(&other, &socket).contains("another machine"));
        if rustix::process::geteuid().is_root() {
            assert_eq!(why(&own, &socket), "");
            assert!(why_far(&own, &socket, Isolation::Gvisor).is_some());
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(pair("1.45").unwrap() >= SUBPATHS && pair("1.5").unwrap() < SUBPATHS);
        assert_eq!(pair("x"), None);
    }
}
