//! Work on a thread that nobody can end from outside, told that nobody waits for it any more.
//!
//! A call that is dropped leaves its thread running. The thread looks at its [`Stop`] between two pieces of its work, and
//! ends as if that had failed.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

/// Asks for the stop when it is dropped: the call keeps it.
#[derive(Debug)]
pub struct Waiting(Stop);

impl Stop {
    pub fn unless_waited_for(&self) -> Waiting {
        Waiting(self.clone())
    }

    pub fn is_asked_for(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// What is read from there, until the stop is asked for.
    pub fn before<R: Read>(&self, inner: R) -> Stoppable<R> {
        Stoppable { inner, stop: self.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::SeqCst);
    }
}

pub struct Stoppable<R> {
    inner: R,
    stop: Stop,
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_asked_for() {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        self.inner.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_fails_once_nobody_waits() {
        let stop = Stop::default();
        let waiting = stop.unless_waited_for();
        let mut reader = stop.before(&b"some bytes"[..]);
        let mut four = [0; 4];
        reader.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"some");
        drop(waiting);
        assert!(reader.read_exact(&mut four).is_err());
    }
}
