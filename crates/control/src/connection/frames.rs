//! Counts the bytes of an incomplete WebSocket message, from the frames' headers as they pass (RFC 6455, 5.2).
//!
//! The code that assembles messages keeps the parts of one until it is complete. This counts how many bytes that are
//! and since when, without reading the content.

/// The position in the stream of frames.
#[derive(Debug, Default)]
pub struct Frames {
    head: Vec<u8>,
    /// The current frame.
    frame: Frame,
    /// Bytes of the message so far.
    pending: u64,
    /// Whether a message has begun and is incomplete.
    in_message: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Frame {
    /// Bytes of its mask and payload that are still to come.
    left: u64,
    /// A ping, a pong or a close: it may come between the parts of a message and does not end it.
    is_control: bool,
    /// Whether it completes its message.
    is_last: bool,
}

impl Frames {
    /// Counts what was read. Returns whether it completed at least one message.
    pub fn pass(&mut self, mut bytes: &[u8]) -> bool {
        let mut whole = false;
        while let Some((first, rest)) = bytes.split_first() {
            if self.frame.left == 0 {
                self.head.push(*first);
                bytes = rest;
                let Some(frame) = parsed(&self.head) else { continue };
                self.head.clear();
                self.frame = frame;
                self.in_message |= !frame.is_control;
            } else {
                let count = (bytes.len() as u64).min(self.frame.left);
                bytes = &bytes[count as usize..];
                self.frame.left -= count;
                self.pending += if self.frame.is_control { 0 } else { count };
            }
            if self.frame.left == 0 && self.frame.is_last && !self.frame.is_control {
                (self.pending, self.in_message) = (0, false);
                whole = true;
            }
        }
        whole
    }

    /// Bytes that wait for the rest of their message.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    pub fn is_unfinished(&self) -> bool {
        self.in_message || self.frame.left > 0 || !self.head.is_empty()
    }
}

/// Parses a frame's header; `None` while the header is incomplete.
fn parsed(head: &[u8]) -> Option<Frame> {
    let (first, second) = (*head.first()?, *head.get(1)?);
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let length = match second & 0x7f {
        126 => u64::from(u16::from_be_bytes(head.get(2..4)?.try_into().ok()?)),
        127 => u64::from_be_bytes(head.get(2..10)?.try_into().ok()?),
        short => u64::from(short),
    };
    Some(Frame { left: length.saturating_add(mask), is_control: first & 0x08 != 0, is_last: first & 0x80 != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![first];
        match payload {
            0..126 => frame.push(0x80 | payload as u8),
            126..65536 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(payload as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(payload as u64).to_be_bytes());
            }
        }
        frame.resize(frame.len() + 4 + payload, 0);
        frame
    }

    #[test]
    fn what_is_not_whole_is_counted_however_it_is_cut() {
        for payload in [0, 5, 125, 126, 65535, 65536, 200_000] {
            let bytes = frame(0x82, payload);
            for step in [1, 7, 4096] {
                let mut frames = Frames::default();
                let (last, before) = bytes.split_last().unwrap();
                for piece in before.chunks(step) {
                    assert!(!frames.pass(piece));
                    assert!(frames.is_unfinished());
                }
                assert!(frames.pending() as usize >= payload.saturating_sub(1));
                assert!(frames.pass(&[*last]), "{payload} in steps of {step}");
                assert_eq!((frames.pending(), frames.is_unfinished()), (0, false));
            }
        }
    }

    #[test]
    fn parts_of_one_message_are_one_message() {
        let mut frames = Frames::default();
        assert!(!frames.pass(&frame(0x02, 1000)));
        assert!(!frames.pass(&frame(0x00, 1000)));
        // A ping in between changes nothing.
        assert!(!frames.pass(&frame(0x89, 5)));
        assert!(frames.is_unfinished() && frames.pending() >= 2000);
        assert!(frames.pass(&frame(0x80, 1000)));
        assert_eq!(frames.pending(), 0);
    }
}
