//! Splits a sandbox's output, which comes in arbitrary pieces, into lines.
//!
//! The sandbox is hostile: a line has a maximum length, and each byte is read and moved once, however the output is
//! cut.

/// The incomplete line at the end.
#[derive(Debug)]
pub struct Lines {
    held: Vec<u8>,
    longest: usize,
}

/// A line is longer than the maximum.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of over {0} bytes")]
pub struct TooLong(usize);

impl Lines {
    pub fn of_at_most(longest: usize) -> Lines {
        Lines { held: Vec::new(), longest }
    }

    /// Returns the lines that this piece completes, each with its line break.
    pub fn take(&mut self, piece: &[u8]) -> Result<Vec<u8>, TooLong> {
        let whole = match piece.iter().rposition(|byte| *byte == b'\n') {
            None => {
                self.held.extend_from_slice(piece);
                Vec::new()
            }
            Some(end) => {
                let (last, rest) = piece.split_at(end + 1);
                let mut whole = std::mem::replace(&mut self.held, rest.to_vec());
                whole.extend_from_slice(last);
                whole
            }
        };
        if self.held.len() > self.longest { Err(TooLong(self.longest)) } else { Ok(whole) }
    }
}

/// Each line of what [`Lines::take`] returned, without its line break.
pub fn each(whole: &[u8]) -> impl Iterator<Item = &[u8]> {
    whole.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = b"one\n\ntwo words\nthree";
        for size in 1..text.len() {
            let mut lines = Lines::of_at_most(100);
            let mut seen: Vec<Vec<u8>> = Vec::new();
            for piece in text.chunks(size) {
                seen.extend(each(&lines.take(piece).unwrap()).map(<[u8]>::to_vec));
            }
            assert_eq!(seen, [b"one".to_vec(), Vec::new(), b"two words".to_vec()], "pieces of {size}");
            assert_eq!(lines.held, b"three");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = Lines::of_at_most(10);
        assert_eq!(lines.take(b"0123456789"), Ok(Vec::new()));
        assert_eq!(lines.take(b"0"), Err(TooLong(10)));
    }

    #[test]
    fn a_flood_of_empty_lines_costs_no_more_than_its_bytes() {
        let begun = std::time::Instant::now();
        let mut lines = Lines::of_at_most(10);
        let flood = vec![b'\n'; 1 << 20];
        assert_eq!(each(&lines.take(&flood).unwrap()).count(), 1 << 20);
        // Moving the rest for each line would copy 500 GB for this one frame.
        assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    }
}
