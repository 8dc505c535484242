//! Other programs that build walls, run on the same files with the same borders.
//!
//! All see this machine's `/usr` read-only below an empty root, have namespaces of their own for users, processes, mounts,
//! network, IPC and host name, no network, and (bubblewrap apart, which has no such thing) limits of memory and processes.

mod engines;
mod oci;
mod process;

use std::path::Path;
use std::process::{Command, Stdio};

pub use engines::{Cache, ContainerEngine};
pub use process::{Timed, run_timed, run_to_end, run_with};

use crate::measure::machine::version_of;
use crate::measure::report::Absent;

/// How many rounds somebody is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Quick,
    /// Takes tenths of a second each time.
    Slow,
}

/// Where its programs have to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    Plain,
    /// In a mount namespace without the empty cgroup v2 tree of a hybrid host, which crun refuses.
    WithoutUnified,
}

#[derive(Debug, Clone)]
pub struct Peer {
    pub name: &'static str,
    pub version: String,
    pub pace: Pace,
    pub ground: Ground,
    tool: Tool,
}

#[derive(Debug, Clone)]
enum Tool {
    Bubblewrap,
    Oci(oci::Runtime),
    Engine(engines::ContainerEngine),
}

/// How a peer keeps one alive.
pub struct Live<'a> {
    peer: &'a Peer,
    id: String,
}

/// Those that work here, and why the others do not.
pub fn find(directory: &Path) -> (Vec<Peer>, Vec<Absent>) {
    let (mut here, mut absent) = (Vec::new(), Vec::new());
    let skeleton = directory.join("skeleton");
    let candidates: [(&'static str, Pace); 6] = [
        ("bubblewrap", Pace::Quick),
        ("crun", Pace::Quick),
        ("runc", Pace::Quick),
        ("runsc", Pace::Slow),
        ("podman", Pace::Slow),
        ("docker", Pace::Slow),
    ];
    for (name, pace) in candidates {
        let program = if name == "bubblewrap" { "bwrap" } else { name };
        let found = match version_of(program) {
            None => Err("not installed".to_owned()),
            Some(version) => make_skeleton(&skeleton)
                .map_err(|error| error.to_string())
                .and_then(|()| tool(name, directory, &skeleton))
                .and_then(|tool| tried(Peer { name, version, pace, ground: Ground::Plain, tool })),
        };
        match found {
            Ok(peer) => here.push(peer),
            Err(why) => absent.push(Absent { who: name.to_owned(), why }),
        }
    }
    (here, absent)
}

/// A root with nothing in it but the names by which `/usr` is reached.
pub fn make_skeleton(root: &Path) -> std::io::Result<()> {
    for name in ["usr", "proc", "dev", "tmp", "home", "etc", "sys"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        if let (Ok(target), false) = (std::fs::read_link(Path::new("/").join(name)), root.join(name).is_symlink()) {
            std::os::unix::fs::symlink(target, root.join(name))?;
        }
    }
    Ok(())
}

fn tool(name: &'static str, directory: &Path, skeleton: &Path) -> Result<Tool, String> {
    match name {
        "bubblewrap" => Ok(Tool::Bubblewrap),
        "crun" | "runc" | "runsc" => oci::Runtime::prepare(name, directory, skeleton).map(Tool::Oci),
        _ => engines::ContainerEngine::prepare(name, directory, skeleton).map(Tool::Engine),
    }
}

/// For programs that nobody tries first: nobody needs the empty cgroup v2 tree of a hybrid host, and some refuse it.
pub fn cautious_ground() -> Ground {
    if process::has_unified() { Ground::WithoutUnified } else { Ground::Plain }
}

/// One run that does not count; on a host with both cgroup trees a second one without the empty v2 tree.
fn tried(peer: Peer) -> Result<Peer, String> {
    let attempt = |peer: &Peer| run_to_end(&peer.command(&["/bin/true"]), peer.ground);
    let (peer, outcome) = match attempt(&peer) {
        Err(_) if process::has_unified() => {
            let peer = Peer { ground: Ground::WithoutUnified, ..peer };
            let outcome = attempt(&peer);
            (peer, outcome)
        }
        outcome => (peer, outcome),
    };
    if outcome.is_err() {
        peer.leave();
    }
    outcome.map(|()| peer)
}

impl Peer {
    /// The command line that runs these words in a fresh sandbox and removes it.
    pub fn command(&self, words: &[&str]) -> Vec<String> {
        let own = match &self.tool {
            Tool::Bubblewrap => bubblewrap(),
            Tool::Oci(runtime) => return runtime.run(words),
            Tool::Engine(engine) => engine.run(),
        };
        own.into_iter().chain(words.iter().map(|&word| word.to_owned())).collect()
    }

    /// One that stays, where the program has that.
    pub fn keep_one(&self) -> Result<Option<Live<'_>>, String> {
        let id = format!("cove-bench-live-{}", std::process::id());
        let start = match &self.tool {
            Tool::Bubblewrap => return Ok(None),
            Tool::Oci(runtime) => runtime.start(&id, &["/bin/sleep", "3600"]),
            Tool::Engine(engine) => engine.start(&id, &["/bin/sleep", "3600"]),
        };
        run_to_end(&start, self.ground)?;
        Ok(Some(Live { peer: self, id }))
    }

    /// Where it has images and containers of them.
    pub fn container_engine(&self) -> Option<&ContainerEngine> {
        match &self.tool {
            Tool::Engine(engine) => Some(engine),
            Tool::Bubblewrap | Tool::Oci(_) => None,
        }
    }

    /// At the very end: what it was given for the measurement.
    pub fn leave(&self) {
        self.clear();
        if let Tool::Engine(engine) = &self.tool {
            engine.leave();
        }
    }

    /// Whatever it may have left when we were interrupted.
    pub fn clear(&self) {
        match &self.tool {
            Tool::Bubblewrap => {}
            Tool::Oci(runtime) => runtime.clear(self.ground),
            Tool::Engine(engine) => engine.clear(self.ground),
        }
    }
}

impl Live<'_> {
    pub fn exec(&self, words: &[&str]) -> Vec<String> {
        self.word("exec", words)
    }

    pub fn pause(&self) -> Vec<String> {
        self.word("pause", &[])
    }

    pub fn resume(&self) -> Vec<String> {
        match self.peer.tool {
            Tool::Engine(_) => self.word("unpause", &[]),
            _ => self.word("resume", &[]),
        }
    }

    fn word(&self, verb: &str, words: &[&str]) -> Vec<String> {
        let mut line = match &self.peer.tool {
            Tool::Bubblewrap => Vec::new(),
            Tool::Oci(runtime) => runtime.line(),
            Tool::Engine(engine) => engine.line(),
        };
        line.extend([verb, self.id.as_str()].into_iter().chain(words.iter().copied()).map(str::to_owned));
        line
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.peer.clear();
    }
}

fn bubblewrap() -> Vec<String> {
    let fixed = "bwrap --unshare-all --die-with-parent --new-session --ro-bind /usr /usr --proc /proc --dev /dev --tmpfs /tmp \
                 --tmpfs /home --tmpfs /etc";
    let mut line: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    for name in ["bin", "sbin", "lib", "lib64"] {
        if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
            line.extend(["--symlink".into(), target.display().to_string(), format!("/{name}")]);
        }
    }
    line.push("--".into());
    line
}

/// What a program said, or the last line of its complaint.
pub fn said(line: &[String], input: Stdio) -> Result<String, String> {
    let (program, rest) = line.split_first().ok_or("no program")?;
    let done = Command::new(program).args(rest).stdin(input).output().map_err(|error| format!("{program}: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(process::last_line(&done.stderr).unwrap_or_else(|| format!("{program}: {}", done.status)))
}
