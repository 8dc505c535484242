//! Fixed texts that `/proc` shows instead of files about the whole host: its load, its paging.
//!
//! They are the same for every sandbox and never change: a machine that has done nothing yet. Programs that ask for them (`top`,
//! `uptime`, `vmstat`, language runtimes) find what they look for, as many processors as `/proc/cpuinfo` names, and the time
//! of the boot, which the start times of processes are counted from.

use std::fs;

/// Names below `/proc`, and what is shown there.
pub fn all() -> Vec<(&'static str, String)> {
    let kernels = fs::read_to_string("/proc/stat").unwrap_or_default();
    vec![("stat", stat(&kernels)), ("loadavg", LOAD.to_owned()), ("vmstat", paging())]
}

pub const NAMES: [&str; 3] = ["stat", "loadavg", "vmstat"];

const LOAD: &str = "0.00 0.00 0.00 1/1 1\n";

/// User, nice, system, idle …: idle for a moment, so that shares can be worked out.
const IDLE: &str = "0 0 0 100 0 0 0 0 0 0";

fn stat(kernels: &str) -> String {
    let mut text = String::new();
    for line in kernels.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        match name {
            "cpu" => text += &format!("cpu  {IDLE}\n"),
            "btime" => text += &format!("{line}\n"),
            "procs_running" => text += "procs_running 1\n",
            "intr" | "ctxt" | "processes" | "procs_blocked" | "softirq" => text += &format!("{name} 0\n"),
            _ if name.starts_with("cpu") => text += &format!("{name} {IDLE}\n"),
            // What a newer kernel adds may not be harmless.
            _ => {}
        }
    }
    text
}

fn paging() -> String {
    let names = [
        "nr_free_pages",
        "nr_dirty",
        "nr_writeback",
        "pgpgin",
        "pgpgout",
        "pswpin",
        "pswpout",
        "pgalloc_normal",
        "pgfree",
        "pgfault",
        "pgmajfault",
        "pgsteal_kswapd",
        "pgsteal_direct",
        "pgscan_kswapd",
        "pgscan_direct",
        "oom_kill",
    ];
    names.iter().map(|name| format!("{name} 0\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_processors_and_the_boot_and_no_more() {
        let kernels = "cpu  10 2 3 4 5 6 7 8 9 1\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 77 1 2\nctxt 5\nbtime 1790000000\n\
            processes 12\nprocs_running 3\nprocs_blocked 1\nsoftirq 9 9 9\nsomething_new 4\n";
        assert_eq!(
            stat(kernels),
            "cpu  0 0 0 100 0 0 0 0 0 0\ncpu0 0 0 0 100 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 0\nctxt 0\n\
             btime 1790000000\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n"
        );
    }

    #[test]
    fn every_picture_has_its_name() {
        assert_eq!(all().iter().map(|(name, _)| *name).collect::<Vec<_>>(), NAMES);
    }
}
