//! Runs probes and prints one JSON object a line. Each runs in a process of its own: when a filter kills a probe, the
//! wall has held.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use crate::{Canaries, Finding, Verdict, all};

/// The argument before a probe's name that runs it in this very process.
const HERE: &str = "--here";

/// The program inside the sandbox. `prefix` are the arguments that start it when the program is called again,
/// `arguments` the probes to run; none means all.
pub fn main(prefix: &[&str], arguments: &[String]) -> ExitCode {
    if let [first, name] = arguments
        && first == HERE
    {
        return run_here(name);
    }
    let names: Vec<&str> = match arguments {
        [] => all().map(|probe| probe.name).collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let finding = run_apart(prefix, name);
        if finding.verdict == Verdict::NotHeld {
            code = ExitCode::FAILURE;
        }
        println!("{}", serde_json::to_string(&finding).expect("a finding is JSON"));
    }
    code
}

fn run_here(name: &str) -> ExitCode {
    let told = env::var(Canaries::VARIABLE).ok();
    let canaries = told.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let Some(probe) = all().find(|probe| probe.name == name) else {
        eprintln!("there is no probe {name}");
        return ExitCode::from(2);
    };
    println!("{}", serde_json::to_string(&probe.find(&canaries)).expect("a finding is JSON"));
    ExitCode::SUCCESS
}

fn run_apart(prefix: &[&str], name: &str) -> Finding {
    let finding = |verdict, detail: String| Finding { name: name.to_owned(), verdict, detail };
    let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let output = match Command::new(program).args(prefix).args([HERE, name]).output() {
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
