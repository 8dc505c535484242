//! `cove-probe [name …]`: runs the named probes, or all, and prints one JSON object a line. Each runs in a process of its
//! own: a probe that a filter kills has been held, not lost.

#![forbid(unsafe_code)]

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use cove_probe::{Canaries, Finding, Verdict, all};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--here") {
        return run_here(&arguments[1]);
    }
    if arguments.is_empty() {
        arguments = all().map(|probe| probe.name.to_owned()).collect();
    }
    let mut failed = false;
    for name in arguments {
        let finding = run_apart(&name);
        failed |= finding.verdict == Verdict::NotHeld;
        println!("{}", serde_json::to_string(&finding).expect("a finding is JSON"));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn run_here(name: &str) -> ExitCode {
    let canaries =
        env::var(Canaries::VARIABLE).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let Some(probe) = all().find(|probe| probe.name == name) else {
        eprintln!("cove-probe: there is no probe {name}");
        return ExitCode::from(2);
    };
    println!("{}", serde_json::to_string(&probe.find(&canaries)).expect("a finding is JSON"));
    ExitCode::SUCCESS
}

fn run_apart(name: &str) -> Finding {
    let finding = |verdict, detail: String| Finding { name: name.to_owned(), verdict, detail };
    let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let output = match Command::new(program).args(["--here", name]).output() {
        Ok(output) => output,
        Err(error) => return finding(Verdict::NotHeld, format!("the probe could not be started: {error}")),
    };
    match (serde_json::from_slice(&output.stdout), output.status.signal()) {
        (Ok(finding), _) => finding,
        (Err(_), Some(31)) => finding(Verdict::Held, "the system call filter killed the attempt (SIGSYS)".into()),
        (Err(_), Some(11)) => finding(Verdict::Held, "the attempt was killed (SIGSEGV)".into()),
        (Err(_), _) => finding(
            Verdict::NotHeld,
            format!("the probe ended without a verdict: {} {}", output.status, String::from_utf8_lossy(&output.stderr)),
        ),
    }
}
