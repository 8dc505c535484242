//! The output of a process, kept for late readers.
//!
//! Chunks of one stream each, in the order they were read; a byte's offset counts all streams together. The oldest
//! chunks go first. A chunk costs more than its bytes, so that a process that alternates single bytes between its
//! streams cannot make the guest keep a hundred times what it wrote.
//!
//! All outputs of a guest share one [`Account`], which is exact at any moment: the supervisor makes room before it reads, so
//! that the sum never passes its bound, not even for the moment between a read and the next look.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cove_protocol::Kind;

/// The most that is kept of one process.
pub const KEPT: usize = 4 << 20;

/// What a chunk costs beyond its bytes.
const OVERHEAD: usize = 96;

/// A chunk takes more bytes of its stream up to this size.
const CHUNK: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
    Terminal,
}

impl Stream {
    pub fn kind(self) -> Kind {
        match self {
            Stream::Output => Kind::Stdout,
            Stream::Error => Kind::Stderr,
            Stream::Terminal => Kind::Pty,
        }
    }
}

struct Chunk {
    stream: Stream,
    start: u64,
    bytes: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn cost(&self) -> usize {
        Output::cost_of(self.bytes.len())
    }
}

/// What all outputs together cost.
#[derive(Clone, Default)]
pub struct Account(Arc<AtomicUsize>);

impl Account {
    pub fn total(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, cost: usize) {
        self.0.fetch_add(cost, Ordering::Relaxed);
    }

    fn subtract(&self, cost: usize) {
        self.0.fetch_sub(cost, Ordering::Relaxed);
    }
}

#[cfg_attr(test, derive(Default))]
pub struct Output {
    chunks: VecDeque<Chunk>,
    end: u64,
    cost: usize,
    account: Account,
}

impl Drop for Output {
    fn drop(&mut self) {
        self.account.subtract(self.cost);
    }
}

impl Output {
    pub fn on(account: Account) -> Output {
        Output { chunks: VecDeque::new(), end: 0, cost: 0, account }
    }

    /// The most that taking in so many bytes costs.
    pub const fn cost_of(bytes: usize) -> usize {
        bytes + OVERHEAD
    }

    /// The oldest byte kept.
    pub fn start(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.start)
    }

    /// Where the next byte will go.
    pub fn end(&self) -> u64 {
        self.end
    }

    #[cfg(test)]
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Takes bytes in. Without memory they are counted and lost: the reader gets a gap.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        if let Some(last) = self.chunks.back_mut()
            && last.stream == stream
            && last.end() == self.end
            && last.bytes.len() + bytes.len() <= CHUNK
            && last.bytes.try_reserve(bytes.len()).is_ok()
        {
            last.bytes.extend_from_slice(bytes);
            self.charge(bytes.len());
        } else {
            let mut kept = Vec::new();
            if kept.try_reserve_exact(bytes.len()).is_ok() && self.chunks.try_reserve(1).is_ok() {
                kept.extend_from_slice(bytes);
                let chunk = Chunk { stream, start: self.end, bytes: kept };
                self.charge(chunk.cost());
                self.chunks.push_back(chunk);
            }
        }
        self.end += bytes.len() as u64;
    }

    fn charge(&mut self, cost: usize) {
        self.cost += cost;
        self.account.add(cost);
    }

    /// Lets the oldest chunks go until at most `limit` is kept or the next one holds a byte at or after `needed`.
    pub fn trim(&mut self, limit: usize, needed: u64) {
        while self.cost > limit
            && let Some(oldest) = self.chunks.front()
            && oldest.end() <= needed
        {
            let cost = oldest.cost();
            self.cost -= cost;
            self.account.subtract(cost);
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
    }

    /// The bytes at `from` of one stream, at most `most`; where none are kept there, the offset of the next that are.
    pub fn read(&self, from: u64, most: usize) -> Piece<'_> {
        let index = self.chunks.partition_point(|chunk| chunk.end() <= from);
        let Some(chunk) = self.chunks.get(index) else {
            return if from < self.end { Piece::Gap { next: self.end } } else { Piece::None };
        };
        if chunk.start > from {
            return Piece::Gap { next: chunk.start };
        }
        let rest = chunk.bytes.get((from - chunk.start) as usize..).unwrap_or_default();
        Piece::Bytes { stream: chunk.stream, bytes: rest.get(..most).unwrap_or(rest) }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Bytes {
        stream: Stream,
        bytes: &'a [u8],
    },
    /// What was asked for is gone.
    Gap {
        next: u64,
    },
    /// Nothing has been written there yet.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_at(output: &Output, from: u64) -> (Stream, Vec<u8>) {
        match output.read(from, 1000) {
            Piece::Bytes { stream, bytes } => (stream, bytes.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn streams_keep_their_order_and_offsets_count_both() {
        let mut output = Output::default();
        output.append(Stream::Output, b"one");
        output.append(Stream::Output, b"two");
        output.append(Stream::Error, b"oops");
        output.append(Stream::Output, b"three");
        assert_eq!(bytes_at(&output, 0), (Stream::Output, b"onetwo".to_vec()));
        assert_eq!(bytes_at(&output, 4), (Stream::Output, b"wo".to_vec()));
        assert_eq!(bytes_at(&output, 6), (Stream::Error, b"oops".to_vec()));
        assert_eq!(bytes_at(&output, 10), (Stream::Output, b"three".to_vec()));
        assert_eq!(output.read(15, 10), Piece::None);
        assert_eq!((output.start(), output.end()), (0, 15));
    }

    #[test]
    fn the_oldest_goes_first_but_never_what_a_reader_still_needs() {
        let mut output = Output::default();
        output.append(Stream::Output, &[b'a'; 1000]);
        output.append(Stream::Error, &[b'b'; 1000]);
        output.append(Stream::Output, &[b'c'; 1000]);
        output.trim(0, 1500);
        assert_eq!(output.start(), 1000);
        assert_eq!(output.read(0, 10), Piece::Gap { next: 1000 });
        output.trim(0, u64::MAX);
        assert_eq!((output.start(), output.end(), output.cost()), (3000, 3000, 0));
        assert_eq!(output.read(0, 10), Piece::Gap { next: 3000 });
    }

    #[test]
    fn the_account_is_the_sum_of_all_at_any_moment() {
        let account = Account::default();
        let (mut one, mut other) = (Output::on(account.clone()), Output::on(account.clone()));
        for round in 1..100 {
            one.append(Stream::Output, &vec![b'a'; round * 100]);
            other.append(if round % 2 == 0 { Stream::Output } else { Stream::Error }, &vec![b'b'; round * 37]);
            one.trim(100_000, u64::MAX);
            other.trim(1000, round as u64 * 500);
            assert_eq!(account.total(), one.cost() + other.cost());
        }
        drop(one);
        assert_eq!(account.total(), other.cost());
        drop(other);
        assert_eq!(account.total(), 0);
    }

    #[test]
    fn single_bytes_of_alternating_streams_cost_what_they_cost() {
        let mut output = Output::default();
        for _ in 0..100_000 {
            output.append(Stream::Output, b"o");
            output.append(Stream::Error, b"e");
            output.trim(1 << 20, u64::MAX);
        }
        assert!(output.cost() <= 1 << 20);
        assert!(output.chunks.len() <= (1 << 20) / OVERHEAD);
    }
}
