//! runc, crun and runsc: programs that take a bundle.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{Ground, run_to_end};

#[derive(Debug, Clone)]
pub struct Runtime {
    program: &'static str,
    /// Where it keeps its state: ours, so that nobody else's is touched.
    state: PathBuf,
    bundles: PathBuf,
    skeleton: PathBuf,
    rights: Rights,
}

/// Without root there is one id and no control group: they have no limits then, and ours have none either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    Root,
    User { uid: u32, gid: u32 },
}

impl Rights {
    fn look() -> Rights {
        if cove_engine::privilege::is_host_root() {
            return Rights::Root;
        }
        Rights::User { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() }
    }
}

/// Bundles are told apart by what they run.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Runtime {
    pub fn prepare(program: &'static str, directory: &Path, skeleton: &Path) -> Result<Runtime, String> {
        let (state, bundles) =
            (directory.join(format!("{program}-state")), directory.join(format!("{program}-bundles")));
        for path in [&state, &bundles] {
            fs::create_dir_all(path).map_err(|error| error.to_string())?;
        }
        Ok(Runtime { program, state, bundles, skeleton: skeleton.to_owned(), rights: Rights::look() })
    }

    pub fn line(&self) -> Vec<String> {
        let mut line = vec![self.program.to_owned(), "--root".into(), self.state.display().to_string()];
        if self.program == "runsc" {
            line.extend(["--platform=ptrace", "--network=none"].map(str::to_owned));
        }
        if self.rights != Rights::Root {
            let own: &[&str] = match self.program {
                "crun" => &["--cgroup-manager=disabled"],
                "runsc" => &["--rootless", "--ignore-cgroups"],
                _ => &["--rootless=true"],
            };
            line.extend(own.iter().map(|&word| word.to_owned()));
        }
        line
    }

    pub fn run(&self, words: &[&str]) -> Vec<String> {
        let id = format!("cove-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.with_bundle(words, &["run"], &id)
    }

    pub fn start(&self, id: &str, words: &[&str]) -> Vec<String> {
        self.with_bundle(words, &["run", "--detach"], id)
    }

    fn with_bundle(&self, words: &[&str], verb: &[&str], id: &str) -> Vec<String> {
        let mut line = self.line();
        line.extend(verb.iter().map(|&word| word.to_owned()));
        line.extend(["--bundle".to_owned(), self.bundle(words).display().to_string(), id.to_owned()]);
        line
    }

    /// Written once for each command; a failure shows when the runtime looks for it.
    fn bundle(&self, words: &[&str]) -> PathBuf {
        let name: String = words.join(" ").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let bundle = self.bundles.join(name);
        let file = bundle.join("config.json");
        if !file.exists() {
            let config = self.config(words).to_string();
            drop(fs::create_dir_all(&bundle).and_then(|()| fs::write(&file, config)));
        }
        bundle
    }

    fn config(&self, words: &[&str]) -> Value {
        let mapped = |first: u32, size: u32| json!([{ "containerID": 0, "hostID": first, "size": size }]);
        let (users, groups, resources) = match self.rights {
            Rights::Root => {
                let limits = json!({ "memory": { "limit": 1 << 30 }, "pids": { "limit": 1024 } });
                (mapped(100_000, 65_536), mapped(100_000, 65_536), limits)
            }
            Rights::User { uid, gid } => (mapped(uid, 1), mapped(gid, 1), json!({})),
        };
        let kinds = ["pid", "network", "ipc", "uts", "mount", "user"];
        let namespaces: Vec<_> = kinds.into_iter().map(|kind| json!({ "type": kind })).collect();
        let tmpfs = |target: &str| json!({ "destination": target, "type": "tmpfs", "source": "tmpfs" });
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": words, "cwd": "/",
                "env": ["PATH=/usr/bin:/bin", "HOME=/tmp"], "noNewPrivileges": true,
            },
            "root": { "path": self.skeleton.display().to_string(), "readonly": true },
            "hostname": "bench",
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"] },
                tmpfs("/tmp"), tmpfs("/home"), tmpfs("/etc"),
                { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
            ],
            "linux": {
                "namespaces": namespaces, "uidMappings": users, "gidMappings": groups, "resources": resources,
            },
        })
    }

    /// Ends whatever is on record.
    pub fn clear(&self, ground: Ground) {
        let entries = fs::read_dir(&self.state).into_iter().flatten().flatten();
        for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
            let mut line = self.line();
            line.extend(["delete".to_owned(), "--force".into(), id_of(&name).to_owned()]);
            // What is no record of a container is refused, and nothing is lost by it.
            drop(run_to_end(&line, ground));
        }
    }
}

/// Records bear the id as their name; runsc's are files, and name the sandbox after it.
fn id_of(record: &str) -> &str {
    record.split_once("_sandbox:").map_or(record, |(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_of_a_record_is_found_by_its_name() {
        assert_eq!(id_of("cove-bench-1-2"), "cove-bench-1-2");
        assert_eq!(id_of("cove-bench-1-2_sandbox:cove-bench-1-2.state"), "cove-bench-1-2");
    }
}
