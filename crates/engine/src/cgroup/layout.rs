//! Where this host has its control groups: read from `/proc/self/mountinfo` and `/proc/self/cgroup`, nothing touched.
//!
//! Three worlds are met: v2 alone (most servers), v1 with one mount per controller (older ones), and v1 with an empty v2
//! tree beside it ("hybrid"). A controller lives in v1 or in v2, never in both.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One mounted hierarchy and where this process is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub at: PathBuf,
    /// This process's own group, as a path below `at`; `None` where the mount does not show it.
    pub own: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// v1 controllers by name.
    pub v1: BTreeMap<String, Mounted>,
    pub v2: Option<Mounted>,
    /// What the v2 root offers: empty in the hybrid world.
    pub v2_controllers: Vec<String>,
}

impl Layout {
    pub fn of_this_process() -> std::io::Result<Layout> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let mut layout = Layout::parse(&mounts, &groups);
        if let Some(v2) = &layout.v2 {
            let offered = fs::read_to_string(v2.at.join("cgroup.controllers")).unwrap_or_default();
            layout.v2_controllers = offered.split_whitespace().map(str::to_owned).collect();
        }
        Ok(layout)
    }

    fn parse(mounts: &str, groups: &str) -> Layout {
        let own: BTreeMap<&str, &str> = groups.lines().flat_map(own_groups).collect();
        let mut layout = Layout::default();
        for mount in mounts.lines().filter_map(MountLine::parse) {
            let mounted = |own: Option<&&str>| Mounted {
                at: mount.at.clone(),
                own: own.and_then(|own| Path::new(own).strip_prefix(&mount.root).ok()).map(Path::to_owned),
            };
            match mount.kind {
                "cgroup2" if layout.v2.is_none() => layout.v2 = Some(mounted(own.get(""))),
                "cgroup" => {
                    for option in mount.options.split(',') {
                        // Only names that /proc/self/cgroup knows are controllers; the rest are mount options.
                        if let Some(group) = own.get(option) {
                            layout.v1.entry(option.to_owned()).or_insert_with(|| mounted(Some(group)));
                        }
                    }
                }
                _ => {}
            }
        }
        layout
    }
}

/// `4:cpu,cpuacct:/path` gives both names; v2 is `0::/path` and has the empty name.
fn own_groups(line: &str) -> Vec<(&str, &str)> {
    let mut fields = line.splitn(3, ':');
    match (fields.next(), fields.next(), fields.next()) {
        (Some(_), Some(names), Some(path)) => names.split(',').map(|name| (name, path)).collect(),
        _ => Vec::new(),
    }
}

struct MountLine<'a> {
    root: PathBuf,
    at: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> MountLine<'a> {
    /// See proc_pid_mountinfo(5): optional fields end at a single dash.
    fn parse(line: &'a str) -> Option<MountLine<'a>> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, at) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
        Some(MountLine { root: unescape(root), at: unescape(at), kind, options })
    }
}

/// The kernel writes space, tab, newline and backslash of a path as `\040` and so on.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_v2_alone() {
        let layout = Layout::parse(
            "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            "0::/system.slice/cove.service\n",
        );
        let v2 = layout.v2.unwrap();
        assert_eq!(v2.at, Path::new("/sys/fs/cgroup"));
        assert_eq!(v2.own.unwrap(), Path::new("system.slice/cove.service"));
        assert!(layout.v1.is_empty());
    }

    #[test]
    fn a_hybrid_host_with_controllers_mounted_together() {
        let layout = Layout::parse(
            "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             33 24 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             34 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "3:cpu,cpuacct:/\n2:memory:/user/me\n1:name=systemd:/\n0::/\n",
        );
        assert_eq!(layout.v1["cpu"].at, layout.v1["cpuacct"].at);
        assert_eq!(layout.v1["memory"].own.as_deref(), Some(Path::new("user/me")));
        assert_eq!(layout.v2.unwrap().own.as_deref(), Some(Path::new("")));
    }

    #[test]
    fn a_container_that_sees_only_its_own_part() {
        let layout = Layout::parse(
            "31 24 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            "2:memory:/docker/abc\n",
        );
        assert_eq!(layout.v1["memory"].own.as_deref(), Some(Path::new("")));
    }

    #[test]
    fn a_group_outside_the_mount_is_not_ours_to_use() {
        let layout =
            Layout::parse("31 24 0:27 /docker/abc /cg rw - cgroup cgroup rw,memory\n", "2:memory:/elsewhere\n");
        assert_eq!(layout.v1["memory"].own, None);
    }

    #[test]
    fn paths_with_spaces_are_read_as_they_are() {
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
    }
}
