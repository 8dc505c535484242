//! Output as text: bytes that may be cut in the middle of a character.

/// The rest of a character that the next bytes complete.
#[derive(Default)]
pub struct Text {
    kept: Vec<u8>,
}

impl Text {
    /// What can be said by now. Bytes that are no text become the replacement character.
    pub fn take(&mut self, bytes: &[u8]) -> String {
        self.kept.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&self.kept) {
            Ok(_) => self.kept.len(),
            // Only an incomplete character at the very end may still become one.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => {
                let tail = (1..=3).rev().find(|count| {
                    let from = self.kept.len().saturating_sub(*count);
                    std::str::from_utf8(&self.kept[from..])
                        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
                });
                self.kept.len() - tail.unwrap_or(0)
            }
        };
        let said: Vec<u8> = self.kept.drain(..end).collect();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// What never became a character.
    pub fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.kept)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_whole_wherever_bytes_are_cut() {
        let text = "a€b😀ü";
        for cut in 1..text.len() {
            let mut said = Text::default();
            let mut whole = String::new();
            text.as_bytes().chunks(cut).for_each(|piece| whole.push_str(&said.take(piece)));
            assert_eq!(whole + &said.rest(), text, "{cut}");
        }
        let mut said = Text::default();
        assert_eq!(said.take(b"a\xffb\xe2\x82"), "a\u{fffd}b");
        assert_eq!(said.rest(), "\u{fffd}");
    }
}
