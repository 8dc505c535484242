//! Words of a line: quotes, escapes, flags, JSON.

use std::str::Chars;

use super::Problem;

/// A letter, and whether quotes or an escape protect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub letter: char,
    pub is_quoted: bool,
}

impl Piece {
    pub fn is_plain(&self, is_it: impl Fn(char) -> bool) -> bool {
        !self.is_quoted && is_it(self.letter)
    }
}

/// A word as it stands there, and as it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// With its quotes: variables in it are not replaced yet.
    pub raw: String,
    pieces: Vec<Piece>,
}

impl Word {
    /// What stands before a shell's operator: `<<EOF` of `<<EOF>file`.
    pub fn before_operators(&self) -> &[Piece] {
        let is_operator = |piece: &Piece| piece.is_plain(|letter| ">|&;()".contains(letter));
        let end = self.pieces.iter().position(is_operator).unwrap_or(self.pieces.len());
        self.pieces.get(..end).unwrap_or_default()
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// Splits at blanks that are not quoted. A quote that is never closed goes on to the end.
pub(super) fn split(text: &str, escape: char) -> Vec<Word> {
    let mut letters = text.chars();
    std::iter::from_fn(|| next(&mut letters, escape)).collect()
}

/// The next word. What follows it is not looked at: a line may have as many words as it has letters.
fn next(letters: &mut Chars<'_>, escape: char) -> Option<Word> {
    let mut word: Option<Word> = None;
    let mut quote = None;
    while let Some(letter) = letters.next() {
        if quote.is_none() && (letter == ' ' || letter == '\t') {
            match word {
                Some(_) => break,
                None => continue,
            }
        }
        let word = word.get_or_insert_with(|| Word { raw: String::new(), pieces: Vec::new() });
        word.raw.push(letter);
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if letter == open => quote = None,
            (None | Some('"'), _) if letter == escape => {
                let next = letters.next();
                word.raw.extend(next);
                word.pieces.extend(next.map(|letter| Piece { letter, is_quoted: true }));
            }
            _ => word.pieces.push(Piece { letter, is_quoted: quote.is_some() }),
        }
    }
    word
}

/// `--name` or `--name=value` before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flag {
    pub name: String,
    pub value: Option<String>,
}

/// Flags, and what follows them.
pub(super) fn flags(text: &str, escape: char) -> (Vec<Flag>, &str) {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t']);
    while rest.starts_with("--") {
        let Some(word) = next(&mut rest.chars(), escape) else { break };
        rest = rest.get(word.raw.len()..).unwrap_or_default().trim_start_matches([' ', '\t']);
        if word.raw == "--" {
            break;
        }
        let body = word.raw.get(2..).unwrap_or_default();
        found.push(match body.split_once('=') {
            None => Flag { name: body.to_owned(), value: None },
            Some((name, value)) => Flag { name: name.to_owned(), value: Some(value.to_owned()) },
        });
    }
    (found, rest)
}

/// `["a", "b"]`. `None` where it is no JSON: then it is meant for a shell.
pub(super) fn json(text: &str, line: usize) -> Result<Option<Vec<String>>, Problem> {
    if !text.trim_start().starts_with('[') {
        return Ok(None);
    }
    let Ok(values) = serde_json::from_str::<Vec<serde_json::Value>>(text) else { return Ok(None) };
    let strings = values.into_iter().map(|value| match value {
        serde_json::Value::String(text) => Ok(text),
        _ => Err(Problem::new(line, "its list has something other than strings").remedy("put quotes around each part")),
    });
    strings.collect::<Result<Vec<_>, _>>().map(Some)
}
