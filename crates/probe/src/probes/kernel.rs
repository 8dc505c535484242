//! Forbidden system calls, `/proc`, `/sys` and devices.

use std::fs;
use std::io;

use cove_sys::attack::{self, Attempt, FLUSH, FORBIDDEN};

use crate::{Canaries, Outcome, Probe, each, held, must_fail, not_applicable, not_held};

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const ENOSYS: i32 = 38;

/// A probe of one group of system calls, by name.
macro_rules! refuses {
    ($($call:literal),+) => {
        |_: &Canaries| each([$($call),+].map(refused))
    };
}

pub const PROBES: &[Probe] = &[
    Probe { name: "cannot_use_bpf", meaning: "programs in the kernel", run: refuses!("bpf") },
    Probe {
        name: "cannot_use_perf_events",
        meaning: "watching the host's processors",
        run: refuses!("perf_event_open"),
    },
    Probe {
        name: "cannot_use_kernel_keys",
        meaning: "keys shared with the host",
        run: refuses!("keyctl", "add_key", "request_key"),
    },
    Probe { name: "cannot_use_userfaultfd", meaning: "a tool for winning kernel races", run: refuses!("userfaultfd") },
    Probe {
        name: "cannot_use_io_uring",
        meaning: "a large, often attacked part of the kernel",
        run: refuses!("io_uring_setup", "io_uring_enter", "io_uring_register"),
    },
    Probe {
        name: "cannot_use_up_the_hosts_asynchronous_io",
        meaning: "a number that counts for the whole host, all taken by one sandbox",
        run: refuses!("io_setup"),
    },
    Probe {
        name: "cannot_load_kernel_modules",
        meaning: "code in the kernel",
        run: refuses!("init_module", "finit_module", "delete_module"),
    },
    Probe {
        name: "cannot_replace_the_kernel",
        meaning: "another kernel",
        run: refuses!("kexec_load", "kexec_file_load"),
    },
    Probe { name: "cannot_reboot", meaning: "the host restarted", run: refuses!("reboot") },
    Probe {
        name: "cannot_manage_swap_or_accounting",
        meaning: "the host's memory and accounts",
        run: refuses!("swapon", "swapoff", "acct", "quotactl"),
    },
    Probe {
        name: "cannot_open_files_by_handle",
        meaning: "files of the host by inode (the Shocker escape)",
        run: refuses!("open_by_handle_at"),
    },
    Probe {
        name: "cannot_watch_the_filesystem_with_fanotify",
        meaning: "every open of the host seen",
        run: refuses!("fanotify_init"),
    },
    Probe {
        name: "cannot_use_vmsplice_or_secret_memory",
        meaning: "pages shared with the kernel, or hidden from it",
        run: refuses!("vmsplice", "memfd_secret"),
    },
    Probe {
        name: "cannot_steal_descriptors",
        meaning: "files that another process has open",
        run: refuses!("pidfd_getfd", "process_madvise", "kcmp"),
    },
    Probe {
        name: "cannot_mount",
        meaning: "masks taken off, devices shown",
        run: refuses!("mount", "umount2", "pivot_root"),
    },
    Probe {
        name: "cannot_mount_with_the_new_interface",
        meaning: "masks taken off, devices shown",
        run: refuses!("fsopen", "fsmount", "fsconfig", "fspick", "open_tree", "move_mount", "mount_setattr"),
    },
    Probe { name: "cannot_enter_namespaces", meaning: "the host's namespaces joined", run: refuses!("setns") },
    Probe { name: "cannot_read_the_kernel_log", meaning: "addresses and secrets in the log", run: kernel_log },
    Probe {
        name: "cannot_set_the_clock",
        meaning: "the host's time",
        run: refuses!("settimeofday", "clock_settime", "clock_adjtime"),
    },
    Probe { name: "cannot_hang_up_terminals", meaning: "terminals of others closed", run: refuses!("vhangup") },
    Probe {
        name: "cannot_move_pages_of_others",
        meaning: "memory placement of the host",
        run: refuses!("migrate_pages", "move_pages"),
    },
    Probe { name: "cannot_touch_io_ports", meaning: "hardware by its ports", run: refuses!("iopl", "ioperm") },
    Probe {
        name: "cannot_change_the_descriptor_table",
        meaning: "an old source of kernel bugs",
        run: refuses!("modify_ldt"),
    },
    Probe { name: "cannot_use_clone3", meaning: "namespace flags that a filter cannot read", run: clone3 },
    Probe {
        name: "cannot_use_the_32_bit_entry",
        meaning: "a second table of system calls past the filter",
        run: thirty_two_bit,
    },
    Probe { name: "cannot_use_x32_numbers", meaning: "a third table of system calls past the filter", run: x32 },
    Probe { name: "cannot_write_proc_sys", meaning: "settings of the host's kernel", run: proc_sys },
    Probe {
        name: "cannot_set_the_core_pattern",
        meaning: "a program of ours run by the host's kernel",
        run: core_pattern,
    },
    Probe { name: "cannot_trigger_sysrq", meaning: "the host crashed by one letter", run: sysrq },
    Probe { name: "cannot_read_kernel_memory", meaning: "all secrets of the host", run: kernel_memory },
    Probe { name: "cannot_read_kernel_addresses", meaning: "the map for a kernel exploit", run: kernel_addresses },
    Probe { name: "cannot_read_host_tables_in_proc", meaning: "what the host runs on", run: host_tables },
    Probe {
        name: "cannot_see_the_hosts_load",
        meaning: "when the neighbours work, and how much",
        run: |_| stands_still(&["/proc/stat", "/proc/loadavg"]),
    },
    Probe {
        name: "cannot_see_the_hosts_paging",
        meaning: "what the neighbours' memory does, page by page",
        run: |_| each([stands_still(&["/proc/vmstat"]), has_bytes("/proc/zoneinfo"), has_bytes("/proc/buddyinfo")]),
    },
    Probe {
        name: "cannot_see_the_hosts_pressure",
        meaning: "for what the host is waiting",
        run: |_| each([hidden("/proc/pressure"), has_bytes("/proc/softirqs"), has_bytes("/proc/schedstat")]),
    },
    Probe {
        name: "cannot_flush_the_hosts_disks",
        meaning: "everybody waits until all of the host's files are written",
        run: flush,
    },
    Probe { name: "cannot_write_sys", meaning: "devices and drivers of the host", run: write_sys },
    Probe { name: "cannot_write_cgroup_files", meaning: "its own limits lifted", run: cgroup_files },
    Probe {
        name: "cannot_set_a_release_agent",
        meaning: "a program of ours run by the host's kernel (CVE-2022-0492)",
        run: release_agent,
    },
    Probe {
        name: "cannot_make_block_devices",
        meaning: "the host's disk under a name of ours",
        run: |_| make_device(0o060000, &[(8, 0), (254, 0), (7, 0), (259, 0)]),
    },
    Probe {
        name: "cannot_make_character_devices",
        meaning: "the host's memory under a name of ours",
        run: |_| make_device(0o020000, &[(1, 1), (1, 2), (1, 11), (10, 200), (10, 232)]),
    },
    Probe {
        name: "cannot_open_dangerous_devices",
        meaning: "memory, tunnels and virtual machines of the host",
        run: dangerous_devices,
    },
    Probe {
        name: "cannot_reach_debug_filesystems",
        meaning: "the kernel's own tracing and debugging",
        run: debug_filesystems,
    },
];

/// Refused before it reached the call's own code.
fn refused(name: &str) -> Outcome {
    let Some(attempt) = FORBIDDEN.iter().find(|attempt| attempt.name == name) else {
        return not_applicable(format!("{name} does not exist on this processor"));
    };
    judge(attempt, attempt.make())
}

fn judge(attempt: &Attempt, result: io::Result<i64>) -> Outcome {
    match result {
        Ok(answer) => not_held(format!("{} answered {answer}", attempt.name)),
        Err(error) if matches!(error.raw_os_error(), Some(EPERM | ENOSYS | EACCES)) => {
            held(format!("{}: {error}", attempt.name))
        }
        Err(error) => not_held(format!("{} reached the kernel: {error}", attempt.name)),
    }
}

fn kernel_log(_: &Canaries) -> Outcome {
    each([
        refused("syslog"),
        must_fail("open /proc/kmsg", fs::File::open("/proc/kmsg")),
        must_fail("open /dev/kmsg", fs::File::open("/dev/kmsg")),
    ])
}

fn clone3(_: &Canaries) -> Outcome {
    match attack::clone3() {
        Err(error) if error.raw_os_error() == Some(ENOSYS) => {
            held("clone3: not implemented, so libraries fall back to clone")
        }
        Err(error) => not_held(format!("clone3 reached the kernel: {error}")),
        Ok(()) => not_held("clone3 is allowed"),
    }
}

/// If the filter kills the process, this never returns; the parent reports `Held`.
fn thirty_two_bit(_: &Canaries) -> Outcome {
    #[cfg(target_arch = "x86_64")]
    {
        let answer = attack::getpid_by_32_bit_entry();
        if answer == -ENOSYS || answer == -EPERM {
            held(format!("int 0x80 answered {answer}"))
        } else {
            not_held(format!("int 0x80 answered {answer}"))
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    not_applicable("no such entry on this processor")
}

fn x32(_: &Canaries) -> Outcome {
    #[cfg(target_arch = "x86_64")]
    {
        must_fail("getpid by its x32 number", attack::getpid_by_x32_number())
    }
    #[cfg(not(target_arch = "x86_64"))]
    not_applicable("no such numbers on this processor")
}

/// Opens for writing and writes back what was read, so that nothing changes if the attempt succeeds.
fn write_back(path: &str) -> Outcome {
    let text = fs::read(path).unwrap_or_default();
    must_fail(
        &format!("write {path}"),
        fs::OpenOptions::new().write(true).open(path).and_then(|mut file| io::Write::write_all(&mut file, &text)),
    )
}

fn proc_sys(_: &Canaries) -> Outcome {
    each(
        [
            "/proc/sys/vm/overcommit_memory",
            "/proc/sys/kernel/panic",
            "/proc/sys/fs/file-max",
            "/proc/sys/kernel/pid_max",
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/vm/drop_caches",
            "/proc/sys/user/max_user_namespaces",
        ]
        .map(write_back),
    )
}

fn core_pattern(_: &Canaries) -> Outcome {
    each([
        write_back("/proc/sys/kernel/core_pattern"),
        must_fail("raise the limit of core dumps", attack::raise_core_limit()),
    ])
}

fn sysrq(_: &Canaries) -> Outcome {
    must_fail("open /proc/sysrq-trigger", fs::OpenOptions::new().write(true).open("/proc/sysrq-trigger"))
}

fn has_bytes(path: &str) -> Outcome {
    let mut byte = [0u8; 1];
    match fs::File::open(path).and_then(|mut file| io::Read::read(&mut file, &mut byte)) {
        Ok(1..) => not_held(format!("{path} can be read")),
        Ok(_) => held(format!("{path} is empty")),
        Err(error) => held(format!("read {path}: {error}")),
    }
}

fn kernel_memory(_: &Canaries) -> Outcome {
    each(["/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"].map(has_bytes))
}

fn kernel_addresses(_: &Canaries) -> Outcome {
    let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    match text.lines().find(|line| !line.starts_with("0000000000000000")) {
        Some(line) => not_held(format!("/proc/kallsyms tells {line}")),
        None => held("/proc/kallsyms tells no address"),
    }
}

fn host_tables(_: &Canaries) -> Outcome {
    each(
        [
            "/proc/keys",
            "/proc/timer_list",
            "/proc/config.gz",
            "/proc/partitions",
            "/proc/diskstats",
            "/proc/cmdline",
            "/proc/interrupts",
            "/proc/latency_stats",
            "/proc/sched_debug",
        ]
        .map(has_bytes)
        .into_iter()
        .chain([hidden("/proc/acpi"), hidden("/proc/scsi")]),
    )
}

/// A file with the host's numbers changes while we work; a still does not.
fn stands_still(paths: &[&str]) -> Outcome {
    each(paths.iter().map(|path| {
        let Ok(before) = fs::read(path) else { return held(format!("{path} cannot be read")) };
        // The kernel counts in hundredths of a second, and the load every five seconds: its running processes at once.
        let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
        while std::time::Instant::now() < end {
            // Memory that is taken and freed, for files that count pages.
            std::hint::black_box(vec![1u8; 1 << 20]);
            if fs::read(path).is_ok_and(|now| now != before) {
                return not_held(format!("{path} changes"));
            }
        }
        if fs::metadata(path).is_ok_and(|file| file.len() == 0) {
            // Files of procfs have no size.
            return not_held(format!("{path} is the kernel's own"));
        }
        held(format!("{path} stands still"))
    }))
}

fn flush(_: &Canaries) -> Outcome {
    match FLUSH.make() {
        Ok(0) => held("syncfs: answered without being done"),
        result => judge(&FLUSH, result),
    }
}

fn hidden(path: &str) -> Outcome {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            Some(_) => not_held(format!("{path} shows something")),
            None => held(format!("{path} is empty")),
        },
        Err(error) => held(format!("list {path}: {error}")),
    }
}

fn write_sys(_: &Canaries) -> Outcome {
    let direct = [
        "/sys/power/state",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/module/kernel/parameters/panic",
        "/sys/class/net/lo/mtu",
    ]
    .map(|path| must_fail(&format!("open {path} for writing"), fs::OpenOptions::new().write(true).open(path)));
    // An empty directory where sysfs would be is the sandbox's own to write to.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let sysfs =
        mounts.lines().any(|line| line.contains(" - sysfs ") && line.contains(" /sys ") && line.contains(" rw,"));
    let file = if sysfs { not_held("sysfs is mounted for writing") } else { held("no sysfs is mounted for writing") };
    each(direct.into_iter().chain([file]))
}

fn cgroup_files(_: &Canaries) -> Outcome {
    let mut tried = vec![must_fail("make a cgroup", fs::create_dir("/sys/fs/cgroup/cove-probe"))];
    for name in
        ["memory/memory.limit_in_bytes", "pids/pids.max", "memory.max", "pids.max", "cgroup.procs", "memory/tasks"]
    {
        let path = format!("/sys/fs/cgroup/{name}");
        tried.push(must_fail(&format!("open {path} for writing"), fs::OpenOptions::new().write(true).open(&path)));
    }
    each(tried)
}

fn release_agent(_: &Canaries) -> Outcome {
    let places = [
        "/sys/fs/cgroup/release_agent",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/systemd/release_agent",
        "/sys/fs/cgroup/rdma/release_agent",
    ];
    each(
        places
            .map(|path| must_fail(&format!("open {path} for writing"), fs::OpenOptions::new().write(true).open(path)))
            .into_iter()
            .chain([refused("mount")]),
    )
}

/// Making the node may be allowed (overlay whiteouts are such nodes); opening it must not be.
fn make_device(kind: u32, numbers: &[(u32, u32)]) -> Outcome {
    each(numbers.iter().map(|&(major, minor)| {
        let path = std::env::temp_dir().join(format!("cove-probe-device-{major}-{minor}"));
        let _ = fs::remove_file(&path);
        let name = std::ffi::CString::new(path.to_string_lossy().as_bytes()).unwrap_or_default();
        match attack::make_device(&name, kind, major, minor) {
            Err(error) => held(format!("mknod {major}:{minor}: {error}")),
            Ok(()) => {
                let opened = fs::File::open(&path);
                let _ = fs::remove_file(&path);
                must_fail(&format!("open a device {major}:{minor} of our own making"), opened)
            }
        }
    }))
}

fn dangerous_devices(_: &Canaries) -> Outcome {
    each(
        [
            "/dev/kvm",
            "/dev/net/tun",
            "/dev/fuse",
            "/dev/loop0",
            "/dev/loop-control",
            "/dev/vda",
            "/dev/sda",
            "/dev/nvme0n1",
            "/dev/console",
            "/dev/input/event0",
            "/dev/dri/card0",
            "/dev/vhost-net",
            "/dev/vsock",
        ]
        .map(|path| must_fail(&format!("open {path}"), fs::File::open(path))),
    )
}

fn debug_filesystems(_: &Canaries) -> Outcome {
    each(
        [
            "/sys/kernel/debug",
            "/sys/kernel/tracing",
            "/sys/fs/bpf",
            "/sys/kernel/security",
            "/sys/firmware",
            "/proc/fs/nfsd",
        ]
        .map(hidden),
    )
}
