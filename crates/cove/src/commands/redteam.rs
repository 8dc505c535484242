//! `cove redteam`: tries to get out of a sandbox on this host, and says what held.
//!
//! The probes are the ones that the tests run. They need something to find, so this lays it out first: a file in root's
//! home, an abstract socket, a port on loopback. Then it starts sandboxes with [`run`](super::run), as the ordinary user and as
//! root inside, with and without a network, in which this program is the probe.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::Args;
use cove_engine::doctor;
use cove_probe::{Canaries, FAMILIES, Finding, Verdict, all};
use cove_sys::signal::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::complaint::{Complaint, code};
use crate::measure::markdown;
use crate::render::{Rows, Tone, print, print_json, say};

/// The name of the verdicts' place in a document.
const MARK: &str = "cove redteam";

/// The word that makes this program the probe.
pub const PROBE: &str = "__probe";

/// Try to break out of a sandbox on this machine, and say what held
///
/// The exit code is 0 when everything held, 1 when something did not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove redteam
  cove redteam --json")]
pub struct Arguments {
    /// Print JSON: one object per probe with name, verdict and detail
    #[arg(long)]
    json: bool,
    /// Put the verdicts into this document, between the lines `<!-- cove redteam -->` and `<!-- /cove redteam -->`
    #[arg(long, value_name = "FILE", conflicts_with = "probes")]
    markdown: Option<PathBuf>,
    /// Only these probes
    #[arg(value_name = "PROBE")]
    probes: Vec<String>,
}

/// What ends this command early.
const ENDING: [i32; 3] = [Signal::INT.as_raw(), Signal::TERM.as_raw(), Signal::HUP.as_raw()];

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

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    for name in &arguments.probes {
        if !all().any(|probe| probe.name == name) {
            return Err(
                Complaint::usage(format!("there is no probe {name}")).hint("`cove redteam --json` names them all")
            );
        }
    }
    if let Some(document) = &arguments.markdown {
        // Before the first probe, not after the last.
        markdown::check(document, MARK)?;
        crate::measure::output::can_write_to([document])?;
    }
    // A Ctrl-C ends the sandbox, and then this, without leaving the bait behind.
    let signals = Signals::block(&ENDING)?;
    let bait = Bait::lay()?;
    let network = doctor::network();
    let mut worst: BTreeMap<String, Finding> = BTreeMap::new();
    // Where no sandbox can have a network there is none to attack from.
    for stance in STANCES.iter().filter(|stance| stance.network == "none" || network.verdict == doctor::Verdict::Ok) {
        for finding in attack(stance, &bait, &signals, &arguments.probes)? {
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
    if network.verdict != doctor::Verdict::Ok {
        say(&format!("cove: tried without a network only: {}", network.detail));
    }
    report(arguments, &worst, network.verdict)
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

fn attack(stance: &Stance, bait: &Bait, signals: &Signals, probes: &[String]) -> Result<Vec<Finding>, Complaint> {
    let program = std::env::current_exe()?;
    let canaries = serde_json::to_string(&bait.canaries).map_err(|error| Complaint::failed(error.to_string()))?;
    let mut child = Command::new(&program)
        .args(["run", "--user", stance.user, "--network", stance.network, "--timeout", "120s"])
        .args(["--mount", &format!("{}:/probe/cove:ro", program.display())])
        .args(["--env", &format!("{}={canaries}", Canaries::VARIABLE), "--", "/probe/cove", PROBE])
        .args(probes)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = listen(&mut child, signals);
    child.wait()?;
    let Some(said) = said? else {
        return Err(Complaint::failed("interrupted; everything was removed").with_code(130));
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

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    meaning: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'a str>,
}

fn report(arguments: &Arguments, worst: &BTreeMap<String, Finding>, network: doctor::Verdict) -> Result<u8, Complaint> {
    let lines = FAMILIES.iter().flat_map(|family| {
        family.probes.iter().filter_map(|probe| {
            let finding = worst.get(probe.name)?;
            let remedy = (finding.verdict == Verdict::NotHeld).then_some(family.remedy);
            Some(Line { finding, meaning: probe.meaning, remedy })
        })
    });
    let told: Vec<Line<'_>> = lines.collect();
    let count = |verdict| told.iter().filter(|line| line.finding.verdict == verdict).count();
    let (held, lost) = (count(Verdict::Held), count(Verdict::NotHeld));
    if let Some(document) = &arguments.markdown {
        markdown::replace_in(document, MARK, &as_markdown(worst))?;
    }
    if arguments.json {
        print_json(&told)?;
    } else {
        let mut rows = Rows::new(&["what", "", "would mean", "seen"]);
        for line in &told {
            let (word, tone) = match line.finding.verdict {
                Verdict::Held => ("held", Tone::Good),
                Verdict::NotHeld => ("NOT HELD", Tone::Bad),
                Verdict::NotApplicable => ("n/a", Tone::Faint),
            };
            let name = line.finding.name.replace('_', " ");
            rows.add(&[
                (&name, Tone::Plain),
                (word, tone),
                (line.meaning, Tone::Plain),
                (&line.finding.detail, Tone::Faint),
            ]);
        }
        rows.print()?;
        let ways = if network == doctor::Verdict::Ok { "with and without a network" } else { "without a network" };
        print(&format!(
            "\n{held} held, {lost} did not, {} not applicable; each tried as user and as root, {ways}.",
            count(Verdict::NotApplicable)
        ))?;
        for line in &told {
            if let Some(remedy) = line.remedy {
                print(&format!("hint: {}: {remedy}", line.finding.name.replace('_', " ")))?;
            }
        }
        if lost > 0 {
            print("Please report what did not hold.")?;
        }
    }
    Ok(if lost == 0 { 0 } else { code::FAILED })
}

/// Verdicts by family, then every probe that did not hold or had nothing to attack.
fn as_markdown(worst: &BTreeMap<String, Finding>) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{}.\n\n", crate::measure::machine::Machine::look().line());
    text.push_str("| probes | held | not held | not applicable |\n|---|---:|---:|---:|\n");
    let (mut sums, mut others) = ([0; 3], String::new());
    for family in &FAMILIES {
        let findings = || family.probes.iter().filter_map(|probe| worst.get(probe.name));
        let verdicts = [Verdict::Held, Verdict::NotHeld, Verdict::NotApplicable];
        let counts = verdicts.map(|verdict| findings().filter(|finding| finding.verdict == verdict).count());
        let _ = writeln!(text, "| {} | {} | {} | {} |", family.title, counts[0], counts[1], counts[2]);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        for finding in findings().filter(|finding| finding.verdict != Verdict::Held) {
            let word = if finding.verdict == Verdict::NotHeld { "**did not hold**" } else { "not applicable" };
            let _ = writeln!(others, "- `{}` {word}: {}", finding.name, finding.detail);
        }
    }
    let _ = writeln!(text, "| **all** | **{}** | **{}** | **{}** |", sums[0], sums[1], sums[2]);
    if !others.is_empty() {
        let _ = write!(text, "\n{others}");
    }
    text
}
