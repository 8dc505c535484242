//! Resources that the kernel has once for the whole host, and how much of them one sandbox, and all together, may use.
//!
//! | what | who counts it | what holds it |
//! |---|---|---|
//! | process numbers | the sandbox's control group | [`Processes`]: a quarter of the host's for one sandbox, the rest of the host keeps a reserve |
//! | open files | nobody per sandbox, but each costs memory of its control group | [`raise_open_files`]: no number for the whole host runs out before the memory does |
//! | terminals | the sandbox's own devpts: 128 (`root.rs`) | [`raise_terminals`]: the host's number, 3,071 for all, does not run out before memory does |
//! | programs in the kernel (BPF) | nobody per sandbox | `policies/default` lets no socket have one |
//! | file locks | nobody at all, not even as memory | [`crate::lock_watch`]; `policies/default` refuses those that it would not find |
//! | unread answers of the kernel (netlink), connections that nobody accepts | nobody at all, not even as memory | [`crate::socket_watch`] |
//! | access lists (POSIX ACL) of files in memory | nobody at all, not even as memory | `policies/default`: attributes are below 8 KiB |
//! | the lock of all network namespaces (rtnl) | nobody | `policies/default`: no groups of receivers, which are left under it one by one |
//! | options of sockets | nobody at all, not even as memory | `net.core.optmem_max` of the sandbox's network, and `policies/default` refuses the largest |

use std::fs;

use crate::error::Error;
use crate::spec::Limits;

/// More than any sandbox needs; RLIMIT_NPROC, the second wall, is the same number.
const MOST_PROCESSES: u32 = 32 << 10;

const OPEN_FILES: &str = "/proc/sys/fs/file-max";

const TERMINALS: &str = "/proc/sys/kernel/pty/max";

/// As many as the kernel has device numbers for (`NR_UNIX98_PTY_MAX`).
const MOST_TERMINALS: u32 = 1 << 20;

/// The kernel's own largest number. systemd sets it since version 240, for the same reason.
const UNLIMITED: &str = "9223372036854775807";

/// How many processes and threads the host has numbers and room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    host: u32,
}

impl Processes {
    pub fn of_the_host() -> Processes {
        let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        let host = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].into_iter().filter_map(number).min();
        // The kernel's default, where it cannot be read.
        Processes { host: host.unwrap_or(32 << 10) }
    }

    /// For one sandbox.
    pub fn most_of_one(self) -> u32 {
        (self.host / 4).clamp(1, MOST_PROCESSES)
    }

    /// For all sandboxes of one engine together: the engine, its server and people who log in to the host keep the
    /// rest.
    pub fn most_of_all(self) -> u32 {
        self.host - (self.host / 8).max(1024).min(self.host / 2)
    }

    /// Refuses a limit that is none.
    pub fn check(self, limits: &Limits) -> Result<(), Error> {
        let most = self.most_of_one();
        if limits.pids <= most {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "limits.pids is {}: at most {most} on this host, a quarter of its process numbers; ask for fewer, or raise \
             kernel.pid_max and kernel.threads-max",
            limits.pids
        )))
    }
}

/// Lets memory alone decide how many files can be open. The host's number is shared by all: one sandbox with a few
/// hundred MiB could open so many that nobody else can open one (ENFILE). Where `/proc/sys` is read-only the number
/// stays; `cove doctor` names it.
pub fn raise_open_files() {
    if fs::read_to_string(OPEN_FILES).is_ok_and(|text| text.trim() != UNLIMITED) {
        let _ = fs::write(OPEN_FILES, UNLIMITED);
    }
}

/// Lets as many terminals be open as there are numbers for. What the kernel's default leaves is shared by all sandboxes: two dozen,
/// each with its 128, left none to anybody else (ENOSPC). Where `/proc/sys` is read-only the number stays; `cove doctor` names it.
pub fn raise_terminals() {
    let number = fs::read_to_string(TERMINALS).ok().and_then(|text| text.trim().parse::<u32>().ok());
    if number.is_some_and(|number| number < MOST_TERMINALS) {
        let _ = fs::write(TERMINALS, MOST_TERMINALS.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_gets_a_part_and_the_host_keeps_a_reserve() {
        for (host, one, all) in [(32_768, 8192, 28_672), (4 << 20, 32_768, 3_670_016), (1000, 250, 500)] {
            let processes = Processes { host };
            assert_eq!((processes.most_of_one(), processes.most_of_all()), (one, all));
        }
        let processes = Processes { host: 32_768 };
        assert!(processes.check(&Limits { pids: 8192, ..Limits::default() }).is_ok());
        let error = processes.check(&Limits { pids: 4 << 20, ..Limits::default() }).unwrap_err();
        assert!(error.to_string().contains("at most 8192"), "{error}");
    }
}
