//! A report as Markdown, and its place in a document: whatever stands between two marks is replaced, so that a
//! document's numbers are the printed ones.

use std::fmt::Write as _;
use std::path::Path;

use cove_terminal::complaint::Complaint;

use super::report::{Report, Suite, figure};

pub fn render(report: &Report) -> String {
    let mut text = format!("{}\n", sentence(&report.machine.line()));
    if let Some(versions) = report.machine.versions_line() {
        let _ = writeln!(text, "{}", sentence(&versions));
    }
    if !report.promises.is_empty() {
        text.push_str("\n### Promises\n\n| what | promised | measured | |\n|---|---|---|---|\n");
        for promise in &report.promises {
            let word = match promise.kept {
                Some(true) => "kept",
                Some(false) => "**not kept**",
                None => "",
            };
            let measured = promise.measured.as_deref().unwrap_or("not measured in this run");
            let _ = writeln!(text, "| {} | {} | {measured} | {word} |", promise.what, promise.target);
        }
    }
    for suite in &report.suites {
        suite_into(&mut text, suite);
    }
    text
}

fn suite_into(text: &mut String, suite: &Suite) {
    let _ = write!(text, "\n### {}\n\n{}\n", suite.title, suite.method);
    if !suite.rows.is_empty() {
        let base = suite.common_base().map_or_else(String::new, |base| format!("× {base}"));
        let _ = write!(text, "\n| | unit | n | p50 | p95 | p99 | {base} |\n|---|---|---:|---:|---:|---:|---:|\n");
        for row in &suite.rows {
            let [p50, p95, p99] = [row.summary.p50, row.summary.p95, row.summary.p99].map(figure);
            let note = row.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
            let ratio = suite.ratio_of(row);
            let _ = writeln!(
                text,
                "| {}{note} | {} | {} | {p50} | {p95} | {p99} | {ratio} |",
                row.who,
                row.unit.name(),
                row.summary.n
            );
        }
    }
    if !suite.absent.is_empty() {
        let told: Vec<_> = suite.absent.iter().map(|absent| format!("{}: {}", absent.who, absent.why)).collect();
        let _ = write!(text, "\nDid not take part: {}.\n", told.join("; "));
    }
}

fn sentence(text: &str) -> String {
    format!("{text}.")
}

/// Whether a document has a place for a table of this name.
pub fn check(path: &Path, name: &str) -> Result<(), Complaint> {
    parts(path, name).map(drop)
}

/// Replaces what stands between `<!-- name -->` and `<!-- /name -->`.
pub fn replace_in(path: &Path, name: &str, text: &str) -> Result<(), Complaint> {
    let (before, after) = parts(path, name)?;
    let document = format!("{before}<!-- {name} -->\n{}\n<!-- /{name} -->{after}", text.trim_end());
    super::output::write_to(Some(path), || document)
}

/// What stands before and after.
fn parts(path: &Path, name: &str) -> Result<(String, String), Complaint> {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let lines = format!("write the lines {begin} and {end} where they shall stand");
    let document = std::fs::read_to_string(path).map_err(|error| {
        Complaint::usage(format!("--markdown {}: {error}", path.display()))
            .hint(format!("it names a document that is there; {lines}"))
    })?;
    let marks = document.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let Some((before, after)) = marks else {
        return Err(Complaint::usage(format!("{} has no place for the tables", path.display())).hint(lines));
    };
    Ok((before.to_owned(), after.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("doc.md");
        std::fs::write(&path, "before\n<!-- cove bench -->\nold\n<!-- /cove bench -->\nafter\n").unwrap();
        replace_in(&path, "cove bench", "new\n").unwrap();
        replace_in(&path, "cove bench", "newer\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "before\n<!-- cove bench -->\nnewer\n<!-- /cove bench -->\nafter\n");
        let refused = replace_in(&path, "cove redteam", "x").unwrap_err().to_string();
        assert!(refused.contains("hint: write the lines <!-- cove redteam -->"), "{refused}");
    }
}
