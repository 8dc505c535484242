//! What is left of a tree's limits. Counted while reading, so that a bomb is noticed while it goes off.

use std::cell::Cell;
use std::io::{self, Read};
use std::time::Instant;

use super::{Limit, Limits};

pub(super) struct Budget {
    /// Decoded bytes; sizes of files.
    bytes: Cell<u64>,
    files: Cell<u64>,
    entries: Cell<u64>,
    limits: (u64, u64),
    deadline: Option<Instant>,
}

impl Budget {
    pub fn new(limits: &Limits) -> Self {
        Budget {
            bytes: Cell::new(limits.bytes),
            files: Cell::new(limits.bytes),
            entries: Cell::new(limits.entries),
            limits: (limits.bytes, limits.entries),
            deadline: limits.deadline,
        }
    }

    /// One entry more.
    pub fn entry(&self) -> Result<(), Limit> {
        self.look()?;
        take(&self.entries, 1).ok_or(Limit::Entries(self.limits.1))
    }

    /// A file of this size, however much of it is holes.
    pub fn file(&self, size: u64) -> Result<(), Limit> {
        take(&self.files, size).ok_or(Limit::Bytes(self.limits.0))
    }

    /// Whether there is time left.
    pub fn look(&self) -> Result<(), Limit> {
        in_time(self.deadline)
    }
}

fn take(from: &Cell<u64>, amount: u64) -> Option<()> {
    from.set(from.get().checked_sub(amount)?);
    Some(())
}

pub(super) fn in_time(deadline: Option<Instant>) -> Result<(), Limit> {
    match deadline {
        Some(deadline) if Instant::now() >= deadline => Err(Limit::Time),
        _ => Ok(()),
    }
}

/// Decoded bytes, counted.
pub(super) struct Counted<'a, R> {
    inner: R,
    budget: &'a Budget,
}

impl<'a, R: Read> Counted<'a, R> {
    pub fn new(inner: R, budget: &'a Budget) -> Self {
        Counted { inner, budget }
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.budget.look().map_err(io::Error::other)?;
        let count = self.inner.read(buffer)?;
        let limit = Limit::Bytes(self.budget.limits.0);
        take(&self.budget.bytes, count as u64).ok_or_else(|| io::Error::other(limit))?;
        Ok(count)
    }
}

/// Bytes as they come, until the deadline. A decoder can read many of them for nothing: a million empty gzip members.
pub struct Timed<R> {
    inner: R,
    deadline: Option<Instant>,
}

impl<R: Read> Timed<R> {
    pub fn new(inner: R, deadline: Option<Instant>) -> Self {
        Timed { inner, deadline }
    }
}

impl<R: Read> Read for Timed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        in_time(self.deadline).map_err(io::Error::other)?;
        self.inner.read(buffer)
    }
}
