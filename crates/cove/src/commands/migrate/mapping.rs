//! Which sandbox became which, and how far each is: the file that a broken-off migration goes on with, and that people give
//! to their own database.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::complaint::{Complaint, doing};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    #[default]
    Found,
    Made,
    Verified,
    Done,
}

impl Stage {
    pub fn word(self) -> &'static str {
        match self {
            Stage::Found => "found",
            Stage::Made => "made",
            Stage::Verified => "verified",
            Stage::Done => "done",
        }
    }

    fn read(word: &str) -> Option<Stage> {
        [Stage::Found, Stage::Made, Stage::Verified, Stage::Done].into_iter().find(|stage| stage.word() == word)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    pub old_id: String,
    pub new_id: Option<String>,
    pub name: Option<String>,
    pub stage: Stage,
    /// It rested at its origin, was woken to be copied, and is not put back yet.
    pub woken: bool,
    pub files: u64,
    pub bytes: u64,
    /// Of each folder.
    pub digest: String,
    /// Why it did not get further.
    pub note: String,
}

const HEADINGS: &str = "old_id,new_id,name,stage,woken,files,bytes,digest,note";

pub struct Mapping {
    path: PathBuf,
    rows: BTreeMap<String, Row>,
}

impl Mapping {
    /// What an earlier run left, or nothing.
    pub fn open(path: &Path) -> Result<Mapping, Complaint> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Mapping { path, rows: BTreeMap::new() }),
            Err(error) => return Err(doing(format!("read {}", path.display()))(error)),
        };
        let read = if is_csv(&path) { of_csv(&text) } else { serde_json::from_str(&text).ok() };
        let rows: Vec<Row> = read.ok_or_else(|| {
            Complaint::usage(format!("{} is not the mapping of a migration", path.display()))
                .hint("name another file: --mapping FILE")
        })?;
        Ok(Mapping { path, rows: rows.into_iter().map(|row| (row.old_id.clone(), row)).collect() })
    }

    pub fn row(&self, old_id: &str) -> Option<&Row> {
        self.rows.get(old_id)
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// Changes a row; it is on the disk when this returns.
    pub fn note(&mut self, old_id: &str, change: impl FnOnce(&mut Row)) -> Result<(), Complaint> {
        let row = self.rows.entry(old_id.to_owned()).or_default();
        row.old_id = old_id.to_owned();
        change(row);
        let text = if is_csv(&self.path) {
            to_csv(self.rows.values())
        } else {
            let rows: Vec<&Row> = self.rows.values().collect();
            let text = serde_json::to_string_pretty(&rows);
            text.map_err(|error| Complaint::failed(format!("write {}: {error}", self.path.display())))? + "\n"
        };
        cove_sys::replacement::replace(&self.path, text.as_bytes(), 0o600)
            .map_err(doing(format!("write {}", self.path.display())))
    }
}

fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "csv")
}

/// RFC 4180: what has a comma, a quote or a line break is quoted.
fn to_csv<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let cell = |text: &str| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let mut text = format!("{HEADINGS}\n");
    for row in rows {
        let (new_id, name) = (row.new_id.clone().unwrap_or_default(), row.name.clone().unwrap_or_default());
        let (files, bytes) = (row.files.to_string(), row.bytes.to_string());
        let woken = if row.woken { "yes" } else { "no" };
        let cells = [&row.old_id, &new_id, &name, row.stage.word(), woken, &files, &bytes, &row.digest, &row.note];
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

fn of_csv(text: &str) -> Option<Vec<Row>> {
    let mut lines = cells(text)?.into_iter();
    if lines.next()?.join(",") != HEADINGS {
        return None;
    }
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    lines
        .map(|line| {
            let [old_id, new_id, name, stage, woken, files, bytes, digest, note] = &line[..] else { return None };
            Some(Row {
                old_id: old_id.clone(),
                new_id: some(new_id),
                name: some(name),
                stage: Stage::read(stage)?,
                woken: woken == "yes",
                files: files.parse().ok()?,
                bytes: bytes.parse().ok()?,
                digest: digest.clone(),
                note: note.clone(),
            })
        })
        .collect()
}

fn cells(text: &str) -> Option<Vec<Vec<String>>> {
    let (mut lines, mut line, mut cell, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quoted) {
            ('"', true) if letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => line.push(std::mem::take(&mut cell)),
            ('\n', false) => {
                line.push(std::mem::take(&mut cell));
                lines.push(std::mem::take(&mut line));
            }
            ('\r', false) => {}
            (letter, _) => cell.push(letter),
        }
    }
    (!quoted && line.is_empty() && cell.is_empty()).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            old_id: "6f3a-1".into(),
            new_id: Some("abc".into()),
            name: None,
            stage: Stage::Verified,
            woken: true,
            files: 3,
            bytes: 17,
            digest: "ab".into(),
            note: "it said \"no, never\"\nand went".into(),
        }
    }

    #[test]
    fn a_mapping_is_read_as_it_was_written_in_both_forms() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["m.json", "m.csv"] {
            let path = folder.path().join(name);
            let mut mapping = Mapping::open(&path).unwrap();
            mapping.note("6f3a-1", |noted| *noted = row()).unwrap();
            mapping.note("other", |noted| noted.stage = Stage::Done).unwrap();
            let again = Mapping::open(&path).unwrap();
            assert_eq!((again.row("6f3a-1"), again.rows().count()), (Some(&row()), 2), "{name}");
            assert_eq!(again.row("other").unwrap().stage, Stage::Done);
        }
    }

    #[test]
    fn a_file_of_something_else_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("m.json", "{}"), ("m.csv", "a,b\n1,2\n"), ("n.csv", "old_id,\"")] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            assert!(Mapping::open(&path).is_err(), "{name}");
        }
    }
}
