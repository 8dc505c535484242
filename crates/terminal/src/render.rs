//! Output on stdout: tables for people, JSON for programs, colour only on a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

use comfy_table::{Cell, Color, ColumnConstraint, Table, Width, presets};
use serde::Serialize;
use serde_json::Value;

use crate::complaint::Complaint;
use crate::terminal;

/// The colour of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
    Faint,
}

/// Blanks between two columns.
const GAP: u16 = 2;

/// Rows under upper-case headings, without lines. On a terminal the widest columns are broken between words until all
/// fit; a word is never broken, so that ids can be copied. Where the words alone are too wide, and in a pipe, each row
/// is one line.
pub struct Rows {
    table: Table,
    colour: bool,
    /// Columns of the terminal.
    width: Option<usize>,
}

impl Rows {
    pub fn new(headings: &[&str]) -> Rows {
        let stdout = io::stdout();
        let size = terminal::size().filter(|_| io::IsTerminal::is_terminal(&stdout));
        Rows::within(headings, size.map(|size| size.columns.into()), terminal::has_colour(&stdout))
    }

    fn within(headings: &[&str], width: Option<usize>, colour: bool) -> Rows {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut rows = Rows { table, colour, width };
        let headings: Vec<_> = headings.iter().map(|heading| (heading.to_uppercase(), Tone::Faint)).collect();
        let headings: Vec<_> = headings.iter().map(|(text, tone)| rows.cell(text, *tone)).collect();
        rows.table.set_header(headings);
        rows
    }

    pub fn add(&mut self, cells: &[(&str, Tone)]) {
        let cells: Vec<_> = cells.iter().map(|(text, tone)| self.cell(text, *tone)).collect();
        self.table.add_row(cells);
    }

    fn cell(&self, text: &str, tone: Tone) -> Cell {
        let cell = Cell::new(one_line(text));
        match tone {
            _ if !self.colour => cell,
            Tone::Plain => cell,
            Tone::Good => cell.fg(Color::Green),
            Tone::Warning => cell.fg(Color::Yellow),
            Tone::Bad => cell.fg(Color::Red),
            Tone::Faint => cell.fg(Color::DarkGrey),
        }
    }

    pub fn print(self) -> Result<(), Complaint> {
        write_line(&self.text())
    }

    fn text(mut self) -> String {
        let natural: Vec<usize> = self.table.column_max_content_widths().into_iter().map(usize::from).collect();
        let widths = self.width.and_then(|width| fitted(&natural, &self.longest_words(natural.len()), width));
        for (index, column) in self.table.column_iter_mut().enumerate() {
            let gap = if index + 1 < natural.len() { GAP } else { 0 };
            column.set_padding((0, gap));
            if let Some(width) = widths.as_ref().and_then(|widths| u16::try_from(widths[index]).ok()) {
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width.saturating_add(gap))));
            }
        }
        let text = self.table.to_string();
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    /// Of each column.
    fn longest_words(&self, columns: usize) -> Vec<usize> {
        let mut longest = vec![1; columns];
        for row in self.table.header().into_iter().chain(self.table.row_iter()) {
            for (longest, cell) in longest.iter_mut().zip(row.cell_iter()) {
                let words = cell.content().split(' ').map(|word| word.chars().count()).max();
                *longest = (*longest).max(words.unwrap_or(0));
            }
        }
        longest
    }
}

/// Widths of columns that fit together, each between `least` and `natural`; `None` where nothing does.
fn fitted(natural: &[usize], least: &[usize], width: usize) -> Option<Vec<usize>> {
    let gaps = usize::from(GAP) * natural.len().saturating_sub(1);
    let mut widths = natural.to_vec();
    while widths.iter().sum::<usize>() + gaps > width {
        let can_give = widths.iter().zip(least).enumerate().filter(|(_, (has, needs))| has > needs);
        let (widest, _) = can_give.max_by_key(|(_, (has, _))| **has)?;
        widths[widest] -= 1;
    }
    Some(widths)
}

/// A list from the server: JSON for programs, a table for people, a note on stderr where it is empty.
pub struct List<'a, const N: usize> {
    pub headings: [&'a str; N],
    pub empty: &'a str,
}

impl<const N: usize> List<'_, N> {
    pub fn show(
        &self,
        values: &[Value],
        as_json: bool,
        row: impl Fn(&Value) -> [(String, Tone); N],
    ) -> Result<u8, Complaint> {
        if as_json {
            print_json(&values)?;
        } else if values.is_empty() {
            say(self.empty);
        } else {
            let mut rows = Rows::new(&self.headings);
            for value in values {
                let cells = row(value);
                let cells: Vec<_> = cells.iter().map(|(text, tone)| (text.as_str(), *tone)).collect();
                rows.add(&cells);
            }
            rows.print()?;
        }
        Ok(0)
    }
}

/// A text field of an answer; empty where absent.
pub fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// A number of an answer; `-` where absent.
pub fn number(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Number(number) => number.to_string(),
        _ => "-".to_owned(),
    }
}

/// A time of an answer, to the second, in UTC; `-` where absent.
pub fn moment(value: &Value, name: &str) -> String {
    match word(value, name).parse::<jiff::Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => "-".to_owned(),
    }
}

/// A line, or several, to stdout.
pub fn print(text: &str) -> Result<(), Complaint> {
    write_line(&plain(text))
}

/// A sandbox may have chosen names, labels, paths and causes: escape sequences are shown instead of obeyed, and so are
/// marks that change the direction of writing.
pub fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        c.is_control() && c != '\n' && c != '\t' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if steers(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// The same on one line, for a bar or a cell.
pub fn one_line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

fn write_line(text: &str) -> Result<(), Complaint> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

pub fn print_json(value: &impl Serialize) -> Result<(), Complaint> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Complaint::failed(format!("write JSON: {error}")))?;
    print(&text)
}

/// `cpus`, `cpus and memory`, `cpus, memory and disk`.
pub fn enumerated<S: AsRef<str>>(words: &[S]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// A message on stderr; if that is closed, it is lost.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_listed_as_people_list_them() {
        assert_eq!(enumerated::<&str>(&[]), "");
        assert_eq!(enumerated(&["cpus"]), "cpus");
        assert_eq!(enumerated(&["cpus", "memory"]), "cpus and memory");
        assert_eq!(enumerated(&["cpus", "memory", "disk"]), "cpus, memory and disk");
    }

    #[test]
    fn a_narrow_terminal_breaks_no_word() {
        let shown = |width: Option<usize>| {
            let mut rows = Rows::within(&["id", "created", "why"], width, false);
            for cells in [
                ["session_ix6sjq4mn69efc9c", "2026-11-18 03:10:40", "its sandbox was stopped because nobody used it"],
                ["session_yy2jo92kuub1jgnx", "2026-11-18 03:09:54", ""],
            ] {
                rows.add(&cells.map(|text| (text, Tone::Plain)));
            }
            rows.text()
        };
        let wide = shown(None);
        assert_eq!(wide.lines().count(), 3, "{wide}");
        assert_eq!(shown(Some(200)), wide);
        for width in [80, 60] {
            let narrow = shown(Some(width));
            assert!(narrow.lines().all(|line| line.chars().count() <= width), "{narrow}");
            assert!(narrow.lines().count() > 3, "{narrow}");
            for word in wide.split_whitespace() {
                assert!(narrow.split_whitespace().any(|one| one == word), "{word} in {narrow}");
            }
        }
        // No way to fit: the terminal breaks the lines.
        assert_eq!(shown(Some(40)), wide);
    }

    #[test]
    fn the_widest_columns_give_first() {
        assert_eq!(fitted(&[4, 20, 40], &[4, 20, 10], 58), Some(vec![4, 20, 30]));
        assert_eq!(fitted(&[4, 20, 40], &[4, 8, 10], 44), Some(vec![4, 18, 18]));
        assert_eq!(fitted(&[4, 20, 40], &[4, 20, 10], 37), None);
    }

    #[test]
    fn a_sandboxs_words_do_not_steer_the_terminal() {
        assert_eq!(plain("red\u{1b}[31m \u{9b}2J \u{202e}x\r"), "red\\u001b[31m \\u009b2J \\u202ex\\u000d");
        assert_eq!(plain("ř 日本\n\ttwo"), "ř 日本\n\ttwo");
        let json = serde_json::to_string(&serde_json::json!("\u{9b}2J")).unwrap();
        assert_eq!(serde_json::from_str::<String>(&plain(&json)).unwrap(), "\u{9b}2J", "JSON stays the same JSON");
    }
}
