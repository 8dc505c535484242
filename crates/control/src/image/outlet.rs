//! Archives on their way to readers that may be slow, or may never read.
//!
//! ```text
//!   thread that writes ─▶ a few pieces ─▶ stream ─▶ reader
//!        └─ waits for the reader, as long as the reader has credit; without credit the archive breaks off
//! ```
//!
//! A reader earns credit by reading. One that stops has none after a minute, and one that takes a byte now and then does
//! not earn enough. Until then it holds a place of its own organisation ([`Places`]) and files in the spool: nothing
//! that another organisation waits for.

use std::collections::HashMap;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::Error;

/// Bytes of the archive that go at a time, and how many such pieces wait for a slow reader.
const CHUNK: usize = 256 << 10;
const WAITING: usize = 4;
/// The most credit that a reader has, and what it begins with.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that earn a second of credit: who reads more slowly than this comes to an end.
const SLOWEST: u64 = 32 << 10;
/// Archives that one organisation reads at one time.
const MOST: usize = 4;

/// An archive on its way. A stream that breaks off ends with an error: half must not pass for the whole.
pub type Archive = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// How many archives each organisation reads now.
#[derive(Default)]
pub struct Places {
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// One of them; dropping it gives it back.
pub struct Place {
    taken: Arc<Mutex<HashMap<String, usize>>>,
    organisation: String,
}

impl Places {
    pub fn take(&self, organisation: &str) -> Result<Place, Error> {
        let mut taken = self.taken.lock().expect("no panic while held");
        let count = taken.entry(organisation.to_owned()).or_default();
        if *count >= MOST {
            return Err(Error::Quota {
                message: format!("the organisation reads {MOST} exports already; let one of them come to its end"),
            });
        }
        *count += 1;
        Ok(Place { taken: Arc::clone(&self.taken), organisation: organisation.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().expect("no panic while held");
        if let Some(count) = taken.get_mut(&self.organisation) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.organisation);
            }
        }
    }
}

enum Piece {
    Bytes(Bytes),
    /// Nothing follows, and nothing is missing.
    End,
}

/// The end that a thread writes to.
pub struct Outlet {
    pieces: mpsc::Sender<Piece>,
    piece: Vec<u8>,
    credit: Credit,
    runtime: Handle,
}

/// How long the writer still waits for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Credit(Duration);

impl Credit {
    /// After so long a wait so many bytes were taken.
    fn earn(self, waited: Duration, bytes: usize) -> Credit {
        let earned = Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / SLOWEST);
        Credit(self.0.saturating_sub(waited).saturating_add(earned).min(PATIENCE))
    }
}

/// Both ends. For those who run on tokio; the first end is then given to a thread that may block.
pub fn open() -> (Outlet, Archive) {
    let (pieces, receiver) = mpsc::channel(WAITING);
    let piece = Vec::with_capacity(CHUNK);
    let outlet = Outlet { pieces, piece, credit: Credit(PATIENCE), runtime: Handle::current() };
    let archive = futures::stream::unfold(Some(receiver), |receiver| async move {
        let mut receiver: mpsc::Receiver<Piece> = receiver?;
        match receiver.recv().await {
            Some(Piece::Bytes(bytes)) => Some((Ok(bytes), Some(receiver))),
            Some(Piece::End) => None,
            None => {
                let why = "the archive breaks off; the server's log has the reason";
                Some((Err(io::Error::new(io::ErrorKind::UnexpectedEof, why)), None))
            }
        }
    });
    (outlet, Box::pin(archive))
}

impl Outlet {
    /// Whether the reader has gone.
    pub fn is_left(&self) -> bool {
        self.pieces.is_closed()
    }

    /// All of it was written. An outlet that is dropped without this breaks off.
    pub fn end(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(Piece::End, 0)
    }

    fn send(&mut self, piece: Piece, bytes: usize) -> io::Result<()> {
        let (begun, patience, pieces) = (Instant::now(), self.credit.0, &self.pieces);
        match self.runtime.block_on(async move { tokio::time::timeout(patience, pieces.reserve()).await }) {
            Ok(Ok(room)) => {
                room.send(piece);
                self.credit = self.credit.earn(begun.elapsed(), bytes);
                Ok(())
            }
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "nobody reads the archive any more")),
            Err(_) => {
                let why = format!("the archive is read more slowly than {} KiB a second", SLOWEST >> 10);
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(CHUNK));
        let bytes = piece.len();
        self.send(Piece::Bytes(piece.into()), bytes)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_that_goes_ends_the_writer() {
        let (mut outlet, archive) = open();
        outlet.write_all(b"some").unwrap();
        drop(archive);
        assert!(outlet.is_left());
        let refused = tokio::task::spawn_blocking(move || outlet.flush()).await.unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_written_comes_in_order_and_whole() {
        let whole: Vec<u8> = (0..CHUNK * 7 + 7).map(|n| (n % 251) as u8).collect();
        let (mut outlet, mut archive) = open();
        let written = whole.clone();
        let writing = tokio::task::spawn_blocking(move || {
            written.chunks(1000).try_for_each(|piece| outlet.write_all(piece))?;
            outlet.end()
        });
        let mut read = Vec::new();
        while let Some(piece) = archive.next().await {
            read.extend_from_slice(&piece.unwrap());
        }
        writing.await.unwrap().unwrap();
        assert!(read == whole, "{} of {} bytes", read.len(), whole.len());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_stops_leaves_no_half_that_passes_for_the_whole() {
        let (mut outlet, archive) = open();
        outlet.write_all(b"half").unwrap();
        tokio::task::spawn_blocking(move || outlet.flush()).await.unwrap().unwrap();
        let read: Vec<io::Result<Bytes>> = archive.collect().await;
        assert_eq!(read.len(), 2, "what came, and an error");
        assert!(read[0].is_ok() && read[1].is_err(), "{read:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_that_does_not_read_is_given_up() {
        let (mut outlet, archive) = open();
        let writing = tokio::task::spawn_blocking(move || {
            let piece = vec![7; CHUNK];
            (0..100).try_for_each(|_| {
                // As if it were earned much more slowly.
                outlet.credit = Credit(outlet.credit.0.min(Duration::from_millis(50)));
                outlet.write_all(&piece)
            })
        });
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        let read: Vec<io::Result<Bytes>> = archive.collect().await;
        assert_eq!(read.iter().filter(|piece| piece.is_ok()).count(), WAITING);
        assert!(read.last().unwrap().is_err(), "what it finds when it comes back is not the whole");
    }

    #[test]
    fn credit_is_earned_by_reading_and_never_saved_up() {
        let second = Duration::from_secs(1);
        let fast = (0..1000).fold(Credit(PATIENCE), |credit, _| credit.earn(second / 1000, CHUNK));
        assert_eq!(fast, Credit(PATIENCE), "who has read much may not wait longer than others");
        // A piece in half a minute earns eight seconds.
        let slow = (0..4).fold(fast, |credit, _| credit.earn(30 * second, CHUNK));
        assert_eq!(slow, Credit(8 * second));
    }

    #[test]
    fn places_are_of_each_organisation_and_come_back() {
        let places = Places::default();
        let mut ours: Vec<Place> = (0..MOST).map(|_| places.take("ours").unwrap()).collect();
        assert!(matches!(places.take("ours"), Err(Error::Quota { .. })));
        drop(places.take("theirs").unwrap());
        ours.pop();
        drop(places.take("ours").unwrap());
        ours.clear();
        assert!(places.taken.lock().unwrap().is_empty(), "nobody's are forgotten");
    }
}
