//! Bash has no JSON: a cell is a line that evaluates it, and marks of random bytes on both streams show its end.

use super::Cell;

/// What the driver line prints when the cell ends: on stdout with the exit status, on stderr without.
pub fn mark(id: &str) -> String {
    format!("\u{1}cove:{id}:")
}

/// One line for bash's standard input. The cell itself reads from nothing.
pub fn request(id: &str, cell: &Cell) -> Vec<u8> {
    let mut line = String::new();
    let mark = mark(id);
    if cell.env.is_empty() {
        line.push_str(&format!("eval {} </dev/null", quote(&cell.code)));
    } else {
        // The variables apply to this cell; their old values are restored after it.
        for key in cell.env.keys() {
            line.push_str(&format!("declare __cove_{key}=\"${{{key}-}}\" __cove_set_{key}=\"${{{key}+x}}\"; "));
        }
        for (key, value) in &cell.env {
            line.push_str(&format!("export {key}={}; ", quote(value)));
        }
        line.push_str(&format!("eval {} </dev/null", quote(&cell.code)));
    }
    line.push_str("; __cove_status=$?; ");
    for key in cell.env.keys() {
        line.push_str(&format!(
            "if [ \"$__cove_set_{key}\" ]; then {key}=\"$__cove_{key}\"; else unset {key}; fi; unset __cove_{key} __cove_set_{key}; "
        ));
    }
    let mark = quote(&mark);
    line.push_str(&format!("printf '%s%d\\001' {mark} \"$__cove_status\"; printf '%s\\001' {mark} >&2\n"));
    line.into_bytes()
}

/// Quotes a text as one word for bash: `$'…'`.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 8);
    quoted.push_str("$'");
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\'' => quoted.push_str("\\'"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\0' => {} // bash cannot hold it
            character if (character as u32) < 0x20 => quoted.push_str(&format!("\\x{:02x}", character as u32)),
            character => quoted.push(character),
        }
    }
    quoted.push('\'');
    quoted
}

/// The most digits of an exit status.
const LONGEST_STATUS: usize = 16;

/// One stream of bash on its way to text events: finds the mark even when it comes in pieces, and never cuts a UTF-8 character.
pub struct Stream {
    mark: Vec<u8>,
    held: Vec<u8>,
    /// The text between the mark and its end: the exit status, on stdout.
    pub status: Option<String>,
}

impl Stream {
    pub fn new(id: &str) -> Self {
        Stream { mark: mark(id).into_bytes(), held: Vec::new(), status: None }
    }

    /// Takes bytes and returns the text that certainly belongs to the cell.
    pub fn take(&mut self, bytes: &[u8]) -> String {
        if self.status.is_some() {
            return String::new();
        }
        self.held.extend_from_slice(bytes);
        if let Some(at) = find(&self.held, &self.mark) {
            let after = &self.held[at + self.mark.len()..];
            if let Some(end) = after.iter().position(|&byte| byte == 1) {
                self.status = Some(String::from_utf8_lossy(&after[..end]).into_owned());
                let text = String::from_utf8_lossy(&self.held[..at]).into_owned();
                self.held.clear();
                return text;
            }
            // Code that imitates the mark has its text shown like any other: only a status is waited for.
            return self.give(if after.len() > LONGEST_STATUS { self.held.len() } else { at });
        }
        let possible = (1..self.mark.len()).rev().find(|&n| self.held.ends_with(&self.mark[..n])).unwrap_or(0);
        self.give(self.held.len() - possible)
    }

    /// The first `length` buffered bytes as text, without an incomplete character at the end.
    fn give(&mut self, length: usize) -> String {
        let whole = match std::str::from_utf8(&self.held[..length]) {
            Ok(_) => length,
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => length,
        };
        let rest = self.held.split_off(whole);
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held = rest;
        text
    }
}

fn find(whole: &[u8], part: &[u8]) -> Option<usize> {
    whole.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_in_pieces_and_not_shown() {
        let mut stream = Stream::new("ab");
        let mut seen = String::new();
        for byte in "hé\u{1}x\n\u{1}cove:ab:7\u{1}".bytes() {
            seen.push_str(&stream.take(&[byte]));
        }
        assert_eq!(seen, "hé\u{1}x\n");
        assert_eq!(stream.status.as_deref(), Some("7"));
    }

    #[test]
    fn a_mark_that_never_ends_is_text_and_not_kept() {
        let mut stream = Stream::new("ab");
        let imitated = format!("\u{1}cove:ab:{}", "7".repeat(100));
        assert_eq!(stream.take(imitated.as_bytes()), imitated);
        assert!(stream.held.is_empty());
        assert_eq!(stream.take(b"\x01cove:ab:0\x01"), "");
        assert_eq!(stream.status.as_deref(), Some("0"));
    }

    #[test]
    fn quotes_and_newlines_survive() {
        assert_eq!(quote("a'b\n\\"), "$'a\\'b\\n\\\\'");
    }
}
