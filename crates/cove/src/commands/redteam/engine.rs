//! The walls of a sandbox, tried from inside.
//!
//! The probes are the ones that the tests run. They need something to find, so this lays it out first: a file in root's
//! home, an abstract socket, a port on loopback. Then it starts sandboxes with [`run`](super::super::run), as the ordinary
//! user and as root inside, with and without a network, in which this program is the probe.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use cove_engine::doctor;
use cove_probe::{Canaries, FAMILIES, Finding, Verdict, all};
use cove_sys::signal::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process};

use super::{Group, PROBE, Told, interrupted};
use crate::complaint::{Complaint, doing};
use crate::render::say;

/// One way of being inside.
struct Stance {
    user: &'static str,
    network: &'static str,
}

const STANCES: &[Stance] = &[
    Stance { user: "user", network: "full" },
    Stance { user: "root", network: "full" },
    Stance { user: "user", network: "none" },
    Stance { user: "root", network: "none" },
];

pub fn has(name: &str) -> bool {
    all().any(|probe| probe.name == name)
}

/// The names, with what each would mean if it did not hold.
pub fn names() -> Vec<(String, String)> {
    all().map(|probe| (probe.name.to_owned(), probe.meaning.to_owned())).collect()
}

/// Tries these probes, or all, and tells the worst verdict of each.
pub fn attack(probes: &[String], signals: &Signals) -> Result<(Vec<Group>, &'static str), Complaint> {
    let bait = Bait::lay()?;
    let network = doctor::network();
    let mut worst: BTreeMap<String, Finding> = BTreeMap::new();
    // Where no sandbox can have a network there is none to attack from.
    for stance in STANCES.iter().filter(|stance| stance.network == "none" || network.verdict == doctor::Verdict::Ok) {
        for finding in attack_from(stance, &bait, signals, probes)? {
            let told = Finding {
                detail: format!("as {}, network {}: {}", stance.user, stance.network, finding.detail),
                ..finding
            };
            let known = worst.entry(told.name.clone()).or_insert_with(|| told.clone());
            if rank(told.verdict) > rank(known.verdict) {
                *known = told;
            }
        }
    }
    let ways = if network.verdict == doctor::Verdict::Ok {
        "as user and as root, with and without a network"
    } else {
        say(&format!("cove: tried without a network only: {}", network.detail));
        "as user and as root, without a network"
    };
    let groups = FAMILIES.iter().map(|family| Group {
        part: "engine",
        title: family.title,
        remedy: family.remedy,
        told: family
            .probes
            .iter()
            .filter_map(|probe| Some(Told { meaning: probe.meaning.into(), finding: worst.remove(probe.name)? }))
            .collect(),
    });
    Ok((groups.collect(), ways))
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::NotApplicable => 0,
        Verdict::Held => 1,
        Verdict::NotHeld => 2,
    }
}

/// What is laid out on the host for a probe to find; gone when dropped.
struct Bait {
    canaries: Canaries,
    file: PathBuf,
    _socket: UnixListener,
    _port: TcpListener,
}

impl Bait {
    fn lay() -> Result<Bait, Complaint> {
        let trouble = |what: &str, error: std::io::Error| Complaint::failed(format!("lay out {what}: {error}"));
        let name = format!("cove-redteam-{}", std::process::id());
        let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
        let file = home.join(format!(".{name}"));
        fs::write(&file, Canaries::WORD).map_err(|error| trouble("a file", error))?;
        let address = SocketAddr::from_abstract_name(&name).map_err(|error| trouble("a socket", error))?;
        let socket = UnixListener::bind_addr(&address).map_err(|error| trouble("a socket", error))?;
        let port = TcpListener::bind("127.0.0.1:0").map_err(|error| trouble("a port", error))?;
        let number = port.local_addr().map_err(|error| trouble("a port", error))?.port();
        let root = fs::metadata("/").map_err(|error| trouble("the root's number", error))?;
        let canaries = Canaries {
            files: vec![file.display().to_string()],
            abstract_socket: Some(name),
            process: i32::try_from(std::process::id()).ok(),
            loopback_port: Some(number),
            host_addresses: own_address().into_iter().collect(),
            root_inode: Some((root.dev(), root.ino())),
            hostname: None,
        };
        Ok(Bait { canaries, file, _socket: socket, _port: port })
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        // A file with one known word in it; nothing is lost if it stays.
        let _ = fs::remove_file(&self.file);
    }
}

/// The address this host would use for the world; no packet is sent to find it.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("203.0.113.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

fn attack_from(stance: &Stance, bait: &Bait, signals: &Signals, probes: &[String]) -> Result<Vec<Finding>, Complaint> {
    let program = crate::place::program()?;
    let canaries = serde_json::to_string(&bait.canaries).map_err(|error| Complaint::failed(error.to_string()))?;
    let mut child = Command::new(&program)
        .args(["run", "--user", stance.user, "--network", stance.network, "--timeout", "120s"])
        .args(["--mount", &format!("{}:/probe/cove:ro", program.display())])
        .args(["--env", &format!("{}={canaries}", Canaries::VARIABLE), "--", "/probe/cove", PROBE])
        .args(probes)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(doing(format!("start {}", program.display())))?;
    let said = listen(&mut child, signals);
    child.wait().map_err(doing("wait for the sandbox of the probes"))?;
    let Some(said) = said.map_err(doing("read what the probes say"))? else {
        return Err(interrupted());
    };
    let findings: Vec<Finding> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let wanted = if probes.is_empty() { all().count() } else { probes.len() };
    if findings.len() < wanted {
        return Err(Complaint::failed(format!(
            "as {}, network {}: only {} of {wanted} probes answered",
            stance.user,
            stance.network,
            findings.len()
        )));
    }
    Ok(findings)
}

/// All that the probe says; `None` where a signal came first: the sandbox is then told to end.
fn listen(child: &mut Child, signals: &Signals) -> io::Result<Option<String>> {
    let Some(mut stdout) = child.stdout.take() else { return Ok(None) };
    let mut said = Vec::new();
    loop {
        let mut ready = [PollFd::new(&stdout, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ready, None))?;
        let speaks = !ready[0].revents().is_empty();
        if signals.next()?.is_some() {
            kill_process(Pid::from_child(child), Signal::TERM)?;
            return Ok(None);
        }
        if speaks {
            let mut chunk = [0; 16 << 10];
            match stdout.read(&mut chunk)? {
                0 => return Ok(Some(String::from_utf8_lossy(&said).into_owned())),
                count => said.extend_from_slice(&chunk[..count]),
            }
        }
    }
}
