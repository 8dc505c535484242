//! `cove redteam`: tries to get out of a sandbox on this host and in at a server's doors, and says what held.
//!
//! ```text
//!   engine   probes inside real sandboxes, as user and as root, with and without a network      engine.rs, crates/probe
//!   doors    a server of its own with two organisations, asked everything that must be refused  doors/
//! ```
//!
//! Nothing is left of either, also when Ctrl-C ends it.

mod doors;
mod engine;

use std::path::PathBuf;

use clap::Args;
use cove_probe::{Finding, Verdict};
use cove_sys::signal::Signals;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::json;

use crate::complaint::{Complaint, code, doing};
use crate::measure::markdown;
use crate::render::{Rows, Tone, print, print_json};

/// The name of the verdicts' place in a document.
const MARK: &str = "cove redteam";

/// The word that makes this program the probe.
pub const PROBE: &str = "__probe";

/// Try to break out of a sandbox and into a server on this machine, and say what held
///
/// The exit code is 0 when everything held, 1 when something did not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove redteam
  cove redteam doors
  cove redteam --list
  cove redteam --json")]
pub struct Arguments {
    /// Print JSON: one object per probe with name, verdict and detail
    #[arg(long)]
    json: bool,
    /// List the probes and try none
    #[arg(long, conflicts_with_all = ["markdown", "probes"])]
    list: bool,
    /// Put the verdicts into this document, between the lines `<!-- cove redteam -->` and `<!-- /cove redteam -->`
    #[arg(long, value_name = "FILE", conflicts_with = "probes")]
    markdown: Option<PathBuf>,
    /// Only these probes; `engine` and `doors` name all of one part
    #[arg(value_name = "PROBE")]
    probes: Vec<String>,
}

/// What ends this command early.
const ENDING: [i32; 3] = [Signal::INT.as_raw(), Signal::TERM.as_raw(), Signal::HUP.as_raw()];

/// Probes of one kind, and what came of them.
struct Group {
    /// `engine` or `doors`.
    part: &'static str,
    title: &'static str,
    /// What to look at first where one of them did not hold.
    remedy: &'static str,
    told: Vec<Told>,
}

struct Told {
    /// What it would mean if it did not hold.
    meaning: String,
    finding: Finding,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    if arguments.list {
        return list(arguments.json);
    }
    let [engine, doors] = sort(&arguments.probes)?;
    if let Some(document) = &arguments.markdown {
        // Before the first probe, not after the last.
        markdown::check(document, MARK)?;
        crate::measure::output::can_write_to([document])?;
    }
    // A Ctrl-C ends the sandbox, and then this, without leaving the bait behind.
    let signals = Signals::block(&ENDING).map_err(doing("block signals"))?;
    let (mut groups, mut ways, mut removed) = (Vec::new(), "", Ok(()));
    if let Some(probes) = engine {
        (groups, ways) = engine::attack(&probes, &signals)?;
    }
    if let Some(probes) = doors {
        let (told, left) = doors::attack(&probes, &signals)?;
        groups.extend(told);
        removed = left;
    }
    groups.retain(|group| !group.told.is_empty());
    let code = report(arguments, &groups, ways)?;
    // Verdicts first: what was left behind does not change them.
    removed.map(|()| code)
}

fn list(as_json: bool) -> Result<u8, Complaint> {
    let parts = [("engine", engine::names()), ("doors", doors::names())];
    if as_json {
        let all = parts.iter().flat_map(|(part, probes)| {
            probes.iter().map(move |(name, meaning)| json!({ "part": part, "name": name, "meaning": meaning }))
        });
        print_json(&all.collect::<Vec<_>>())?;
        return Ok(0);
    }
    let mut rows = Rows::new(&["probe", "part", "would mean"]);
    for (part, probes) in &parts {
        for (name, meaning) in probes {
            rows.add(&[(name, Tone::Plain), (part, Tone::Faint), (meaning, Tone::Plain)]);
        }
    }
    rows.print()?;
    Ok(0)
}

/// The probes of each part that are wanted: none at all, or an empty list for every one.
fn sort(names: &[String]) -> Result<[Option<Vec<String>>; 2], Complaint> {
    if names.is_empty() {
        return Ok([Some(Vec::new()), Some(Vec::new())]);
    }
    let (mut engine, mut doors) = (Vec::new(), Vec::new());
    for name in names.iter().filter(|name| !["engine", "doors"].contains(&name.as_str())) {
        if engine::has(name) {
            engine.push(name.clone());
        } else if doors::has(name) {
            doors.push(name.clone());
        } else {
            return Err(Complaint::usage(format!("there is no probe {name}")).hint("`cove redteam --list` names them"));
        }
    }
    let part = |word: &str, named: Vec<String>| match names.iter().any(|name| name == word) {
        true => Some(Vec::new()),
        false => (!named.is_empty()).then_some(named),
    };
    Ok([part("engine", engine), part("doors", doors)])
}

fn interrupted() -> Complaint {
    Complaint::failed("interrupted; everything was removed").with_code(130)
}

#[derive(Serialize)]
struct Line<'a> {
    part: &'a str,
    #[serde(flatten)]
    finding: &'a Finding,
    meaning: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'a str>,
}

fn report(arguments: &Arguments, groups: &[Group], ways: &str) -> Result<u8, Complaint> {
    let lines = groups.iter().flat_map(|group| {
        group.told.iter().map(|told| {
            let remedy = (told.finding.verdict == Verdict::NotHeld).then_some(group.remedy);
            Line { part: group.part, finding: &told.finding, meaning: &told.meaning, remedy }
        })
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let count = |verdict| lines.iter().filter(|line| line.finding.verdict == verdict).count();
    let (held, lost) = (count(Verdict::Held), count(Verdict::NotHeld));
    if let Some(document) = &arguments.markdown {
        markdown::replace_in(document, MARK, &as_markdown(groups))?;
    }
    if arguments.json {
        print_json(&lines)?;
    } else {
        print_table(&lines)?;
        let ways = if ways.is_empty() { String::new() } else { format!("; the engine's each tried {ways}") };
        let not_applicable = count(Verdict::NotApplicable);
        print(&format!("\n{held} held, {lost} did not, {not_applicable} not applicable{ways}."))?;
        for line in &lines {
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

/// One table for each part.
fn print_table(lines: &[Line<'_>]) -> Result<(), Complaint> {
    for part in ["engine", "doors"] {
        let mut rows = Rows::new(&[part, "", "would mean", "seen"]);
        for line in lines.iter().filter(|line| line.part == part) {
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
        if lines.iter().any(|line| line.part == part) {
            rows.print()?;
        }
    }
    Ok(())
}

/// Verdicts by family, then every probe that did not hold or had nothing to attack.
fn as_markdown(groups: &[Group]) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{}.\n\n", crate::measure::machine::Machine::look().line());
    text.push_str("| probes | held | not held | not applicable |\n|---|---:|---:|---:|\n");
    let (mut sums, mut others) = ([0; 3], String::new());
    for group in groups {
        let findings = || group.told.iter().map(|told| &told.finding);
        let verdicts = [Verdict::Held, Verdict::NotHeld, Verdict::NotApplicable];
        let counts = verdicts.map(|verdict| findings().filter(|finding| finding.verdict == verdict).count());
        let _ = writeln!(text, "| {} | {} | {} | {} |", group.title, counts[0], counts[1], counts[2]);
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
