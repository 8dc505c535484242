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

    /// Values of a list, with commas between them. None of them is no list.
    pub(super) fn bind_all<'a>(&mut self, values: impl IntoIterator<Item = &'a str>) -> &mut Self {
        for (place, value) in values.into_iter().enumerate() {
            self.push(if place == 0 { "" } else { ", " }).bind(value);
        }
        self
    }

    pub(super) fn bind(&mut self, value: impl Into<String>) -> &mut Self {
        self.binds.push(value.into());
        self.text.push_str(&format!("${}", self.binds.len()));
        self
    }
}
