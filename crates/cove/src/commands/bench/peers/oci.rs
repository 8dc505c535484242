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
        Ok(Runtime { program, state, bundles, skeleton: skeleton.to_owned() })
    }

    pub fn line(&self) -> Vec<String> {
        let mut line = vec![self.program.to_owned(), "--root".into(), self.state.display().to_string()];
        if self.program == "runsc" {
            line.extend(["--platform=ptrace", "--network=none"].map(str::to_owned));
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
        let mapping = json!([{ "containerID": 0, "hostID": 100_000, "size": 65_536 }]);
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
                "namespaces": namespaces, "uidMappings": mapping, "gidMappings": mapping,
                "resources": { "memory": { "limit": 1 << 30 }, "pids": { "limit": 1024 } },
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
