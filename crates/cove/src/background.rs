//! A server in the background of this machine: started by systemd where its unit is installed, and by itself elsewhere.
//!
//! Which process serves a data directory is in the directory's `lock`, which the kernel holds for the server and lets go
//! of when it ends: a number in a file of a server that died is never taken for another process.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::complaint::{Complaint, doing};
use crate::place::{Place, is_root};

/// What the server says, in its data directory; a server of systemd has the journal.
const LOG: &str = "server.log";
/// The name of the unit.
pub const UNIT: &str = "cove.service";
/// Where `cove setup` puts it.
pub const UNIT_FILE: &str = "/etc/systemd/system/cove.service";
/// A server that adopts thousands of sandboxes is not ready at once.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// It waits for requests under way.
const ENDED_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// The process that serves a data directory; `None` where nobody does.
///
/// The lock is looked up, not tried: who tries it holds it for a moment, and a server that starts just then would find it
/// taken.
pub fn server_of(data: &Path) -> Result<Option<u32>, Complaint> {
    let path = data.join("lock");
    let (inode, text) = match fs::metadata(&path).and_then(|found| Ok((found.ino(), fs::read_to_string(&path)?))) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(doing(format!("read {}", path.display()))(error)),
    };
    let Ok(pid) = text.trim().parse::<u32>() else { return Ok(None) };
    let locks = fs::read_to_string("/proc/locks").map_err(doing("read /proc/locks"))?;
    Ok(locks.lines().any(|line| holds(line, pid, inode)).then_some(pid))
}

/// Whether a line of `/proc/locks` (proc_locks(5)) is of this process and file: `1: FLOCK  ADVISORY  WRITE 17 08:01:42 0 EOF`.
/// The device is left out: btrfs has one there that stat(2) does not say.
fn holds(line: &str, pid: u32, inode: u64) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let is_lock = words.next() == Some("FLOCK") && words.nth(1) == Some("WRITE");
    let is_process = words.next().and_then(|word| word.parse().ok()) == Some(pid);
    let is_file = words.next().and_then(|word| word.rsplit(':').next()?.parse().ok()) == Some(inode);
    is_lock && is_process && is_file
}

pub fn log_of(data: &Path) -> PathBuf {
    data.join(LOG)
}

/// Whether systemd runs this machine.
fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Whether systemd can be asked for the server: it runs here, it is root who asks, and the unit is installed.
pub fn is_by_systemd() -> bool {
    let installed = [UNIT_FILE, "/lib/systemd/system/cove.service", "/usr/lib/systemd/system/cove.service"];
    is_root() && has_systemd() && installed.iter().any(|path| Path::new(path).exists())
}

/// Asks systemd; its own words are the complaint.
pub fn systemctl(words: &[&str]) -> Result<(), Complaint> {
    let asked = Command::new("systemctl").args(words).stdin(Stdio::null()).output();
    let output = asked.map_err(doing("run systemctl"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Complaint::failed(format!("systemctl {}: {}", words.join(" "), said.trim()))
        .hint(format!("journalctl --unit {UNIT} --lines 20")))
}

/// Starts `cove serve` with these words, away from this terminal.
pub fn start(data: &Path, words: &[String]) -> Result<Child, Complaint> {
    cove_control::app::make_private_directory(data).map_err(doing(format!("make {}", data.display())))?;
    // Who waits for the address must not read the one of an earlier server.
    match fs::remove_file(data.join("address")) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(doing(format!("remove the old address in {}", data.display()))(error));
        }
        _ => {}
    }
    let path = log_of(data);
    let opened = File::options().create(true).append(true).open(&path);
    let log = opened.map_err(doing(format!("open {}", path.display())))?;
    let said = log.try_clone().map_err(doing(format!("open {}", path.display())))?;
    let mut command = Command::new(crate::place::program()?);
    command.arg("serve").args(words).arg("--json");
    // A group of its own: Ctrl-C and the end of this terminal are not for it.
    command.process_group(0).stdin(Stdio::null()).stdout(said).stderr(log).current_dir("/");
    command.spawn().map_err(doing("start cove serve"))
}

/// Waits until the server of a directory answers, and returns its URL. `child` is the process that was started.
pub async fn ready(data: &Path, mut child: Option<Child>) -> Result<String, Complaint> {
    let began = Instant::now();
    let place = Place::new(Some(data.to_owned()));
    crate::client::prepare_tls();
    let http = reqwest::Client::builder().no_proxy().build();
    let http = http.map_err(|error| Complaint::failed(format!("make an HTTP client: {error}")))?;
    loop {
        if let Some(child) = &mut child
            && let Some(status) = child.try_wait().map_err(doing("ask for the server's end"))?
        {
            return Err(did_not_start(data, &format!("it ended with {status}")));
        }
        if server_of(data)?.is_some()
            && let Some(url) = place.server()
            && http.get(format!("{url}/healthz")).send().await.is_ok_and(|answer| answer.status().is_success())
        {
            return Ok(url);
        }
        if began.elapsed() > READY_WITHIN {
            return Err(did_not_start(data, &format!("it does not answer after {} s", READY_WITHIN.as_secs())));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn did_not_start(data: &Path, why: &str) -> Complaint {
    let log = fs::read_to_string(log_of(data)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("\n  ");
    Complaint::failed(format!("the server did not start: {why}\n  {last}"))
        .hint(format!("all that it said is in {}", log_of(data).display()))
}

/// Tells the server of a directory to end, and waits for it. Returns its process id; `None` where nobody serves it.
pub fn end(data: &Path) -> Result<Option<u32>, Complaint> {
    let Some(number) = server_of(data)? else { return Ok(None) };
    let unknown = || Complaint::failed(format!("{number} is not the number of a process"));
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(unknown)?;
    let opened = pidfd_open(pid, PidfdFlags::empty());
    let process = opened.map_err(|errno| doing(format!("find process {number}"))(errno.into()))?;
    // The lock was held before the process was opened and still is: it is this process that holds it.
    if server_of(data)? != Some(number) {
        return Ok(None);
    }
    let told = pidfd_send_signal(&process, Signal::TERM);
    told.map_err(|errno| doing(format!("end process {number}"))(errno.into()))?;
    let began = Instant::now();
    while server_of(data)? == Some(number) {
        if began.elapsed() > ENDED_WITHIN {
            return Err(Complaint::failed(format!("process {number} did not end within {} s", ENDED_WITHIN.as_secs()))
                .hint("requests may be under way; try again"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_of_one_process_and_one_file() {
        let line = "12: FLOCK  ADVISORY  WRITE 17 00:2a:42 0 EOF";
        assert!(holds(line, 17, 42));
        assert!(!holds(line, 18, 42) && !holds(line, 17, 43));
        assert!(!holds("12: POSIX  ADVISORY  WRITE 17 00:2a:42 0 EOF", 17, 42));
        assert!(!holds("12: FLOCK  ADVISORY  READ  17 00:2a:42 0 EOF", 17, 42));
        assert!(!holds("12: -> FLOCK  ADVISORY  WRITE 17 00:2a:42 0 EOF", 17, 42), "one that waits for it");
        assert!(!holds("", 17, 42));
    }

    #[test]
    fn a_number_in_a_lock_that_nobody_holds_is_nobody() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(server_of(data.path()).unwrap(), None);
        fs::write(data.path().join("lock"), "1\n").unwrap();
        assert_eq!(server_of(data.path()).unwrap(), None);
        assert_eq!(end(data.path()).unwrap(), None);
        let held = cove_control::serve::alone(data.path()).unwrap();
        assert_eq!(server_of(data.path()).unwrap(), Some(std::process::id()));
        drop(held);
        assert_eq!(server_of(data.path()).unwrap(), None);
    }
}
