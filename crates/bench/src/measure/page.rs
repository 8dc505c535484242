//! A report as one HTML page: no network, no script, light and dark.

use std::fmt::Write as _;

use super::plot::{escape, svg};
use super::report::{Mishap, Report, Suite, figure};

const STYLE: &str = include_str!("page.css");

pub fn render(report: &Report) -> String {
    let title = escape(&report.title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n{STYLE}</style></head>\n\
         <body><main>\n<h1>{title}</h1>\n<p class=\"facts\">{}",
        escape(&report.machine.line())
    );
    if let Some(versions) = report.machine.versions_line() {
        let _ = write!(page, "<br>{}", escape(&versions));
    }
    page.push_str("</p>\n");
    if report.machine.profile == "debug" {
        page.push_str(
            "<p class=\"warning\">A debug build was measured: these numbers say nothing about a release.</p>\n",
        );
    }
    verdict(&mut page, report);
    if report.suites.len() > 1 {
        page.push_str("<nav>");
        for suite in &report.suites {
            let _ = write!(page, "<a href=\"#{}\">{}</a>", escape(&suite.name), escape(&suite.title));
        }
        page.push_str("</nav>\n");
    }
    promises(&mut page, report);
    for suite in &report.suites {
        section(&mut page, suite);
    }
    let _ = write!(
        page,
        "<footer>Made by <code>cove {}</code> in {:.0} s. Percentiles by nearest rank; ratios are of medians within this run.</footer>\n\
         </main></body></html>\n",
        escape(&report.kind),
        report.seconds
    );
    page
}

/// The whole in a sentence, and what went wrong.
fn verdict(page: &mut String, report: &Report) {
    let Some(verdict) = &report.verdict else { return };
    let class = if report.mishaps.is_empty() { "fine" } else { "warning" };
    let _ = writeln!(page, "<p class=\"{class}\">{}</p>", escape(verdict));
    if report.mishaps.is_empty() {
        return;
    }
    page.push_str("<section><h2>Errors</h2><div class=\"scroll\"><table class=\"errors\"><tr><th>step<th>how often<th>what<th>for example</tr>\n");
    for Mishap { step, kind, count, example } in &report.mishaps {
        let [step, kind, example] = [step, kind, example].map(|text| escape(text));
        let _ = writeln!(page, "<tr><td>{step}<td>{count}<td>{kind}<td>{example}</tr>");
    }
    page.push_str("</table></div></section>\n");
}

/// Words between backticks are code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

fn promises(page: &mut String, report: &Report) {
    if report.promises.is_empty() {
        return;
    }
    page.push_str("<section><h2>Promises</h2><div class=\"scroll\"><table class=\"words\"><tr><th>what<th>promised<th>measured<th></tr>\n");
    // Those that this run is about come first.
    let measured = report.promises.iter().filter(|promise| promise.kept.is_some());
    let others = report.promises.iter().filter(|promise| promise.kept.is_none());
    for promise in measured.chain(others) {
        let word = match promise.kept {
            Some(true) => "<span class=\"kept\">kept</span>",
            Some(false) => "<span class=\"broken\">not kept</span>",
            None => "",
        };
        let measured = promise.measured.as_deref().unwrap_or("not in this run");
        let [what, target, measured] = [&promise.what, &promise.target, measured].map(with_code);
        let _ = writeln!(page, "<tr><td>{what}<td>{target}<td>{measured}<td>{word}</tr>");
    }
    page.push_str("</table></div></section>\n");
}

fn section(page: &mut String, suite: &Suite) {
    let [name, title, method] = [&suite.name, &suite.title, &suite.method].map(|text| with_code(text));
    let _ = writeln!(page, "<section id=\"{name}\"><h2>{title}</h2><p class=\"method\">{method}</p>");
    if !suite.rows.is_empty() {
        let compared = suite.rows.iter().any(|row| row.ratio.is_some());
        let base = suite.common_base().map_or_else(String::new, |base| format!("× {}", escape(base)));
        let base = if compared { format!("<th>{base}") } else { String::new() };
        let _ =
            writeln!(page, "<div class=\"scroll\"><table><tr><th><th>unit<th>n<th>p50<th>p95<th>p99<th>max{base}</tr>");
        for row in &suite.rows {
            let class = if row.who.starts_with("cove") { " class=\"ours\"" } else { "" };
            let note = row.note.as_ref().map_or_else(String::new, |note| format!(" <small>{}</small>", escape(note)));
            let summary = &row.summary;
            let [p50, p95, p99, max] = [summary.p50, summary.p95, summary.p99, summary.max].map(figure);
            let (who, unit, n) = (escape(&row.who), row.unit.name(), summary.n);
            let ratio = if compared { format!("<td>{}", escape(&suite.ratio_of(row))) } else { String::new() };
            let _ = writeln!(
                page,
                "<tr{class}><td>{who}{note}<td>{unit}<td>{n}<td>{p50}<td>{p95}<td>{p99}<td>{max}{ratio}</tr>"
            );
        }
        page.push_str("</table></div>\n");
    }
    for plot in &suite.plots {
        let caption = escape(&plot.title);
        let _ = writeln!(page, "<figure><figcaption>{caption}</figcaption>{}</figure>", svg(plot));
    }
    if !suite.absent.is_empty() {
        let told: Vec<_> =
            suite.absent.iter().map(|absent| format!("{}: {}", escape(&absent.who), with_code(&absent.why))).collect();
        let _ = writeln!(page, "<p class=\"absent\">Did not take part: {}.</p>", told.join("; "));
    }
    page.push_str("</section>\n");
}
