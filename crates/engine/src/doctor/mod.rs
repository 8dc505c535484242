//! What this host can do, what is missing, and how to get it.
//!
//! The kernel is asked, not its version: each facility is tried, in a throwaway child where trying leaves traces. A
//! distribution's kernel has things back-ported and things switched off, and a container has neither of what its host has.

mod files;
mod groups;
mod host;
mod namespaces;
mod ordinary;

pub use files::{idmapped_data, room};
use serde::{Deserialize, Serialize};

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub name: String,
    pub verdict: Verdict,
    pub need: Need,
    /// What was found and what it means for sandboxes.
    pub detail: String,
    /// What to do about it, where something should be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// Works, with less speed, less isolation or fewer features.
    Weaker,
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// No sandbox runs without it.
    Required,
    Useful,
}

impl Finding {
    fn ok(name: &str, detail: impl Into<String>) -> Finding {
        Finding { name: name.into(), verdict: Verdict::Ok, need: Need::Useful, detail: detail.into(), remedy: None }
    }

    fn weaker(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Weaker, remedy: Some(remedy.into()), ..Finding::ok(name, detail) }
    }

    fn missing(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Missing, remedy: Some(remedy.into()), ..Finding::ok(name, detail) }
    }

    fn required(self) -> Finding {
        Finding { need: Need::Required, ..self }
    }
}

/// Everything, in the order people want to read it. Takes a few tens of milliseconds and leaves nothing behind.
///
/// `realms` are those of the data directories of this user: an ordinary one has control groups where root handed one over by
/// that name.
pub fn examine(realms: &[String]) -> Vec<Finding> {
    let mut findings = vec![host::kernel(), host::privilege()];
    findings.extend(namespaces::examine());
    findings.extend(ordinary::examine());
    findings.extend(groups::examine(realms));
    findings.extend(files::examine());
    findings.extend(host::examine());
    findings
}

/// Whether sandboxes can have a network beyond loopback.
pub fn network() -> Finding {
    namespaces::firewall()
}

/// Whether sandboxes can run here at all.
pub fn can_run(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.verdict == Verdict::Missing && finding.need == Need::Required)
}

fn is_root() -> bool {
    crate::privilege::is_host_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_required_keeps_sandboxes_from_running() {
        let useful = Finding::missing("gvisor", "no runsc", "install it");
        let required = Finding::missing("user namespaces", "refused", "allow them").required();
        assert!(can_run(&[Finding::ok("kernel", "6.1"), useful.clone()]));
        assert!(!can_run(&[useful, required]));
    }
}
