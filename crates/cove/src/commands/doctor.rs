//! `cove doctor`: what this host can do, what is missing, and how to get it.

use clap::Args;
use cove_engine::doctor::{self, Finding, Need, Verdict};
use serde::Serialize;

use crate::complaint::{Complaint, code};
use crate::place::{Files, Place};
use crate::render::{Rows, Tone, print, print_json};

/// Show what this machine can do: namespaces, cgroups, overlay, seccomp and more
///
/// The exit code is 0 when sandboxes can run here, 1 when something they need is missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove doctor
  cove doctor --json")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    ready: bool,
    findings: &'a [Finding],
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let mut findings = doctor::examine(&realms());
    let data = Place::new(None).data();
    findings.extend(doctor::idmapped_data(&data));
    findings.push(doctor::room(&data));
    let ready = doctor::can_run(&findings);
    if arguments.json {
        print_json(&Report { ready, findings: &findings })?;
    } else {
        table(&findings)?;
        remedies(&findings)?;
        print(if ready { "\nSandboxes can run here." } else { "\nSandboxes cannot run here yet." })?;
    }
    Ok(if ready { 0 } else { code::FAILED })
}

/// The data directories of this user's sandboxes.
fn realms() -> Vec<String> {
    let place = Place::new(None);
    let folders = [place.data(), place.ephemeral(Files::InMemory), place.ephemeral(Files::OnDisk)];
    folders
        .iter()
        .filter_map(|folder| std::fs::read_to_string(folder.join("realm")).ok())
        .map(|realm| realm.trim().to_owned())
        .collect()
}

fn table(findings: &[Finding]) -> Result<(), Complaint> {
    let mut rows = Rows::new(&["what", "", "found"]);
    for finding in findings {
        let (word, tone) = match (finding.verdict, finding.need) {
            (Verdict::Ok, _) => ("ok", Tone::Good),
            (Verdict::Weaker, _) => ("weaker", Tone::Warning),
            (Verdict::Missing, Need::Useful) => ("absent", Tone::Faint),
            (Verdict::Missing, Need::Required) => ("MISSING", Tone::Bad),
        };
        rows.add(&[(&finding.name, Tone::Plain), (word, tone), (&finding.detail, Tone::Plain)]);
    }
    rows.print()
}

/// The remedies, below the table: a column would break commands that people copy.
fn remedies(findings: &[Finding]) -> Result<(), Complaint> {
    let mut open = findings.iter().filter_map(|finding| Some((&finding.name, finding.remedy.as_ref()?))).peekable();
    if open.peek().is_some() {
        print("")?;
    }
    for (name, remedy) in open {
        print(&format!("hint: {name}: {remedy}"))?;
    }
    Ok(())
}
