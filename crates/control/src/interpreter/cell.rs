//! A cell: what is run, what happens while it runs, what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::{ContextId, Language};

/// Code to run in a context.
#[derive(Debug, Clone)]
pub struct Cell {
    pub code: String,
    /// The language's default context where absent.
    pub context: Option<ContextId>,
    /// Of the default context; a named context has its own.
    pub language: Language,
    /// Set for this cell and put back after it.
    pub env: BTreeMap<String, String>,
    /// After this the cell is interrupted and its context goes on.
    pub timeout: Option<Duration>,
}

impl Cell {
    pub fn new(language: Language, code: impl Into<String>) -> Self {
        Cell { code: code.into(), context: None, language, env: BTreeMap::new(), timeout: None }
    }
}

/// The MIME type under which a table's columns travel: name to list of values.
pub const DATA: &str = "application/vnd.cove.data+json";
/// The MIME type under which a figure's chart travels.
pub const CHART: &str = "application/vnd.cove.chart+json";

/// Something that happened while a cell ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CellEvent {
    /// The context's count of cells, this one included.
    Started {
        count: u64,
    },
    Stdout {
        text: String,
    },
    Stderr {
        text: String,
    },
    Result(CellResult),
    Error(CellError),
    /// Always last.
    Done,
}

/// A value shown: MIME type to text, base64 (images, PDF) or JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CellResult {
    /// The value of the cell's last expression, rather than something displayed on the way.
    pub main: bool,
    #[schema(value_type = Object)]
    pub data: BTreeMap<String, Value>,
}

impl CellEvent {
    /// About how many bytes of memory it takes.
    pub fn size(&self) -> usize {
        match self {
            CellEvent::Stdout { text } | CellEvent::Stderr { text } => text.len(),
            CellEvent::Result(result) => result.size(),
            CellEvent::Error(error) => error.value.len() + error.traceback.len(),
            CellEvent::Started { .. } | CellEvent::Done => 0,
        }
    }
}

impl CellResult {
    /// About how many bytes of memory it takes.
    fn size(&self) -> usize {
        RESULT + self.data.iter().map(|(kind, value)| kind.len() + size(value)).sum::<usize>()
    }
}

/// As deep as the parser goes, which is not far.
fn size(value: &Value) -> usize {
    const VALUE: usize = 32;
    const OBJECT: usize = 640;
    VALUE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(size).sum(),
            Value::Object(fields) => OBJECT + fields.iter().map(|(key, value)| key.len() + size(value)).sum::<usize>(),
        }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CellError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

/// The name of the error of a cell whose sandbox ended before it did.
pub const SANDBOX_GONE: &str = "SandboxGone";

impl CellError {
    pub fn new(name: &str, value: impl Into<String>) -> Self {
        CellError { name: name.to_owned(), value: value.into(), traceback: String::new() }
    }
}

/// What a whole cell came to, for callers that do not stream. Output beyond the bound is cut and the cut is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<CellResult>,
    pub error: Option<CellError>,
    pub execution_count: u64,
    /// About how many bytes the results take.
    #[serde(skip)]
    #[schema(ignore)]
    held: usize,
}

/// Bytes of each stream kept in an [`Outcome`].
const KEPT: usize = 8 << 20;
/// Results kept in an [`Outcome`], in bytes of memory.
const KEPT_RESULTS: usize = 64 << 20;
/// What a result takes that shows nothing.
const RESULT: usize = 1 << 10;

impl Outcome {
    pub fn take(&mut self, event: CellEvent) {
        match event {
            CellEvent::Started { count } => self.execution_count = count,
            CellEvent::Stdout { text } => append(&mut self.stdout, &text),
            CellEvent::Stderr { text } => append(&mut self.stderr, &text),
            CellEvent::Result(result) => {
                let size = result.size();
                if self.held + size <= KEPT_RESULTS {
                    self.held += size;
                    self.results.push(result);
                }
            }
            CellEvent::Error(error) => self.error = self.error.take().or(Some(error)),
            CellEvent::Done => {}
        }
    }

    /// The text of the last expression's value.
    pub fn text(&self) -> Option<&str> {
        self.results.iter().find(|result| result.main)?.data.get("text/plain")?.as_str()
    }
}

fn append(whole: &mut String, text: &str) {
    const CUT: &str = "\n[output cut: over 8 MiB; stream it, or write it to a file]\n";
    if whole.len() + text.len() <= KEPT {
        whole.push_str(text);
    } else if !whole.ends_with(CUT) {
        whole.push_str(CUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_output_is_cut_once_and_says_so() {
        let mut outcome = Outcome::default();
        for _ in 0..20 {
            outcome.take(CellEvent::Stdout { text: "x".repeat(1 << 20) });
        }
        assert!(outcome.stdout.len() < KEPT + 200);
        assert_eq!(outcome.stdout.matches("output cut").count(), 1);
    }

    #[test]
    fn results_are_kept_by_what_they_take_not_by_their_number() {
        let lists = CellResult { main: false, data: [("a".into(), vec![Value::Null; 1 << 20].into())].into() };
        let nothing = CellResult { main: false, data: BTreeMap::new() };
        let mut outcome = Outcome::default();
        for _ in 0..4 {
            outcome.take(CellEvent::Result(lists.clone()));
        }
        assert_eq!(outcome.results.len(), 1, "32 MiB each");
        for _ in 0..100_000 {
            outcome.take(CellEvent::Result(nothing.clone()));
        }
        assert!(outcome.results.len() < 40_000, "{}", outcome.results.len());
    }

    #[test]
    fn the_first_error_is_the_one_told() {
        let mut outcome = Outcome::default();
        outcome.take(CellEvent::Error(CellError::new("A", "first")));
        outcome.take(CellEvent::Error(CellError::new("B", "second")));
        assert_eq!(outcome.error.unwrap().name, "A");
    }
}
