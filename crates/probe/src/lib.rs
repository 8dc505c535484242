//! Runs inside a sandbox and tries to get out.
//!
//! A probe is one attempt with a verdict: [`Verdict::Held`] when it failed, [`Verdict::NotHeld`] when it got out,
//! [`Verdict::NotApplicable`] when the host has nothing to attack. The tests run each one (`cannot_…`) and `cove
//! redteam` runs them all; there is no second list.
//!
//! [`Canaries`] has what only the host knows: files, sockets and processes that it made for the probe to find.
//!
//! # Layout
//! * [`files`]: what of the host's files can be seen or changed
//! * [`kernel`]: forbidden system calls, `/proc`, `/sys`, devices
//! * [`processes`]: other processes, PID 1, namespaces, privileges
//! * [`network`]: what a connection can reach
//! * [`battery`]: the program that runs them inside

#![forbid(unsafe_code)]

pub mod battery;
mod probes {
    pub mod files;
    pub mod kernel;
    pub mod network;
    pub mod processes;
}

use std::io;

use serde::{Deserialize, Serialize};

pub use probes::{files, kernel, network, processes};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "held")]
    Held,
    #[serde(rename = "not held")]
    NotHeld,
    #[serde(rename = "not applicable")]
    NotApplicable,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub name: String,
    pub verdict: Verdict,
    /// What was tried and what the answer was.
    pub detail: String,
}

/// One attempt.
pub struct Probe {
    /// As the test is called: `cannot_…`.
    pub name: &'static str,
    /// What it means if this attempt succeeds.
    pub meaning: &'static str,
    pub run: fn(&Canaries) -> Outcome,
}

/// Probes of one kind.
pub struct Family {
    pub title: &'static str,
    pub probes: &'static [Probe],
    /// What to check first if one of them succeeds.
    pub remedy: &'static str,
}

pub const FAMILIES: [Family; 4] = [
    Family {
        title: "files: what of the host's files can be seen or changed",
        probes: files::PROBES,
        remedy: "see which mount shows it (`cove run -- cat /proc/self/mountinfo`) and leave out `--mount`s of more than the sandbox \
                 needs; nothing of the host outside /usr should be there",
    },
    Family {
        title: "kernel: forbidden system calls, `/proc`, `/sys`, devices",
        probes: kernel::PROBES,
        remedy: "update the kernel and look at `seccomp` and the namespaces in `cove doctor`; until it holds, run nothing here that you do not trust",
    },
    Family {
        title: "processes: other processes, PID 1, namespaces, privileges",
        probes: processes::PROBES,
        remedy: "look at the namespaces and control groups in `cove doctor`; as an ordinary user some limits need a delegated control group",
    },
    Family {
        title: "network: where a connection gets",
        probes: network::PROBES,
        remedy: "look at `nftables` in `cove doctor`, at `private_targets` in the server's configuration, and at what `--allow` names",
    },
];

pub type Outcome = (Verdict, String);

/// What the host made for the probe to find, passed as JSON in the environment variable `COVE_CANARIES`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canaries {
    /// Files with the word [`Canaries::WORD`] in them: in root's home, the data directory, another sandbox …
    #[serde(default)]
    pub files: Vec<String>,
    /// The name of an abstract Unix socket that listens on the host.
    #[serde(default)]
    pub abstract_socket: Option<String>,
    /// A process of the host.
    #[serde(default)]
    pub process: Option<i32>,
    /// Ports that listen on the host's loopback.
    #[serde(default)]
    pub loopback_port: Option<u16>,
    /// The host's own addresses.
    #[serde(default)]
    pub host_addresses: Vec<String>,
    /// The inode of the host's root directory.
    #[serde(default)]
    pub root_inode: Option<(u64, u64)>,
    /// The host's name.
    #[serde(default)]
    pub hostname: Option<String>,
}

impl Canaries {
    pub const WORD: &'static str = "cove-canary-do-not-read";
    pub const VARIABLE: &'static str = "COVE_CANARIES";
}

/// All probes, in the order of the report.
pub fn all() -> impl Iterator<Item = &'static Probe> {
    FAMILIES.iter().flat_map(|family| family.probes)
}

impl Probe {
    pub fn find(&self, canaries: &Canaries) -> Finding {
        let (verdict, detail) = (self.run)(canaries);
        Finding { name: self.name.to_owned(), verdict, detail }
    }
}

pub(crate) fn held(detail: impl Into<String>) -> Outcome {
    (Verdict::Held, detail.into())
}

pub(crate) fn not_held(detail: impl Into<String>) -> Outcome {
    (Verdict::NotHeld, detail.into())
}

pub(crate) fn not_applicable(detail: impl Into<String>) -> Outcome {
    (Verdict::NotApplicable, detail.into())
}

/// Held when the attempt failed, whatever the errno.
pub(crate) fn must_fail<T>(what: &str, result: io::Result<T>) -> Outcome {
    match result {
        Ok(_) => not_held(format!("{what}: allowed")),
        Err(error) => held(format!("{what}: {error}")),
    }
}

/// The first of several attempts that succeeded, or `Held` if all failed.
pub(crate) fn each(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let (mut count, mut last) = (0, None);
    for (verdict, detail) in outcomes {
        match verdict {
            Verdict::NotHeld => return (verdict, detail),
            Verdict::Held => {
                count += 1;
                last = Some(detail);
            }
            Verdict::NotApplicable => {}
        }
    }
    match last {
        Some(detail) if count == 1 => held(detail),
        Some(detail) => held(format!("{count} attempts refused, the last: {detail}")),
        None => not_applicable("nothing of the kind on this host"),
    }
}
