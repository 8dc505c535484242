//! podman and docker.
//!
//! podman gets a storage of its own and the skeleton as its root. docker needs a daemon that runs already (`DOCKER_HOST` names
//! one; `make bench` starts one of its own) and gets an image of the skeleton, which is removed again.

use std::path::Path;
use std::process::Stdio;

use super::{Ground, process, run_to_end, said};

#[derive(Debug, Clone)]
pub struct ContainerEngine {
    line: Vec<String>,
    /// What `run` needs to name the root.
    root: Vec<String>,
    image: Option<String>,
    /// Whether a process of it stays that keeps an ordinary user's namespace, until it is told to go.
    rests: bool,
}

impl ContainerEngine {
    pub fn prepare(name: &str, directory: &Path, skeleton: &Path) -> Result<ContainerEngine, String> {
        match name {
            "podman" => podman(directory, skeleton).map_err(|error| error.to_string()),
            _ => docker(skeleton),
        }
    }

    pub fn line(&self) -> Vec<String> {
        self.line.clone()
    }

    pub fn run(&self) -> Vec<String> {
        self.with(&["run", "--rm"])
    }

    pub fn start(&self, id: &str, words: &[&str]) -> Vec<String> {
        let mut line = self.with(&["run", "--detach", "--name", id]);
        line.extend(words.iter().map(|&word| word.to_owned()));
        line
    }

    fn with(&self, verb: &[&str]) -> Vec<String> {
        let mut line = self.line();
        let borders = [
            "--network",
            "none",
            "--memory",
            "1g",
            "--pids-limit",
            "1024",
            "--volume",
            "/usr:/usr:ro",
            "--label",
            "cove-bench",
        ];
        line.extend(verb.iter().chain(&borders).map(|&word| word.to_owned()));
        line.extend(self.root.clone());
        line
    }

    pub fn clear(&self, ground: Ground) {
        let mut list = self.line();
        list.extend(["ps", "--all", "--quiet", "--filter", "label=cove-bench"].map(str::to_owned));
        let ids = said(&list, Stdio::null()).unwrap_or_default();
        for id in ids.split_whitespace() {
            let mut line = self.line();
            line.extend(["rm", "--force", id].map(str::to_owned));
            // A container that has ended by itself is what was wanted.
            drop(run_to_end(&line, ground));
        }
    }

    /// At the very end.
    pub fn leave(&self) {
        if self.rests {
            let mut line = self.line();
            line.extend(["system", "migrate"].map(str::to_owned));
            drop(run_to_end(&line, Ground::Plain));
        }
        if let Some(image) = &self.image {
            let mut line = self.line();
            line.extend(["rmi", "--force", image].map(str::to_owned));
            drop(run_to_end(&line, Ground::Plain));
        }
    }
}

/// An ordinary user's has more places of its own, and makes them below the home of whoever calls it, unless told otherwise.
fn podman(directory: &Path, skeleton: &Path) -> std::io::Result<ContainerEngine> {
    let place = |name: &str| directory.join(name).display().to_string();
    let rests = !crate::place::is_root();
    let mut line = Vec::new();
    if rests {
        line.push("env".to_owned());
        for name in ["HOME", "XDG_RUNTIME_DIR"] {
            let folder = place(&format!("podman-{name}"));
            std::fs::create_dir_all(&folder)?;
            line.push(format!("{name}={folder}"));
        }
    }
    let own = ["podman", "--root", &place("podman-storage"), "--runroot", &place("podman-run")];
    let common = ["--cgroup-manager", "cgroupfs", "--events-backend", "none"];
    line.extend(own.into_iter().chain(common).map(str::to_owned));
    // Its own limits are more than a host may allow it.
    let root =
        ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--rootfs"].map(str::to_owned).into_iter();
    let root = root.chain([skeleton.display().to_string()]).collect();
    Ok(ContainerEngine { line, root, image: None, rests })
}

fn docker(skeleton: &Path) -> Result<ContainerEngine, String> {
    let line = vec!["docker".to_owned()];
    let ask = |words: &[&str]| {
        let line: Vec<String> = line.iter().cloned().chain(words.iter().map(|&word| word.to_owned())).collect();
        said(&line, Stdio::null())
    };
    ask(&["info", "--format", "{{.ServerVersion}}"])
        .map_err(|_| "no daemon runs; `make bench` starts one for the measurement".to_owned())?;
    let image = format!("cove-bench-{}", std::process::id());
    let archive =
        std::process::Command::new("tar").arg("-C").arg(skeleton).args(["-c", "."]).stdin(Stdio::null()).output();
    let archive = archive.map_err(|error| format!("tar: {error}"))?.stdout;
    let import: Vec<String> = line.iter().cloned().chain(["import", "-", &image].map(str::to_owned)).collect();
    process::feed(&import, &archive)?;
    Ok(ContainerEngine { line, root: vec![image.clone()], image: Some(image), rests: false })
}
