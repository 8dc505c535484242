//! Limits a process carries itself, beside its cgroup.

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::refused::{Refused, Step};

/// Killed before anything of the host when the host runs out of memory. The guest raises it for its children.
const OOM_SCORE: &[u8] = b"500";

/// Soft and hard; never above what the engine has itself, since raising needs CAP_SYS_RESOURCE.
const RLIMITS: [(Resource, u64, u64); 6] = [
    // core_pattern is the host's: a crash inside must not start a helper outside.
    (Resource::Core, 0, 0),
    (Resource::Nofile, 1 << 20, 1 << 20),
    // cgroups count processes; this is the second wall where a host has none. As in `share`.
    (Resource::Nproc, 32 << 10, 32 << 10),
    (Resource::Memlock, 8 << 20, 8 << 20),
    (Resource::Msgqueue, 819_200, 819_200),
    (Resource::Sigpending, 8 << 10, 8 << 10),
];

/// The rlimits of every sandbox, computed once.
pub struct Rlimits(Vec<(Resource, Rlimit)>);

impl Rlimits {
    pub fn plan() -> Rlimits {
        let limits = RLIMITS.map(|(resource, soft, hard)| {
            let held = getrlimit(resource).maximum;
            let at_most = |wanted: u64| Some(held.map_or(wanted, |held| held.min(wanted)));
            (resource, Rlimit { current: at_most(soft), maximum: at_most(hard) })
        });
        Rlimits(limits.to_vec())
    }

    pub fn apply(&self) -> Result<(), Refused> {
        for (resource, limit) in &self.0 {
            setrlimit(*resource, *limit).step(&format!("set the limit {resource:?}"))?;
        }
        let file = rustix::fs::open("/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .step("open /proc/self/oom_score_adj")?;
        rustix::io::write(&file, OOM_SCORE).map(drop).step("set the oom score")
    }
}
