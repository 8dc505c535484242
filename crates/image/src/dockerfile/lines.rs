//! Text into logical lines: directives, comments, continuations, heredocs.

use super::Problem;
use super::words::{self, Piece};

/// As many lines as a Dockerfile may have instructions.
const MOST: usize = 10_000;

pub(super) struct Read {
    pub escape: char,
    pub lines: Vec<Line>,
}

/// One instruction with everything that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub first: usize,
    pub last: usize,
    /// In capitals.
    pub keyword: String,
    pub rest: String,
    pub heredocs: Vec<Heredoc>,
}

/// `<<NAME` and what stands until the line `NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heredoc {
    pub name: String,
    /// `<<-`: tabs at the beginning of lines do not count.
    pub strips_tabs: bool,
    /// Not quoted: variables in it are replaced.
    pub expands: bool,
    /// As it stands there.
    pub raw: String,
}

impl Heredoc {
    /// What it says.
    pub fn content(&self) -> String {
        match self.strips_tabs {
            false => self.raw.clone(),
            true => self.raw.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect(),
        }
    }
}

pub(super) fn read(text: &str) -> Result<Read, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(at) = text.find('\0') {
        let line = text.get(..at).unwrap_or_default().lines().count().max(1);
        return Err(Problem::new(line, "it has a zero byte in it"));
    }
    let all: Vec<&str> = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
    let escape = directives(&all)?;
    let mut lines = Vec::new();
    let mut at = 0;
    while let Some(line) = all.get(at) {
        if is_comment(line) || line.trim().is_empty() {
            at += 1;
            continue;
        }
        let (line, next) = logical(&all, at, escape)?;
        at = next;
        lines.push(line);
        if lines.len() > MOST {
            return Err(Problem::new(at, format!("it has more than {MOST} instructions")));
        }
    }
    Ok(Read { escape, lines })
}

/// `# escape=` before anything else; `# syntax=` names a frontend that nobody runs here.
fn directives(all: &[&str]) -> Result<char, Problem> {
    let mut escape = None;
    for (number, line) in all.iter().enumerate() {
        let Some((name, value)) = line.strip_prefix('#').and_then(|line| line.split_once('=')) else { break };
        match name.trim().to_ascii_lowercase().as_str() {
            "escape" if escape.is_some() => {
                return Err(Problem::new(number + 1, "the directive escape is there twice"));
            }
            "escape" => match value.trim() {
                "\\" => escape = Some('\\'),
                "`" => escape = Some('`'),
                other => {
                    let message = format!("the directive escape is {other:?}");
                    return Err(Problem::new(number + 1, message).remedy("it can be \\ or `"));
                }
            },
            "syntax" | "check" => {}
            _ => break,
        }
    }
    Ok(escape.unwrap_or('\\'))
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// What a line says before its escape character, if that is the last thing on it.
fn continued(line: &str, escape: char) -> Option<&str> {
    let body = line.trim_end_matches([' ', '\t']).strip_suffix(escape)?;
    (!body.ends_with(escape)).then_some(body)
}

fn logical(all: &[&str], first: usize, escape: char) -> Result<(Line, usize), Problem> {
    let mut text = String::new();
    let mut at = first;
    let mut last = first;
    while let Some(line) = all.get(at) {
        // A comment, or nothing, between the parts of an instruction does not belong to it.
        if at > first && (is_comment(line) || line.trim().is_empty()) {
            at += 1;
            continue;
        }
        last = at;
        at += 1;
        match continued(line, escape) {
            Some(body) => text.push_str(body),
            None => {
                text.push_str(line);
                break;
            }
        }
    }
    let text = text.trim();
    let (keyword, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    let (keyword, rest) = (keyword.to_ascii_uppercase(), rest.trim().to_owned());
    let inner = match keyword.as_str() {
        "ONBUILD" => rest.split([' ', '\t']).next().unwrap_or_default().to_ascii_uppercase(),
        _ => keyword.clone(),
    };
    let mut heredocs = Vec::new();
    if matches!(inner.as_str(), "RUN" | "COPY" | "ADD") {
        for mut heredoc in markers(&rest, escape) {
            let (raw, next) = body(all, at, &heredoc).ok_or_else(|| {
                let message = format!("the heredoc {} is not closed", heredoc.name);
                Problem::new(first + 1, message).remedy(format!("write {} on a line of its own after it", heredoc.name))
            })?;
            heredoc.raw = raw;
            heredocs.push(heredoc);
            at = next;
            last = next - 1;
        }
    }
    Ok((Line { first: first + 1, last: last + 1, keyword, rest, heredocs }, at))
}

/// The heredocs that a line opens, in their order.
fn markers(rest: &str, escape: char) -> Vec<Heredoc> {
    words::split(rest, escape).iter().filter_map(|word| marker(word.before_operators())).collect()
}

/// `<<NAME`, `<<-NAME`, `3<<"NAME"`.
pub(super) fn marker(word: &[Piece]) -> Option<Heredoc> {
    let mut letters = word.iter().peekable();
    // The number of a file descriptor may come first.
    while letters.next_if(|piece| piece.is_plain(|letter| letter.is_ascii_digit())).is_some() {}
    for _ in 0..2 {
        letters.next_if(|piece| piece.is_plain(|letter| letter == '<'))?;
    }
    let strips_tabs = letters.next_if(|piece| piece.is_plain(|letter| letter == '-')).is_some();
    let rest: Vec<&Piece> = letters.collect();
    let expands = rest.iter().all(|piece| !piece.is_quoted);
    let name: String = rest.iter().map(|piece| piece.letter).collect();
    // `<<<` is something else, and so is a shift in arithmetic.
    let is_name =
        !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || "_-./+:@%,".contains(letter));
    is_name.then_some(Heredoc { name, strips_tabs, expands, raw: String::new() })
}

fn body(all: &[&str], first: usize, heredoc: &Heredoc) -> Option<(String, usize)> {
    let mut raw = String::new();
    for (number, line) in all.iter().enumerate().skip(first) {
        let end = if heredoc.strips_tabs { line.trim_start_matches('\t') } else { line };
        if end == heredoc.name {
            return Some((raw, number + 1));
        }
        raw.push_str(line);
        raw.push('\n');
    }
    None
}
