//! A PostgreSQL of the test's own, from the distribution's packages, on a Unix socket in a folder that goes with it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Postgres {
    server: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Postgres {
    /// `None` where it is not installed.
    pub fn start() -> Option<Postgres> {
        let programs = newest()?;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        // It refuses to run as root.
        let user = is_root().then(|| id_of("postgres").or_else(|| id_of("nobody")).expect("an ordinary user"));
        if let Some((uid, gid)) = user {
            for path in [folder.path(), &data] {
                chown(path, Some(uid), Some(gid)).unwrap();
            }
        }
        let run = |program: &str| {
            let path = programs.join(program);
            match user {
                None => Command::new(path),
                Some((uid, gid)) => {
                    let mut command = Command::new("setpriv");
                    command
                        .args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()])
                        .arg(path);
                    command
                }
            }
        };
        let made = run("initdb")
            .args(["--username=cove", "--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(made.success(), "initdb failed");
        let server = run("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c"])
            .arg(format!("unix_socket_directories={}", folder.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let socket = folder.path().join(".s.PGSQL.5432");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !socket.exists() {
            assert!(Instant::now() < deadline, "PostgreSQL did not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        let host = folder.path().to_string_lossy().replace('/', "%2F");
        Some(Postgres { server, url: format!("postgres://cove@{host}/postgres"), _folder: folder })
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Immediate shutdown; its children go with it.
        let _ended = Command::new("kill").args(["-QUIT", &self.server.id().to_string()]).status();
        let _ended = self.server.wait();
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
