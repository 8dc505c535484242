//! A Dockerfile into stages and steps that somebody else carries out.
//!
//! ```text
//!  text ─▶ lines ─▶ instructions ─▶ plan: stages, FROM resolved ─▶ context: one step after the other ─▶ actions
//!         (heredocs, continuations)   (build arguments, target)     (environment, user, directory)
//! ```
//!
//! Nothing is run here and no file is read. What an instruction means depends on the environment of the image below it,
//! which is known only when that image is there: so steps keep their words, and a [`Context`] expands them in turn.
//! What this builder cannot do is refused with the line and a remedy, never passed over.

mod context;
mod expand;
mod ignore;
mod instruction;
mod key;
mod lines;
mod mount;
mod pattern;
mod plan;
mod words;

use std::fmt;

pub use context::{Action, Command, Context, Inline, Network, Run, Source, Transfer};
pub use ignore::Ignore;
pub use instruction::{Form, Instruction, Kind};
pub use key::{VERSION, key};
pub use lines::Heredoc;
pub use mount::{Mount, Secret};
pub use pattern::{Pattern, Stars};
pub use plan::{Base, Order, Plan, Stage, Urls, triggers};

/// The largest Dockerfile.
pub const LARGEST: usize = 1 << 20;

/// Replaces `$name`, `${name:-else}` and the like in a word, and takes its quotes away: for steps that come without a
/// Dockerfile. The error is a sentence.
pub fn expand(word: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    expand::word(word, &|name| lookup(name).map(std::borrow::Cow::Owned), '\\')
}

/// What is wrong with a Dockerfile, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1.
    pub line: usize,
    pub message: String,
    pub remedy: Option<String>,
}

impl Problem {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
        Problem { line, message: message.into(), remedy: None }
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Problem { remedy: Some(remedy.into()), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dockerfile line {}: {}", self.line, self.message)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for Problem {}

/// One instruction, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// First and last line, counted from 1, heredocs included.
    pub lines: (usize, usize),
    /// As one line: for logs.
    pub text: String,
    pub instruction: Instruction,
}

/// A Dockerfile that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    steps: Vec<Step>,
    /// `\`, or what a directive says.
    escape: char,
}

impl Dockerfile {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        if text.len() > LARGEST {
            return Err(Problem::new(1, format!("it has {} bytes; {LARGEST} are allowed", text.len())));
        }
        let read = lines::read(text)?;
        let steps =
            read.lines.into_iter().map(|line| instruction::step(line, read.escape)).collect::<Result<_, _>>()?;
        Ok(Dockerfile { steps, escape: read.escape })
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn escape(&self) -> char {
        self.escape
    }
}

#[cfg(test)]
mod tests;
