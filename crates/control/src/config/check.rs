//! Every wrong key of a configuration file, by its line.

use std::fmt;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub line: Option<usize>,
    pub key: String,
    pub message: String,
}

impl Problem {
    pub(super) fn whole(message: String) -> Self {
        Problem { line: None, key: String::new(), message }
    }

    pub(super) fn at(text: &str, span: Option<Range<usize>>, key: &str, message: &str) -> Self {
        let line = span.map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        Problem { line, key: key.to_owned(), message: message.to_owned() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Number,
    Table,
}

const KEYS: &[(&str, Kind)] = &[
    ("listen", Kind::Text),
    ("data", Kind::Text),
    ("database_url", Kind::Text),
    ("provider", Kind::Text),
    ("api_key", Kind::Text),
    ("public_url", Kind::Text),
    ("domain", Kind::Text),
    ("quota", Kind::Table),
    ("quota.cpus_per_sandbox", Kind::Number),
    ("quota.memory_per_sandbox", Kind::Integer),
    ("quota.disk_per_sandbox", Kind::Integer),
    ("quota.running_sandboxes", Kind::Integer),
    ("quota.sandboxes", Kind::Integer),
    ("quota.requests_per_second", Kind::Integer),
    ("prices", Kind::Table),
    ("prices.cpu_hour", Kind::Number),
    ("prices.memory_gib_hour", Kind::Number),
    ("prices.disk_gib_hour", Kind::Number),
    ("archive", Kind::Table),
    ("archive.url", Kind::Text),
    ("archive.endpoint", Kind::Text),
    ("archive.region", Kind::Text),
];

/// All that is wrong with a file's text; empty where nothing is.
pub fn check(text: &str) -> Vec<Problem> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return errors.iter().map(|error| Problem::at(text, error.span(), "", error.message())).collect();
    }
    let mut problems = Vec::new();
    walk(text, "", table.get_ref(), &mut problems);
    problems.sort_by_key(|problem| problem.line);
    problems
}

fn walk(text: &str, prefix: &str, table: &DeTable<'_>, problems: &mut Vec<Problem>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        let mut say = |message: String| problems.push(Problem::at(text, Some(name.span()), &key, &message));
        let Some((_, kind)) = KEYS.iter().find(|(known, _)| *known == key) else {
            say(match nearest(&key) {
                Some(known) => format!("no such key; is {known} meant?"),
                None => "no such key".into(),
            });
            continue;
        };
        match (kind, value.get_ref()) {
            (Kind::Table, DeValue::Table(inner)) => walk(text, &key, inner, problems),
            (Kind::Text, DeValue::String(_))
            | (Kind::Integer, DeValue::Integer(_))
            | (Kind::Number, DeValue::Integer(_) | DeValue::Float(_)) => {}
            (kind, found) => {
                let wanted = match kind {
                    Kind::Text => "a text",
                    Kind::Integer => "an integer",
                    Kind::Number => "a number",
                    Kind::Table => "a table",
                };
                let found = found.type_str();
                let article = if found.starts_with(['a', 'i']) { "an" } else { "a" };
                say(format!("{wanted} is wanted, not {article} {found}"));
            }
        }
    }
}

/// A known key that differs by two letters at most.
fn nearest(key: &str) -> Option<&'static str> {
    let best = KEYS.iter().map(|(known, _)| (distance(key, known), *known)).min()?;
    (best.0 <= 2).then_some(best.1)
}

/// Letters to add, drop or change (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
