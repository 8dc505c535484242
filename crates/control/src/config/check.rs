//! Every wrong key of a configuration file, by its line.

use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Route;
use super::key::{KIND, Kind, is_table, named, nearest};
use super::rules::provider_name;
use crate::nearest::distance;
use crate::provider;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub line: Option<usize>,
    /// The key, or the variable or flag that set it.
    pub key: String,
    pub message: String,
}

impl Problem {
    pub(super) fn whole(message: String) -> Self {
        Problem { line: None, key: String::new(), message }
    }

    pub(super) fn of(key: &str, message: impl Into<String>) -> Self {
        Problem { line: None, key: key.to_owned(), message: message.into() }
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

/// A key of the file that is right, and its line.
pub(super) type Found = (String, usize);

/// All mistakes in a file's text; empty where there are none.
pub fn check(text: &str) -> Vec<Problem> {
    look(text).1
}

/// The valid keys and the mistakes in a file's text.
pub(super) fn look(text: &str) -> (Vec<Found>, Vec<Problem>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problems = errors.iter().map(|error| Problem::at(text, error.span(), "", error.message()));
        return (Vec::new(), problems.collect());
    }
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    walk(text, "", table.get_ref(), &mut found, &mut problems);
    problems.sort_by_key(|problem| problem.line);
    (found, problems)
}

fn walk(text: &str, prefix: &str, table: &DeTable<'_>, found: &mut Vec<Found>, problems: &mut Vec<Problem>) {
    for (name, value) in table {
        let path = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        let mut say = |message: String| problems.push(Problem::at(text, Some(name.span()), &path, &message));
        match (named(&path), value.get_ref()) {
            (Some(key), value) => match refusal(key.kind, value) {
                Some(reason) => say(reason),
                None => found.push((path, line(text, name.span()))),
            },
            (None, DeValue::Array(inner)) if path == ROUTES => {
                let before = problems.len();
                inner.iter().for_each(|route| self::route(text, route, problems));
                if problems.len() == before {
                    found.push((path, line(text, name.span())));
                }
            }
            (None, value) if path == ROUTES => {
                say(format!("write [[{ROUTES}]]; tables are wanted, not {}", called(value)))
            }
            (None, DeValue::Table(inner)) if path == PROVIDERS => providers(text, inner, found, problems),
            (None, DeValue::Table(inner)) if is_table(&path) => walk(text, &path, inner, found, problems),
            (None, value) if path == PROVIDERS || is_table(&path) => {
                say(format!("a table is wanted, not {}", called(value)));
            }
            (None, _) => say(match nearest(&path) {
                Some(known) => format!("no such key; is {known} meant?"),
                None => "no such key".into(),
            }),
        }
    }
}

/// The table of tables whose keys depend on their kind.
pub(super) const PROVIDERS: &str = "providers";

/// The list of tables about new sandboxes.
pub(super) const ROUTES: &str = "routes";

/// One `[[routes]]`.
fn route(text: &str, route: &Spanned<DeValue<'_>>, problems: &mut Vec<Problem>) {
    let DeValue::Table(table) = route.get_ref() else {
        let message = format!("a table is wanted, not {}", called(route.get_ref()));
        return problems.push(Problem::at(text, Some(route.span()), ROUTES, &message));
    };
    for (name, value) in table {
        let (span, name): (_, &str) = (name.span(), name.get_ref());
        let refused = match Route::KEYS.contains(&name) {
            true => refusal(Kind::Text, value.get_ref()),
            false => Some(format!("no such key of a route, which has {}", Route::KEYS.join(", "))),
        };
        if let Some(reason) = refused {
            problems.push(Problem::at(text, Some(span), &format!("{ROUTES}.{name}"), &reason));
        }
    }
}

fn providers(text: &str, table: &DeTable<'_>, found: &mut Vec<Found>, problems: &mut Vec<Problem>) {
    for (name, value) in table {
        let path = format!("{PROVIDERS}.{}", name.get_ref());
        let mut say = |message: String| problems.push(Problem::at(text, Some(name.span()), &path, &message));
        if let Some(message) = provider_name(name.get_ref()) {
            say(message);
            continue;
        }
        match value.get_ref() {
            DeValue::Table(inner) => match inner.iter().any(|(key, _)| key.get_ref() == KIND) {
                true => section(text, &path, inner, found, problems),
                false => say(format!("needs {KIND}, one of {}", provider::Kind::names())),
            },
            value => say(format!("a table is wanted, not {}", called(value))),
        }
    }
}

/// One `[providers.NAME]`.
fn section(text: &str, path: &str, table: &DeTable<'_>, found: &mut Vec<Found>, problems: &mut Vec<Problem>) {
    let kind = table.iter().find(|(key, _)| key.get_ref() == KIND).and_then(|(_, value)| match value.get_ref() {
        DeValue::String(word) => provider::Kind::named(word),
        _ => None,
    });
    for (name, value) in table {
        let (span, name): (_, &str) = (name.span(), name.get_ref());
        let path = format!("{path}.{name}");
        let refused = match (name == KIND, kind) {
            (true, None) => Some(format!("one of {} is wanted", provider::Kind::names())),
            (true, Some(_)) => None,
            // What it may have is not known.
            (false, None) => continue,
            (false, Some(kind)) => match kind.keys.iter().find(|key| key.name == name) {
                Some(key) => refusal(key.kind, value.get_ref()),
                None => Some(no_such_key(kind, name)),
            },
        };
        match refused {
            Some(reason) => problems.push(Problem::at(text, Some(span), &path, &reason)),
            None => found.push((path, line(text, span))),
        }
    }
}

fn no_such_key(kind: &provider::Kind, name: &str) -> String {
    let near = kind.keys.iter().map(|key| (distance(name, key.name), key.name)).min().filter(|(far, _)| *far <= 2);
    match near {
        Some((_, known)) => format!("no such key; is {known} meant?"),
        None => format!("no such key of a provider of kind {}", kind.name),
    }
}

fn line(text: &str, span: Range<usize>) -> usize {
    Problem::at(text, Some(span), "", "").line.unwrap_or_default()
}

fn refusal(kind: Kind, value: &DeValue<'_>) -> Option<String> {
    let negative = || Some("must not be negative".to_owned());
    match (kind, value) {
        (Kind::Integer | Kind::Number, DeValue::Integer(number)) if number.as_str().starts_with('-') => negative(),
        (Kind::Number, DeValue::Float(number)) if number.as_str().starts_with('-') => negative(),
        (Kind::Text, DeValue::String(_))
        | (Kind::Integer, DeValue::Integer(_))
        | (Kind::Number, DeValue::Integer(_) | DeValue::Float(_))
        | (Kind::Switch, DeValue::Boolean(_)) => None,
        (kind, found) => Some(format!("{} is wanted, not {}", kind.wanted(), called(found))),
    }
}

fn called(value: &DeValue<'_>) -> String {
    let word = value.type_str();
    format!("{} {word}", if word.starts_with(['a', 'i']) { "an" } else { "a" })
}
