//! A Docker daemon of the test's own, from the distribution's packages: its data, its socket and its control groups go
//! with it.
//!
//! The packages are unpacked and never installed, which would start a daemon for the whole machine. Images come from no
//! registry: a test imports a small tree.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::http::{Answer, read_answer};
use crate::leak::mounts_of;
use crate::need::{self, Need, skip};
use crate::program::{pid_of, wait_within};
use crate::wait::{LIMIT, until};

/// What a daemon needs; `runc` is the machine's own.
const PACKAGES: [&str; 2] = ["docker.io", "containerd"];

/// Programs of the image, by the names that tests use.
const APPLETS: [&str; 32] = [
    "awk", "cat", "chmod", "cp", "cut", "dd", "echo", "env", "false", "grep", "head", "hostname", "id", "kill", "ls",
    "mkdir", "mv", "nc", "printf", "ps", "pwd", "rm", "sed", "seq", "sh", "sleep", "sort", "tail", "touch", "true",
    "wc", "wget",
];

pub struct Dockerd {
    daemon: Option<Child>,
    programs: PathBuf,
    /// In the root of every hierarchy.
    group: String,
    folder: tempfile::TempDir,
}

impl Dockerd {
    /// `None` only where it cannot be had and tests may skip; the skip is counted.
    ///
    /// # Panics
    /// If it cannot be had and no skip is allowed, or if it does not come up.
    pub fn start() -> Option<Dockerd> {
        if !need::root() {
            return None;
        }
        let programs = match programs() {
            Ok(programs) => programs,
            Err(why) => {
                skip(Need::Docker, why);
                return None;
            }
        };
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let group = format!("cove-docker-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        // A short name: the kernel limits the paths of sockets.
        let folder = tempfile::Builder::new().prefix("cove-d-").tempdir().expect("make a directory");
        let mut dockerd = Dockerd { daemon: None, programs, group, folder };
        dockerd.launch();
        Some(dockerd)
    }

    /// On what is there; returns when it answers.
    pub fn launch(&mut self) {
        let place = self.folder.path();
        fs::write(place.join("none.json"), "{}").expect("write a configuration");
        let log = File::options().create(true).append(true).open(place.join("log")).expect("open a log");
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.programs.display();
        let mut command = Command::new(self.programs.join("usr/sbin/dockerd"));
        command.env_clear();
        command.env("PATH", format!("{own}/usr/bin:{own}/usr/sbin:{path}:/usr/sbin:/sbin")).env("HOME", place);
        for (flag, name) in
            [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid"), ("--config-file", "none.json")]
        {
            command.arg(flag).arg(place.join(name));
        }
        command.args([
            "--bridge",
            "none",
            "--iptables=false",
            "--cgroup-parent",
            &format!("/{}", self.group),
            "--host",
        ]);
        command.arg(self.host());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("share the log")).stderr(log);
        self.daemon = Some(command.spawn().expect("start dockerd"));
        until("dockerd", LIMIT * 2, || {
            let ended = self.daemon.as_mut().and_then(|daemon| daemon.try_wait().expect("ask for its end"));
            assert!(ended.is_none(), "dockerd ended:\n{}", self.log());
            self.ask("GET", "/_ping", None).is_ok_and(|answer| answer.status == 200)
        });
    }

    /// An orderly end, which ends its containers too.
    pub fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            rustix::process::kill_process(pid_of(&daemon), Signal::TERM).expect("signal dockerd");
            let ended = wait_within(&mut daemon, LIMIT * 2);
            assert!(ended.is_some(), "dockerd did not end:\n{}", self.log());
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// As in `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The same daemon by network: a port of loopback that leads to its socket, for as long as the process runs.
    pub fn by_network(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("an address");
        let socket = self.socket();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(daemon) = UnixStream::connect(&socket) else { continue };
                thread::spawn(move || carry(stream, daemon));
            }
        });
        format!("tcp://{address}")
    }

    /// One request of Docker's own interface.
    pub fn ask(&self, method: &str, path: &str, body: Option<&[u8]>) -> io::Result<Answer> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(LIMIT * 4))?;
        let length = body.map_or(0, <[u8]>::len);
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: docker\r\nconnection: close\r\ncontent-type: application/x-tar\r\n\
             content-length: {length}\r\n\r\n"
        )?;
        stream.write_all(body.unwrap_or_default())?;
        read_answer(BufReader::new(stream))
    }

    /// # Panics
    /// If the daemon refuses.
    #[track_caller]
    pub fn done(&self, method: &str, path: &str) -> Answer {
        let answer = self.ask(method, path, None).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
        answer
    }

    /// A small image with a shell and the usual programs, by this name.
    pub fn import_small_image(&self, repository: &str, tag: &str) {
        let path = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
        let answer = self.ask("POST", &path, Some(&small_tree())).expect("import an image");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// All containers, also those that do not run.
    pub fn containers(&self) -> Vec<String> {
        let listed = self.done("GET", "/containers/json?all=1").json();
        let names = listed.as_array().into_iter().flatten().filter_map(|one| one["Names"][0].as_str());
        names.map(|name| name.trim_start_matches('/').to_owned()).collect()
    }

    /// The names and ids of all images.
    pub fn images(&self) -> Vec<String> {
        let listed = self.done("GET", "/images/json?all=1").json();
        let name = |one: &serde_json::Value| one["RepoTags"][0].as_str().or(one["Id"].as_str()).map(str::to_owned);
        listed.as_array().into_iter().flatten().filter_map(name).collect()
    }

    pub fn volumes(&self) -> Vec<String> {
        let listed = self.done("GET", "/volumes").json();
        let names = listed["Volumes"].as_array().into_iter().flatten().filter_map(|one| one["Name"].as_str());
        names.map(str::to_owned).collect()
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- dockerd's log ---\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ended = rustix::process::kill_process(pid_of(&daemon), Signal::TERM);
            let _ended = wait_within(&mut daemon, LIMIT);
        }
        // The containers' own mounts go with the daemon; what is left is its storage, mounted onto itself.
        for mount in mounts_of(self.folder.path()).iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(mount).stderr(Stdio::null()).status();
        }
        for hierarchy in crate::leak::hierarchies() {
            let _ = fs::remove_dir(hierarchy.join(&self.group));
        }
    }
}

/// Both ways, with the end of each passed on.
fn carry(near: TcpStream, far: UnixStream) {
    let (Ok(mut near_in), Ok(mut far_out)) = (near.try_clone(), far.try_clone()) else { return };
    let (mut near_out, mut far_in) = (near, far);
    let inwards = thread::spawn(move || {
        let _ = io::copy(&mut near_in, &mut far_out);
        let _ = far_out.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut far_in, &mut near_out);
    let _ = near_out.shutdown(Shutdown::Write);
    let _ = inwards.join();
}

/// Where the programs are: those that the tests of images have unpacked, or our own copy of the packages.
fn programs() -> Result<PathBuf, String> {
    let given = std::env::var_os("COVE_DAEMONS").map(PathBuf::from);
    let cache = std::env::var_os("COVE_CACHE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/cove"));
    let cache = cache.or_else(home).ok_or("there is no folder for packages: set COVE_CACHE")?;
    let has_daemon = |folder: &PathBuf| folder.join("usr/sbin/dockerd").exists();
    let (shared, own) = (cache.join("images/daemons"), cache.join("dockerd"));
    let is_whole = |folder: &PathBuf| folder.join("complete").exists() && has_daemon(folder);
    if let Some(found) = given.filter(has_daemon).or_else(|| [shared, own.clone()].into_iter().find(is_whole)) {
        return Ok(found);
    }
    fetch(&cache, &own).map_err(|why| format!("{}: {why}", PACKAGES.join(" and ")))?;
    Ok(own)
}

/// Unpacks the packages, as a whole or not at all: several tests may come at once.
fn fetch(cache: &Path, into: &Path) -> Result<(), String> {
    fs::create_dir_all(cache).map_err(|error| error.to_string())?;
    let draft = tempfile::Builder::new().prefix("dockerd-").tempdir_in(cache).map_err(|error| error.to_string())?;
    let (packages, tree) = (draft.path().join("packages"), draft.path().join("tree"));
    for folder in [&packages, &tree] {
        fs::create_dir(folder).map_err(|error| error.to_string())?;
    }
    run(Command::new("apt-get").args(["-qq", "download"]).args(PACKAGES).current_dir(&packages))?;
    for package in fs::read_dir(&packages).map_err(|error| error.to_string())?.flatten() {
        run(Command::new("dpkg").arg("-x").arg(package.path()).arg(&tree))?;
    }
    fs::write(tree.join("complete"), PACKAGES.join(" ")).map_err(|error| error.to_string())?;
    match fs::rename(&tree, into) {
        // Somebody else was quicker.
        Err(_) if into.join("complete").exists() => Ok(()),
        renamed => renamed.map_err(|error| error.to_string()),
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// A root with busybox, which the machine must have as one static program.
fn small_tree() -> Vec<u8> {
    let mut busybox = Vec::new();
    let found = ["/usr/bin/busybox", "/bin/busybox"].into_iter().find_map(|path| File::open(path).ok());
    let mut found = found.expect("busybox is not installed: scripts/setup test installs busybox-static");
    found.read_to_end(&mut busybox).expect("read busybox");
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode) in [("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("root", 0o700), ("home", 0o755)] {
        let mut header = header(tar::EntryType::Directory, mode, 0);
        tar.append_data(&mut header, format!("{path}/"), io::empty()).expect("pack a folder");
    }
    let files: [(&str, u32, &[u8]); 3] = [
        ("bin/busybox", 0o755, &busybox),
        ("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nada:x:1001:1001::/tmp:/bin/sh\n"),
        ("etc/group", 0o644, b"root:x:0:\nada:x:1001:\n"),
    ];
    for (path, mode, bytes) in files {
        let mut header = header(tar::EntryType::Regular, mode, bytes.len());
        tar.append_data(&mut header, path, bytes).expect("pack a file");
    }
    for applet in APPLETS {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, format!("bin/{applet}"), "busybox").expect("pack a link");
    }
    tar.into_inner().expect("finish the archive")
}

fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size as u64);
    header
}
