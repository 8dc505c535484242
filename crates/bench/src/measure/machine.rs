//! Where and when a measurement was taken, with what.

use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub date: String,
    pub cove: String,
    /// `release`, or `debug`, whose numbers mean nothing.
    pub profile: String,
    pub kernel: String,
    pub system: String,
    pub processor: String,
    pub processors: usize,
    pub memory_gib: f64,
    /// Running processes when it began, over the processors: above 1 somebody else was busy.
    pub load: f64,
    pub user: String,
    /// The other programs that took part.
    pub versions: Vec<(String, String)>,
}

impl Machine {
    pub fn look() -> Machine {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let uname = rustix::system::uname();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: f64 = load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
        Machine {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            cove: env!("CARGO_PKG_VERSION").to_owned(),
            profile: if is_debug_build() { "debug" } else { "release" }.to_owned(),
            kernel: format!("Linux {}", uname.release().to_string_lossy()),
            system: after("/etc/os-release", "PRETTY_NAME=").trim_matches('"').to_owned(),
            processor: after("/proc/cpuinfo", "model name\t: "),
            processors,
            memory_gib: super::memory::line_of(&meminfo, "MemTotal").unwrap_or(0) as f64 / (1 << 20) as f64,
            load: load / processors as f64,
            user: if cove_engine::privilege::is_host_root() { "root" } else { "an ordinary user" }.to_owned(),
            versions: Vec::new(),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{}, cove {} ({} build, as {}), {}, {}, {} × {}, {:.0} GiB, load {:.1} per processor at the start",
            self.date,
            self.cove,
            self.profile,
            self.user,
            self.kernel,
            self.system,
            self.processors,
            self.processor,
            self.memory_gib,
            self.load
        )
    }

    pub fn versions_line(&self) -> Option<String> {
        let told: Vec<_> = self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}

pub fn is_debug_build() -> bool {
    cfg!(debug_assertions)
}

/// The number in what a program says to `--version`.
pub fn version_of(program: &str) -> Option<String> {
    // podman makes itself at home even for this.
    let place = tempfile::tempdir().ok()?;
    let mut command = Command::new(program);
    for name in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"] {
        command.env(name, place.path());
    }
    let said = command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let word =
        text.split_whitespace().find(|word| word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()))?;
    Some(word.trim_start_matches('v').trim_end_matches(',').to_owned())
}

fn after(path: &str, prefix: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(prefix)).unwrap_or("unknown").to_owned()
}
