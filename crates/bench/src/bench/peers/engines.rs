//! podman and docker.
//!
//! podman gets a storage of its own and the skeleton as its root. docker needs a daemon that runs already (`DOCKER_HOST` names
//! one; `make bench` starts one of its own) and gets an image of the skeleton, which is removed again. Both have images of
//! their own, too: the group `images` measures them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{Ground, process, run_to_end, said};

/// Bears every container of ours, and every image that one is made into.
const LABEL: &str = "cove-bench";

#[derive(Debug, Clone)]
pub struct ContainerEngine {
    line: Vec<String>,
    /// What `run` needs on every host.
    own: Vec<String>,
    /// What `run` needs to name the root.
    root: Vec<String>,
    /// Where it keeps images and containers, as far as it told.
    storage: Option<PathBuf>,
    keeper: Keeper,
    /// Whether a process of it stays that keeps an ordinary user's namespace, until it is asked to end.
    rests: bool,
}

/// Who has its images when we are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// Its storage is below our own directory and goes with it.
    Us,
    /// A daemon that lives on.
    Daemon,
}

/// Whether a build may use what an earlier one left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    Used,
    Ignored,
}

impl Cache {
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Cache::Used => &[],
            Cache::Ignored => &["--no-cache"],
        }
    }
}

impl ContainerEngine {
    pub fn prepare(name: &str, directory: &Path, skeleton: &Path) -> Result<ContainerEngine, String> {
        match name {
            "podman" => podman(directory, skeleton).map_err(|error| error.to_string()),
            _ => docker(skeleton),
        }
    }

    /// The name of an image of ours, by which it is found again at the end.
    pub fn image_name(what: &str) -> String {
        format!("{LABEL}-{}-{what}", std::process::id())
    }

    pub fn line(&self) -> Vec<String> {
        self.line.clone()
    }

    pub fn storage(&self) -> Option<&Path> {
        self.storage.as_deref()
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
        let mut line = self.bordered(verb);
        line.extend(["--volume", "/usr:/usr:ro"].map(str::to_owned));
        line.extend(self.root.clone());
        line
    }

    fn bordered(&self, verb: &[&str]) -> Vec<String> {
        let borders = ["--network", "none", "--memory", "1g", "--pids-limit", "1024", "--label", LABEL];
        let mut line = self.verb(verb);
        line.extend(borders.map(str::to_owned));
        line.extend(self.own.clone());
        line
    }

    fn verb(&self, words: &[&str]) -> Vec<String> {
        self.line.iter().cloned().chain(words.iter().map(|&word| word.to_owned())).collect()
    }

    /// A container with the files of an image, not this machine's.
    pub fn run_image(&self, image: &str, words: &[&str]) -> Vec<String> {
        self.of_image(&["run", "--rm"], image, words)
    }

    /// One that stays. Its first process heeds no other signal, and engines wait for that.
    pub fn start_image(&self, name: Option<&str>, image: &str) -> Vec<String> {
        let mut verb = vec!["run", "--detach", "--stop-signal", "SIGKILL"];
        verb.extend(name.into_iter().flat_map(|name| ["--name", name]));
        self.of_image(&verb, image, &["/bin/sleep", "3600"])
    }

    fn of_image(&self, verb: &[&str], image: &str, words: &[&str]) -> Vec<String> {
        let mut line = self.bordered(verb);
        line.extend([image].iter().chain(words).map(|&word| word.to_owned()));
        line
    }

    pub fn exec(&self, container: &str, words: &[&str]) -> Vec<String> {
        let mut line = self.verb(&["exec", container]);
        line.extend(words.iter().map(|&word| word.to_owned()));
        line
    }

    /// The tar of a root becomes an image.
    pub fn import(&self, archive: &Path, image: &str) -> Vec<String> {
        self.verb(&["import", &archive.display().to_string(), image])
    }

    /// From a registry on this machine. docker takes it for one without TLS by itself.
    pub fn pull(&self, image: &str) -> Vec<String> {
        match self.keeper {
            Keeper::Us => self.verb(&["pull", "--quiet", "--tls-verify=false", image]),
            Keeper::Daemon => self.verb(&["pull", "--quiet", image]),
        }
    }

    pub fn build(&self, image: &str, context: &Path, cache: Cache) -> Vec<String> {
        let mut line = self.verb(&["build", "--quiet", "--network", "none", "--tag", image]);
        line.extend(cache.flags().iter().map(|&flag| flag.to_owned()));
        line.push(context.display().to_string());
        line
    }

    /// What a container has written becomes an image. It is paused meanwhile, as ours are.
    pub fn commit(&self, container: &str, image: &str) -> Vec<String> {
        self.verb(&["commit", "--pause=true", container, image])
    }

    pub fn remove(&self, container: &str) -> Vec<String> {
        self.verb(&["rm", "--force", container])
    }

    pub fn remove_image(&self, image: &str) -> Vec<String> {
        self.verb(&["rmi", "--force", image])
    }

    /// Ends every container of ours.
    pub fn clear(&self, ground: Ground) {
        let list = self.verb(&["ps", "--all", "--quiet", "--filter", &format!("label={LABEL}")]);
        let ids = said(&list, Stdio::null()).unwrap_or_default();
        if !ids.trim().is_empty() {
            let words: Vec<&str> = ["rm", "--force"].into_iter().chain(ids.split_whitespace()).collect();
            // A container that has ended by itself is what was wanted.
            drop(run_to_end(&self.verb(&words), ground));
        }
    }

    /// At the very end.
    pub fn leave(&self) {
        if self.rests {
            drop(run_to_end(&self.verb(&["system", "migrate"]), Ground::Plain));
        }
        if self.keeper == Keeper::Daemon {
            for image in self.images() {
                // One that went with another is what was wanted.
                drop(run_to_end(&self.remove_image(&image), Ground::Plain));
            }
        }
    }

    /// Those that were made or pulled for this measurement, by name or by label.
    fn images(&self) -> Vec<String> {
        let ours = ContainerEngine::image_name("");
        let ours = ours.trim_end_matches('-');
        let named = self.verb(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
        let labelled = self.verb(&["images", "--all", "--quiet", "--filter", &format!("label={LABEL}")]);
        let [named, labelled] = [named, labelled].map(|list| said(&list, Stdio::null()).unwrap_or_default());
        let named = named.lines().filter(|name| is_of(name, ours));
        named.chain(labelled.split_whitespace()).map(str::to_owned).collect()
    }
}

/// Whether a name has this word as a part of its own: `word`, `word-x`, `host:1/word/x`, and not `word1`.
fn is_of(name: &str, word: &str) -> bool {
    name.split('/').any(|part| {
        let rest = part.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':']))
    })
}

/// An ordinary user's has more places of its own, and makes them below the home of whoever calls it, unless its flags name others.
fn podman(directory: &Path, skeleton: &Path) -> std::io::Result<ContainerEngine> {
    let place = |name: &str| directory.join(name).display().to_string();
    let rests = !cove_engine::privilege::is_host_root();
    let mut line = Vec::new();
    if rests {
        line.push("env".to_owned());
        for name in ["HOME", "XDG_RUNTIME_DIR"] {
            let folder = place(&format!("podman-{name}"));
            std::fs::create_dir_all(&folder)?;
            line.push(format!("{name}={folder}"));
        }
    }
    let storage = directory.join("podman-storage");
    let own =
        ["podman", "--root", &storage.display().to_string(), "--runroot", &place("podman-run")].map(str::to_owned);
    let common = ["--cgroup-manager", "cgroupfs", "--events-backend", "none"].map(str::to_owned);
    line.extend(own.into_iter().chain(common));
    Ok(ContainerEngine {
        line,
        // Its own limits are more than a host may allow it.
        own: ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"].map(str::to_owned).to_vec(),
        root: vec!["--rootfs".to_owned(), skeleton.display().to_string()],
        storage: Some(storage),
        keeper: Keeper::Us,
        rests,
    })
}

fn docker(skeleton: &Path) -> Result<ContainerEngine, String> {
    let line = vec!["docker".to_owned()];
    let ask = |words: &[&str]| {
        let line: Vec<String> = line.iter().cloned().chain(words.iter().map(|&word| word.to_owned())).collect();
        said(&line, Stdio::null())
    };
    let told = ask(&["info", "--format", "{{.DockerRootDir}}"])
        .map_err(|_| "no daemon runs; `make bench` starts one for the measurement".to_owned())?;
    let storage = Some(PathBuf::from(told.trim())).filter(|path| path.is_dir());
    let image = format!("{LABEL}-{}", std::process::id());
    let archive =
        std::process::Command::new("tar").arg("-C").arg(skeleton).args(["-c", "."]).stdin(Stdio::null()).output();
    let archive = archive.map_err(|error| format!("tar: {error}"))?.stdout;
    let import: Vec<String> = line.iter().cloned().chain(["import", "-", &image].map(str::to_owned)).collect();
    process::feed(&import, &archive)?;
    Ok(ContainerEngine { line, own: Vec::new(), root: vec![image], storage, keeper: Keeper::Daemon, rests: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_this_measurement_are_removed() {
        for name in ["cove-bench-12:latest", "cove-bench-12-root:latest", "127.0.0.1:4000/cove-bench-12/app:r1"] {
            assert!(is_of(name, "cove-bench-12"), "{name}");
        }
        for name in ["cove-bench-123:latest", "cove-bench-123-root:latest", "debian:12", "host/x-cove-bench-12:1"] {
            assert!(!is_of(name, "cove-bench-12"), "{name}");
        }
        assert!(is_of(&ContainerEngine::image_name("root"), &format!("cove-bench-{}", std::process::id())));
    }

    #[test]
    fn an_image_of_its_own_does_not_see_this_machines_files() {
        let place = tempfile::tempdir().unwrap();
        let podman = podman(place.path(), &place.path().join("skeleton")).unwrap();
        let line = podman.run_image("image", &["/bin/true"]).join(" ");
        assert!(line.ends_with("image /bin/true") && line.contains("--label cove-bench"), "{line}");
        assert!(!line.contains("/usr:/usr") && !line.contains("--rootfs"), "{line}");
        let line = podman.run().join(" ");
        assert!(line.contains("--volume /usr:/usr:ro") && line.ends_with("skeleton"), "{line}");
        let line = podman.build("image", place.path(), Cache::Ignored).join(" ");
        assert!(line.contains("--no-cache") && line.contains("--network none"), "{line}");
    }
}
