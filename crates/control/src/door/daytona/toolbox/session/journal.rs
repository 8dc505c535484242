//! What a session's shell says of its commands.
//!
//! The sandbox writes it, and could write anything: a line that makes no sense is passed over, and a lie only misleads
//! whoever asks about that sandbox.

use std::collections::HashMap;

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub text: String,
    /// Absent while it runs.
    pub code: Option<i32>,
}

impl Entry {
    /// The exit code; that of the shell, where the command took the shell with it.
    pub fn code(&self, shell: Option<i32>) -> Option<i32> {
        self.code.or(shell)
    }

    pub fn view(&self, shell: Option<i32>) -> Value {
        let mut view = json!({ "id": self.id, "command": self.text });
        if let Some(code) = self.code(shell) {
            view["exitCode"] = code.into();
        }
        view
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Journal {
    pub commands: Vec<Entry>,
    /// Where the newest command of an id is: the sandbox writes as many ends as it likes.
    newest: HashMap<String, usize>,
}

/// Commands that are told of one session.
const MOST: usize = 100_000;

impl Journal {
    pub fn parse(text: &str) -> Self {
        let mut journal = Journal::default();
        for line in text.lines() {
            journal.read(line);
        }
        journal
    }

    pub fn read(&mut self, line: &str) {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("+"), Some(id), Some(_relay), text) if self.commands.len() < MOST => {
                let text = unescape(text.unwrap_or_default());
                self.newest.insert(id.into(), self.commands.len());
                self.commands.push(Entry { id: id.into(), text, code: None });
            }
            (Some("-"), Some(id), Some(code), None) => {
                let ended = self.newest.get(id).and_then(|&place| self.commands.get_mut(place));
                if let (Some(ended), Ok(code)) = (ended, code.parse()) {
                    ended.code = Some(code);
                }
            }
            _ => {}
        }
    }

    pub fn find(&self, id: &str) -> Option<&Entry> {
        self.commands.iter().find(|command| command.id == id)
    }
}

/// One line without spaces that `printf %b` turns back: what is not a plain letter is an octal escape.
pub fn escape(text: &str) -> String {
    use std::fmt::Write;
    let mut escaped = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b',' | b'_' | b'=' | b':' => {
                escaped.push(byte as char)
            }
            // `\0` takes up to three digits, so all three are always there.
            _ => write!(escaped, "\\0{byte:03o}").expect("a string takes all"),
        }
    }
    escaped
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .strip_prefix(b"0")
            .and_then(|digits| digits.get(..3))
            .and_then(|digits| std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok()));
        match (byte, octal) {
            (b'\\', Some(value)) => {
                bytes.push(value);
                rest = &tail[4..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn an_escaped_command_is_one_word_and_comes_back(text in "\\PC{0,80}|[ -~\n\t]{0,80}") {
            let escaped = escape(&text);
            proptest::prop_assert!(!escaped.contains([' ', '\n', '\t']));
            proptest::prop_assert_eq!(unescape(&escaped), text);
        }

        #[test]
        fn whatever_the_sandbox_writes_never_panics(text in "[\\x00-\\x7f]{0,200}") {
            Journal::parse(&text);
        }
    }

    #[test]
    fn a_command_runs_until_its_end_is_noted() {
        let journal = Journal::parse("+ a 7 echo\\0040hi\n- a 3\nnoise\n+ b 8 sleep\n");
        assert_eq!(journal.find("a").unwrap(), &Entry { id: "a".into(), text: "echo hi".into(), code: Some(3) });
        assert_eq!(journal.find("b").unwrap().code(None), None);
        assert_eq!(journal.find("b").unwrap().code(Some(137)), Some(137));
    }

    #[test]
    fn a_flood_of_commands_that_never_began_is_read_in_a_moment() {
        let begun = std::time::Instant::now();
        let text = format!("{}{}", "+ a 1 x\n".repeat(200_000), "- b 0\n".repeat(200_000));
        assert_eq!(Journal::parse(&text).commands.len(), MOST);
        // Looked for among all others, each end costs 100,000 comparisons.
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
