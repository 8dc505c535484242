//! A server that lives as long as a measurement: its own directory, its own port, and nothing left of it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_terminal::complaint::{Complaint, doing};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};

use super::api::Api;
use super::own_directory::OwnDirectory;

/// A server that adopts thousands of sandboxes is not ready at once.
const READY_WITHIN: Duration = Duration::from_secs(60);
const GONE_WITHIN: Duration = Duration::from_secs(120);

/// Settings of another server, which this one must not have.
const OTHERS: [&str; 11] = [
    "COVE_URL",
    "COVE_DATA",
    "DATABASE_URL",
    "COVE_PUBLIC_URL",
    "SANDBOX_PROVIDER",
    "COVE_DOMAIN",
    "POSTGRES_URL",
    "SANDBOX_HOST",
    "SANDBOX_PORT",
    "SANDBOX_TIMEOUT",
    "E2B_TIMEOUT",
];

pub struct OwnServer {
    program: PathBuf,
    /// Gone when all is removed, or shall stay.
    directory: Option<OwnDirectory>,
    child: Option<Process>,
    address: String,
    settings: &'static [(&'static str, &'static str)],
    /// More words for `cove serve`.
    arguments: Vec<OsString>,
    pub api: Api,
}

/// Ends with its owner, whatever becomes of that one: a server that nobody knows is worse than a rest on disk.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and that is well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl OwnServer {
    pub async fn start(program: &Path) -> Result<OwnServer, Complaint> {
        OwnServer::start_with(program, None, &[]).await
    }

    /// With more words for `cove serve`.
    pub async fn start_by(program: &Path, arguments: Vec<OsString>) -> Result<OwnServer, Complaint> {
        let mut server = OwnServer::prepared(program, &[])?;
        server.arguments = arguments;
        server.launch().await?;
        Ok(server)
    }

    /// With the templates that were built in another server's data directory, and with settings by the names of their
    /// variables.
    pub async fn start_with(
        program: &Path,
        templates: Option<&Path>,
        settings: &'static [(&'static str, &'static str)],
    ) -> Result<OwnServer, Complaint> {
        let mut server = OwnServer::prepared(program, settings)?;
        if let Some(templates) = templates {
            let data = server.data();
            fs::create_dir(&data).map_err(doing(format!("make {}", data.display())))?;
            for name in ["templates", "layers"] {
                let link = data.join(name);
                std::os::unix::fs::symlink(templates.join(name), &link)
                    .map_err(doing(format!("make {}", link.display())))?;
            }
        }
        server.launch().await?;
        Ok(server)
    }

    /// One that was not started yet.
    fn prepared(program: &Path, settings: &'static [(&'static str, &'static str)]) -> Result<OwnServer, Complaint> {
        let directory = Some(OwnDirectory::new("cove-measure-")?);
        let key = format!(
            "e2b_{}",
            (0..40).map(|_| char::from_digit(rand::random_range(0..16), 16).unwrap_or('0')).collect::<String>()
        );
        let api = Api::new("http://127.0.0.1:0", &key)?;
        let address = "127.0.0.1:0".to_owned();
        let (program, arguments) = (program.to_owned(), Vec::new());
        Ok(OwnServer { program, directory, child: None, address, settings, arguments, api })
    }

    /// Starts the program and waits until it is ready.
    pub async fn launch(&mut self) -> Result<(), Complaint> {
        let log = self.log_path();
        let opened = File::options().create(true).append(true).open(&log);
        let log = opened.map_err(doing(format!("open {}", log.display())))?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--listen", &self.address, "--data"]).arg(self.data());
        command.env("COVE_API_KEY", &self.api.key).env("NO_COLOR", "1").env("COVE_LOG", "warn");
        command.args(&self.arguments);
        for name in OTHERS {
            command.env_remove(name);
        }
        command.envs(self.settings.iter().copied());
        // Ctrl-C is for us: the server is still needed to clean up.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let child = command.spawn().map_err(|error| Complaint::failed(format!("start cove serve: {error}")))?;
        let child = &mut self.child.insert(Process(child)).0;
        let stdout = child.stdout.take().expect("its output is a pipe");
        let first = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(stdout).lines();
            let first = lines.next().and_then(Result::ok).unwrap_or_default();
            // The rest is for people; somebody has to take it.
            std::thread::spawn(move || lines.for_each(drop));
            first
        });
        let first = first.await.map_err(|error| Complaint::failed(error.to_string()))?;
        let Some(url) = first.split_whitespace().find(|word| word.starts_with("http://")) else {
            return Err(self.did_not_start());
        };
        self.address = url.trim_start_matches("http://").to_owned();
        self.api.url = url.to_owned();
        self.until_ready().await
    }

    async fn until_ready(&mut self) -> Result<(), Complaint> {
        let began = Instant::now();
        while self.api.call_text("/healthz").await.is_err() {
            let ended = self.has_ended();
            if ended || began.elapsed() > READY_WITHIN {
                return Err(self.did_not_start());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn did_not_start(&self) -> Complaint {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(3).collect();
        let said: Vec<_> = last.into_iter().rev().collect();
        Complaint::failed(format!("a server for the measurement did not start: {}", said.join(" / ")))
            .hint("`cove doctor` tells what this machine lacks")
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.path().join("server.log")
    }

    fn path(&self) -> &Path {
        self.directory.as_ref().map(OwnDirectory::path).expect("it is there until the server is finished")
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|process| process.0.id())
    }

    /// As a power cut would. Sandboxes live on.
    pub fn kill(&mut self) {
        // Its drop waits for its end.
        drop(self.child.take());
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|process| !matches!(process.0.try_wait(), Ok(None)))
    }

    /// Removes every sandbox and waits until their files are gone too; returns how many were still there at the end.
    pub async fn empty(&self) -> Result<usize, Complaint> {
        remove_everything(&self.api).await?;
        let began = Instant::now();
        while left_in(&self.data()) > 0 && began.elapsed() < GONE_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // A create whose caller was interrupted may have ended after the list was read.
            remove_everything(&self.api).await?;
        }
        Ok(left_in(&self.data()))
    }

    /// Removes every sandbox, ends the server and removes its directory. Says what it could not remove.
    pub async fn finish(mut self) -> Result<(), Complaint> {
        // Only a server knows how to clean up after its sandboxes.
        if self.has_ended() {
            self.launch().await?;
        }
        let left = self.empty().await?;
        if let Some(Process(child)) = self.child.as_mut() {
            if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
                let ended = kill_process(pid, Signal::TERM).map_err(std::io::Error::from);
                ended.map_err(doing("end the server that was measured"))?;
            }
            child.wait().map_err(doing("wait for the server that was measured"))?;
        }
        let Some(directory) = self.directory.take() else { return Ok(()) };
        if left > 0 {
            let kept = directory.keep();
            return Err(Complaint::failed(format!("{left} sandboxes were not removed"))
                .hint(format!("their files and the server's log are in {}", kept.display())));
        }
        directory.remove()
    }
}

/// Without a finish: the server did not start, or does not come back. What it made goes all the same.
impl Drop for OwnServer {
    fn drop(&mut self) {
        self.kill();
        if self.directory.is_none() || !self.data().join("sandboxes").exists() {
            return;
        }
        let mut reset = Command::new(&self.program);
        reset.args(["reset", "--yes", "--data"]).arg(self.data()).env_remove("COVE_CONFIG");
        reset.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        // It says itself what it could not remove.
        let _ = reset.status();
    }
}

/// Pools first: they would fill up again.
async fn remove_everything(api: &Api) -> Result<(), Complaint> {
    let pools = api.call(Method::GET, "/api/pools", None).await?;
    for pool in pools.as_array().into_iter().flatten() {
        if let Some(template) = pool["template"].as_str() {
            api.call(Method::DELETE, &format!("/api/pools/{template}"), None).await?;
        }
    }
    remove(api, api.sandboxes("", None).await?).await
}

/// Deletes sandboxes, some at a time. One that is gone already is well.
pub async fn remove(api: &Api, ids: Vec<String>) -> Result<(), Complaint> {
    use futures::StreamExt;
    let began = Instant::now();
    let deleted = futures::stream::iter(ids).map(|id| async move {
        loop {
            match api.delete(&id).await {
                Err(super::api::Trouble::Busy { retry_after, .. }) if began.elapsed() < GONE_WITHIN => {
                    tokio::time::sleep(retry_after.unwrap_or(Duration::from_secs(1))).await;
                }
                Err(super::api::Trouble::Refused { status: 404, .. }) => return Ok(()),
                other => return other,
            }
        }
    });
    let results: Vec<_> = deleted.buffer_unordered(8).collect().await;
    results.into_iter().collect::<Result<(), _>>().map_err(Complaint::from)
}

/// Sandboxes that still have a directory.
fn left_in(data: &Path) -> usize {
    ["sandboxes", "trash"].into_iter().filter_map(|name| fs::read_dir(data.join(name)).ok()).flatten().count()
}
