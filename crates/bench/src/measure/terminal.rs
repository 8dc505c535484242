//! A report as tables in the terminal.

use cove_terminal::complaint::Complaint;
use cove_terminal::render::{Rows, Tone, print};

use super::report::{Report, Suite, figure};

pub fn show(report: &Report) -> Result<(), Complaint> {
    print(&format!("{}\n{}", report.title, report.machine.line()))?;
    if let Some(versions) = report.machine.versions_line() {
        print(&versions)?;
    }
    for suite in &report.suites {
        show_suite(suite)?;
    }
    show_promises(report)
}

fn show_suite(suite: &Suite) -> Result<(), Complaint> {
    print(&format!("\n{} ({})", suite.title, suite.name))?;
    if !suite.rows.is_empty() {
        let ratio = suite.common_base().map_or_else(String::new, |base| format!("× {base}"));
        let mut rows = Rows::new(&["who", "", "n", "p50", "p95", "p99", &ratio, ""]);
        for row in &suite.rows {
            let figures = [row.summary.p50, row.summary.p95, row.summary.p99].map(figure);
            let tone = if row.who.starts_with("cove") { Tone::Good } else { Tone::Plain };
            rows.add(&[
                (&row.who, tone),
                (row.unit.name(), Tone::Faint),
                (&row.summary.n.to_string(), Tone::Faint),
                (&figures[0], Tone::Plain),
                (&figures[1], Tone::Plain),
                (&figures[2], Tone::Plain),
                (&suite.ratio_of(row), Tone::Plain),
                (row.note.as_deref().unwrap_or_default(), Tone::Faint),
            ]);
        }
        rows.print()?;
    }
    for absent in &suite.absent {
        print(&format!("  {}: {}", absent.who, absent.why))?;
    }
    Ok(())
}

fn show_promises(report: &Report) -> Result<(), Complaint> {
    if report.promises.is_empty() {
        return Ok(());
    }
    let measured: Vec<_> = report.promises.iter().filter_map(|promise| Some((promise, promise.kept?))).collect();
    if !measured.is_empty() {
        print("\nPromises")?;
        let mut rows = Rows::new(&["", "what", "promised", "measured"]);
        for (promise, kept) in &measured {
            let (word, tone) = if *kept { ("kept", Tone::Good) } else { ("NOT KEPT", Tone::Bad) };
            rows.add(&[
                (word, tone),
                (&promise.what, Tone::Plain),
                (&promise.target, Tone::Plain),
                (promise.measured.as_deref().unwrap_or_default(), Tone::Plain),
            ]);
        }
        rows.print()?;
    }
    match report.promises.len() - measured.len() {
        0 => Ok(()),
        others => print(&format!("\n{others} of {} promises were not measured in this run.", report.promises.len())),
    }
}
