//! Which cells a session runs at this moment, for those who interrupt it.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::interpreter::Language;

/// How many cells run or wait, by session and language.
#[derive(Default)]
pub struct Cells(Mutex<HashMap<(String, Language), usize>>);

/// A cell, from its start to its end.
pub struct Running<'a> {
    cells: &'a Cells,
    of: (String, Language),
}

impl Cells {
    pub fn begin(&self, session: &str, language: &Language) -> Running<'_> {
        let of = (session.to_owned(), language.clone());
        *self.0.lock().expect("no panic while held").entry(of.clone()).or_default() += 1;
        Running { cells: self, of }
    }

    /// The languages in which a session runs cells.
    pub fn languages(&self, session: &str) -> Vec<Language> {
        let cells = self.0.lock().expect("no panic while held");
        cells.keys().filter(|(of, _)| of == session).map(|(_, language)| language.clone()).collect()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut cells = self.cells.0.lock().expect("no panic while held");
        if let Some(count) = cells.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                cells.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_runs_until_its_last_cell_has_ended() {
        let cells = Cells::default();
        let first = cells.begin("a", &Language::Python);
        let second = cells.begin("a", &Language::Python);
        let _other = cells.begin("b", &Language::Bash);
        drop(first);
        assert_eq!(cells.languages("a"), [Language::Python]);
        drop(second);
        assert!(cells.languages("a").is_empty());
        assert_eq!(cells.languages("b"), [Language::Bash]);
    }
}
