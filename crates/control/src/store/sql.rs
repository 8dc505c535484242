//! Statements built from what a caller asks for.

/// A statement with optional conditions. Its text is constant; callers' values are bound.
pub(super) struct Sql {
    pub(super) text: String,
    pub(super) binds: Vec<String>,
}

impl Sql {
    pub(super) fn new(text: String) -> Self {
        Sql { text, binds: Vec::new() }
    }

    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    pub(super) fn bind(&mut self, value: impl Into<String>) -> &mut Self {
        self.binds.push(value.into());
        self.text.push_str(&format!("${}", self.binds.len()));
        self
    }
}
