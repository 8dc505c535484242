//! The budget of everything that comes in from outside: one place for the largest body, the deepest nesting, the longest
//! list, string and key.
//!
//! Every door asks here before it parses and before the domain sees anything, so that no request costs more than its
//! bytes. What exceeds a budget is refused with the name of the field and the limit. The OpenAPI document shows the same
//! numbers, taken from the same table.
//!
//! ```text
//!   path, query, headers ── door/parts ──┐
//!   body: size by route ─── door/size ───┼──▶ door ──▶ domain
//!   body: JSON by field ─── shape ───────┘
//!                             ▲ field: one table, also for the document
//! ```
//!
//! # Layout
//! * [`field`]: how long each field may be
//! * [`shape`]: one pass over JSON before it is parsed; also for what sandboxes say

pub mod field;
pub mod shape;

use serde::de::DeserializeOwned;

use crate::{Error, heavy};

/// Bytes of a body that says what shall be: settings, names, lists.
pub const MESSAGE: usize = 1 << 20;
/// Bytes of a body that carries content: code, a command with its input, a small file. Larger ones are streamed.
pub const CONTENT: usize = 16 << 20;
/// How deep JSON may be nested. Bodies of the three dialects need six levels.
pub const DEPTH: usize = 32;
/// What one body may weigh: each value 1, each object that is not empty [`shape::OBJECT`] more.
pub const VALUES: usize = 50_000;

/// Something that is larger than its budget, or has characters that it must not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Excess {
    /// Its path from the root, such as `network.allow`.
    pub field: String,
    pub problem: String,
}

impl From<Excess> for Error {
    fn from(Excess { field, problem }: Excess) -> Self {
        Error::Invalid { field, message: problem }
    }
}

/// Why a body was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Excess(#[from] Excess),
    /// Not JSON, or not of this shape.
    #[error("{0}")]
    Malformed(String),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Excess(excess) => excess.into(),
            Refused::Malformed(reason) => Error::invalid("body", reason),
        }
    }
}

/// Parses JSON of a client within the budget.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Refused> {
    shape::check(text)?;
    serde_json::from_slice(text).map_err(|error| Refused::Malformed(error.to_string()))
}

/// As [`parse`], away from the async workers where it takes longer.
pub async fn read<T: DeserializeOwned + Send + 'static>(text: bytes::Bytes) -> Result<T, Refused> {
    heavy::run(text.len(), heavy::SMALL, move || parse(&text)).await
}
