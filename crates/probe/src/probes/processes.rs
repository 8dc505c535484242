//! Other processes, PID 1, namespaces and privileges.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cove_sys::attack;

use crate::{Canaries, Outcome, Probe, each, held, must_fail, not_applicable, not_held};

const CLONE_NEWUSER: i32 = 0x1000_0000;
const CLONE_NEWNS: i32 = 0x0002_0000;
const CLONE_NEWNET: i32 = 0x4000_0000;
const CLONE_NEWPID: i32 = 0x2000_0000;
const CLONE_NEWCGROUP: i32 = 0x0200_0000;

/// Docker's default set, less CAP_SYS_CHROOT where the engine drops it: the most that a process inside may have.
const ALLOWED_CAPABILITIES: u64 = 0xa80425fb;

pub const PROBES: &[Probe] = &[
    Probe { name: "cannot_see_host_processes", meaning: "what the host and the neighbours run", run: see_processes },
    Probe { name: "cannot_signal_host_processes", meaning: "processes of the host ended", run: signal_host },
    Probe { name: "cannot_kill_pid_one", meaning: "the sandbox ended by any process in it", run: kill_pid_one },
    Probe {
        name: "cannot_trace_pid_one",
        meaning: "the guest taken over",
        run: |_| must_fail("ptrace PID 1", attack::seize(1)),
    },
    Probe { name: "cannot_read_pid_ones_memory", meaning: "the guest's secrets", run: read_pid_one },
    Probe {
        name: "cannot_make_user_namespaces",
        meaning: "all capabilities over a new set of kernel code",
        run: |_| must_fail("unshare a user namespace", attack::unshare(CLONE_NEWUSER)),
    },
    Probe {
        name: "cannot_make_mount_namespaces",
        meaning: "mounts of its own",
        run: |_| must_fail("unshare a mount namespace", attack::unshare(CLONE_NEWNS)),
    },
    Probe {
        name: "cannot_make_network_namespaces",
        meaning: "a network of its own, with all of its kernel code",
        run: |_| must_fail("unshare a network namespace", attack::unshare(CLONE_NEWNET)),
    },
    Probe {
        name: "cannot_make_pid_or_cgroup_namespaces",
        meaning: "the views of the sandbox changed",
        run: other_namespaces,
    },
    Probe {
        name: "cannot_hold_more_capabilities_than_docker_gives",
        meaning: "powers over the kernel",
        run: capabilities,
    },
    Probe { name: "cannot_map_more_users", meaning: "ids of the host or of neighbours", run: map_users },
    Probe { name: "cannot_be_the_hosts_root", meaning: "the host's root by another name", run: not_host_root },
    Probe { name: "cannot_run_without_a_filter", meaning: "system calls without limits", run: filter },
    Probe { name: "cannot_rename_the_host", meaning: "the host's name", run: rename_host },
    Probe {
        name: "cannot_take_real_time_priority",
        meaning: "the neighbours starved",
        run: |_| must_fail("SCHED_FIFO", attack::real_time()),
    },
    Probe {
        name: "cannot_raise_its_priority",
        meaning: "the neighbours starved",
        run: |_| must_fail("nice -20", attack::raise_priority()),
    },
    Probe {
        name: "cannot_shield_itself_from_the_oom_killer",
        meaning: "the host's own processes killed instead",
        run: oom_score,
    },
    Probe {
        name: "cannot_type_into_terminals",
        meaning: "commands put into somebody's shell (TIOCSTI)",
        run: type_into_terminal,
    },
    Probe {
        name: "cannot_take_the_terminals_of_all",
        meaning: "no sandbox of the host gets a terminal any more",
        run: take_terminals,
    },
    Probe {
        name: "cannot_use_up_the_hosts_process_numbers",
        meaning: "nobody on the host can start a process any more",
        run: take_process_numbers,
    },
    Probe {
        name: "cannot_use_up_the_hosts_open_files",
        meaning: "no neighbour can open a file any more",
        run: open_files,
    },
    Probe { name: "cannot_see_its_cgroup_path", meaning: "the host's layout", run: cgroup_path },
];

fn processes() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Every process in sight must be below PID 1 of this sandbox: its chain of parents ends there or at nobody (0).
fn see_processes(canaries: &Canaries) -> Outcome {
    let seen = processes();
    for name in ["systemd", "dockerd", "containerd", "kthreadd", "sshd"] {
        for pid in &seen {
            if fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name) {
                return not_held(format!("process {pid} ({name}) of the host is in sight"));
            }
        }
    }
    if let Some(pid) = canaries.process.filter(|&pid| pid > 400 && seen.contains(&pid)) {
        return not_held(format!("process {pid} of the host is in sight"));
    }
    held(format!("{} processes in sight, all of this sandbox", seen.len()))
}

fn signal_host(canaries: &Canaries) -> Outcome {
    match canaries.process {
        Some(pid) if !processes().contains(&pid) => {
            must_fail(&format!("signal process {pid} of the host"), attack::kill(pid, 0))
        }
        Some(_) => not_applicable("the number is in use inside"),
        None => not_applicable("no process was named"),
    }
}

/// The kernel drops signals that PID 1 of a namespace did not ask for, also SIGKILL and SIGSTOP from inside; that we still
/// run and PID 1 still answers is the proof.
fn kill_pid_one(_: &Canaries) -> Outcome {
    for signal in [9, 19, 15, 1, 11] {
        let _ = attack::kill(1, signal);
    }
    match fs::read_to_string("/proc/1/stat") {
        Ok(stat) if stat.contains(") T ") => not_held("PID 1 was stopped"),
        Ok(_) => held("PID 1 lives on after KILL, STOP, TERM, HUP and SEGV"),
        Err(error) => not_held(format!("PID 1 is gone: {error}")),
    }
}

fn read_pid_one(_: &Canaries) -> Outcome {
    let memory = match attack::read_memory_of(1) {
        Err(error) if error.raw_os_error() == Some(14) => not_held("process_vm_readv on PID 1 is allowed"),
        other => must_fail("process_vm_readv on PID 1", other),
    };
    each([
        memory,
        must_fail("open /proc/1/mem", fs::File::open("/proc/1/mem")),
        must_fail(
            "read /proc/1/environ",
            fs::read("/proc/1/environ")
                .and_then(|bytes| if bytes.is_empty() { Err(std::io::Error::other("empty")) } else { Ok(()) }),
        ),
    ])
}

fn other_namespaces(_: &Canaries) -> Outcome {
    each(
        [CLONE_NEWPID, CLONE_NEWCGROUP, 0x0800_0000, 0x0400_0000, 0x80]
            .map(|flag| must_fail(&format!("unshare {flag:#x}"), attack::unshare(flag))),
    )
}

fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}

fn capabilities(_: &Canaries) -> Outcome {
    each(["CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"].map(|set| {
        match status_field(set).and_then(|value| u64::from_str_radix(&value, 16).ok()) {
            Some(value) if value & !ALLOWED_CAPABILITIES == 0 => held(format!("{set} {value:x}")),
            Some(value) => not_held(format!("{set} {value:x} has more than {ALLOWED_CAPABILITIES:x}")),
            None => not_held(format!("{set} cannot be read")),
        }
    }))
}

fn map_users(_: &Canaries) -> Outcome {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let write = |path: &str| must_fail(&format!("write {path}"), fs::write(path, "0 0 4294967295\n"));
    each([
        write("/proc/self/uid_map"),
        write("/proc/self/gid_map"),
        write("/proc/1/uid_map"),
        if map.split_whitespace().nth(2) == Some("4294967295") {
            not_held("every id of the host is mapped")
        } else {
            held(format!("ids: {}", map.trim()))
        },
    ])
}

/// How the kernel shows an id that a user namespace does not know (`overflowuid`).
const NOBODY: u32 = 65_534;

fn not_host_root(_: &Canaries) -> Outcome {
    // What the kernel itself owns belongs to the host's root. `uid_map` alone is not enough: in nested user namespaces
    // it names the ids of the next one outside.
    match fs::metadata("/proc/sys/kernel/ostype").map(|file| file.uid()) {
        Ok(NOBODY) => held("the host's root is nobody in here"),
        Ok(uid) => not_held(format!("the host's root is user {uid} in here")),
        Err(error) => not_applicable(format!("/proc/sys/kernel/ostype: {error}")),
    }
}

fn filter(_: &Canaries) -> Outcome {
    match status_field("Seccomp").as_deref() {
        Some("2") => held("seccomp mode 2 (filter)"),
        other => not_held(format!("seccomp mode {other:?}")),
    }
}

fn rename_host(_: &Canaries) -> Outcome {
    must_fail("sethostname", attack::set_hostname("cove-probe"))
}

fn oom_score(_: &Canaries) -> Outcome {
    let score: i32 =
        fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    each([
        must_fail("set oom_score_adj to -1000", fs::write("/proc/self/oom_score_adj", "-1000")),
        if score < 0 {
            not_held(format!("oom_score_adj is {score}"))
        } else {
            held(format!("oom_score_adj is {score}"))
        },
    ])
}

fn type_into_terminal(_: &Canaries) -> Outcome {
    use std::os::fd::AsFd;
    match fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx") {
        Ok(terminal) => must_fail("TIOCSTI", attack::type_into(terminal.as_fd())),
        Err(error) => not_applicable(format!("no terminal to be had: {error}")),
    }
}

fn take_terminals(_: &Canaries) -> Outcome {
    const PLENTY: usize = 256;
    let mut taken = Vec::new();
    while taken.len() < PLENTY {
        match fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx") {
            Ok(terminal) => taken.push(terminal),
            Err(error) if taken.is_empty() => return not_applicable(format!("no terminal to be had: {error}")),
            Err(error) => return held(format!("{} terminals, then {error}", taken.len())),
        }
    }
    not_held(format!("{PLENTY} terminals and no end"))
}

/// As many threads as possible, which wait until the probe ends.
fn take_process_numbers(_: &Canaries) -> Outcome {
    let most = match fs::read_to_string("/proc/sys/kernel/pid_max").map(|text| text.trim().parse::<usize>()) {
        Ok(Ok(numbers)) => numbers.min(128 << 10) / 2,
        _ => 16 << 10,
    };
    let mut threads = 0;
    while threads < most {
        let waits = || std::thread::park_timeout(std::time::Duration::from_secs(60));
        match std::thread::Builder::new().stack_size(16 << 10).spawn(waits) {
            Ok(_) => threads += 1,
            Err(error) => return held(format!("{threads} threads, then {error}")),
        }
    }
    not_held(format!("{threads} threads and no end"))
}

/// Each open file costs the sandbox's memory; the host's maximum must not be reached before that is full.
fn open_files(_: &Canaries) -> Outcome {
    /// A million for each of a thousand sandboxes.
    const PLENTY: u64 = 1 << 30;
    match fs::read_to_string("/proc/sys/fs/file-max").map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(most)) if most >= PLENTY => held(format!("the host has {most}: memory runs out before")),
        Ok(Ok(most)) => not_held(format!("the host has {most} for all together: sysctl -w fs.file-max={}", i64::MAX)),
        _ => not_applicable("/proc/sys/fs/file-max cannot be read"),
    }
}

fn cgroup_path(_: &Canaries) -> Outcome {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match text.lines().find(|line| !line.ends_with(":/")) {
        Some(line) => not_held(format!("/proc/self/cgroup tells {line}")),
        None => held("/proc/self/cgroup tells only /"),
    }
}
