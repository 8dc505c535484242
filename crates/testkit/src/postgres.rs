//! A PostgreSQL of the test's own, from the distribution's packages, on a Unix socket in a folder that goes with it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::need::{Need, skip};

pub struct Postgres {
    server: Option<Child>,
    url: String,
    /// Its data, and its socket.
    place: PathBuf,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    durability: Durability,
    _folder: Option<tempfile::TempDir>,
}

/// What a commit of a test's database outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of its processes, however they end. Much faster.
    Processes,
    /// A power cut.
    Power,
}

impl Postgres {
    /// `None` only where it is not installed and tests may skip; the skip is counted.
    ///
    /// # Panics
    /// If it is not installed and no skip is allowed.
    pub fn start() -> Option<Postgres> {
        let folder = tempfile::tempdir().unwrap();
        let mut postgres = Postgres::start_in(folder.path(), Durability::Processes)?;
        postgres._folder = Some(folder);
        Some(postgres)
    }

    /// As [`Postgres::start`], in a folder that the test removes.
    pub fn start_in(place: &Path, durability: Durability) -> Option<Postgres> {
        let Some(programs) = newest() else {
            skip(Need::PostgreSql, "there is no server program in /usr/lib/postgresql");
            return None;
        };
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        let data = place.join("data");
        fs::create_dir(&data).unwrap();
        // It refuses to run as root.
        let user = is_root().then(|| id_of("postgres").or_else(|| id_of("nobody")).expect("an ordinary user"));
        if let Some((uid, gid)) = user {
            for path in [place, &data] {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        let host = place.to_string_lossy().replace('/', "%2F");
        let url = format!("postgres://cove@{host}/postgres");
        let place = place.to_owned();
        let mut postgres = Postgres { server: None, url, place, programs, user, durability, _folder: None };
        let mut make = postgres.run("initdb");
        make.args(["--username=cove", "--auth=trust", "--encoding=UTF8", "--no-locale", "-D"]).arg(&data);
        if durability == Durability::Processes {
            make.arg("--no-sync");
        }
        assert!(make.stdout(Stdio::null()).status().unwrap().success(), "initdb failed");
        postgres.launch();
        Some(postgres)
    }

    fn run(&self, program: &str) -> Command {
        let path = self.programs.join(program);
        match self.user {
            None => Command::new(path),
            Some((uid, gid)) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()]).arg(path);
                command
            }
        }
    }

    /// Starts the server on what is there; returns when it takes connections.
    pub fn launch(&mut self) {
        // Of a life that ended without a word: the number in it may be anybody's by now.
        let _ = fs::remove_file(self.place.join("data/postmaster.pid"));
        let socket = self.place.join(".s.PGSQL.5432");
        let _ = fs::remove_file(&socket);
        let _ = fs::remove_file(self.place.join(".s.PGSQL.5432.lock"));
        let fsync = if self.durability == Durability::Power { "fsync=on" } else { "fsync=off" };
        let server = self
            .run("postgres")
            .arg("-D")
            .arg(self.place.join("data"))
            .args(["-c", "listen_addresses=", "-c", fsync, "-c"])
            .arg(format!("unix_socket_directories={}", self.place.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.server = Some(server);
        let deadline = Instant::now() + Duration::from_secs(30);
        let answers = |postgres: &Postgres| {
            let mut ask = postgres.run("pg_isready");
            ask.arg("-q").arg("-h").arg(&postgres.place).status().is_ok_and(|status| status.success())
        };
        while !(socket.exists() && answers(self)) {
            assert!(Instant::now() < deadline, "PostgreSQL did not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server and all its children.
    fn processes(&self) -> Vec<u32> {
        let Some(server) = &self.server else { return Vec::new() };
        let parent = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<u32>().ok()
        };
        let children = crate::leak::numbers_in("/proc").filter(|&pid| parent(pid) == Some(server.id()));
        std::iter::once(server.id()).chain(children).collect()
    }

    fn signal(&self, signal: &str) {
        let all: Vec<String> = self.processes().iter().map(u32::to_string).collect();
        let _some_may_have_ended = Command::new("kill").arg(signal).args(all).stderr(Stdio::null()).status();
    }

    /// All of it at once, without a word.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        if let Some(mut server) = self.server.take() {
            let _ended = server.wait();
        }
    }

    /// Nothing of it moves, and its connections stay open.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// An orderly end, which cuts every connection.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ended = Command::new("kill").args(["-INT", &server.id().to_string()]).status();
            let _ended = server.wait();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.thaw();
        // Immediate shutdown; its children go with it.
        if let Some(mut server) = self.server.take() {
            let _ended = Command::new("kill").args(["-QUIT", &server.id().to_string()]).status();
            let _ended = server.wait();
        }
    }
}

fn newest() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    programs.filter(|path| path.join("postgres").exists()).max()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

fn id_of(user: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let fields: Vec<&str> = passwd.lines().find(|line| line.starts_with(&format!("{user}:")))?.split(':').collect();
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}
