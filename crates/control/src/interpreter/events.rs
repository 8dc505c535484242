//! Events of a cell, on their way to the caller.
//!
//! A slow reader makes the cell wait: the number of buffered events is limited, and so are their bytes, because the
//! sandbox decides how large an event is.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::CellEvent;

/// The most buffered events.
const MOST: usize = 64;
/// The most buffered KiB. The largest possible event fits.
const ROOM: u32 = 64 << 10;

/// An event, with its share of the buffer until it is read.
pub(super) type Weighed = (CellEvent, Option<OwnedSemaphorePermit>);

/// The buffer's budget.
#[derive(Clone)]
pub(super) struct Scales(Arc<Semaphore>);

impl Scales {
    pub(super) fn new() -> Scales {
        Scales(Arc::new(Semaphore::new(ROOM as usize)))
    }

    /// Waits for room for an event of this many bytes.
    pub(super) async fn weigh(&self, event: CellEvent, bytes: usize) -> Weighed {
        let share = u32::try_from(bytes >> 10).unwrap_or(ROOM).clamp(1, ROOM);
        // The semaphore is never closed.
        (event, Arc::clone(&self.0).acquire_many_owned(share).await.ok())
    }
}

/// The events of one cell, [`CellEvent::Done`] last.
#[derive(Debug)]
pub struct Events(mpsc::Receiver<Weighed>);

pub(super) fn channel() -> (mpsc::Sender<Weighed>, Events) {
    let (to, from) = mpsc::channel(MOST);
    (to, Events(from))
}

impl Events {
    pub async fn recv(&mut self) -> Option<CellEvent> {
        self.0.recv().await.map(|(event, _)| event)
    }

    /// As many events as there are, at most `limit`; empty after the last one.
    pub async fn recv_many(&mut self, limit: usize) -> Vec<CellEvent> {
        let mut weighed = Vec::new();
        self.0.recv_many(&mut weighed, limit).await;
        weighed.into_iter().map(|(event, _)| event).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn large_events_wait_until_the_reader_has_taken_those_before() {
        let (scales, (to, mut events)) = (Scales::new(), channel());
        let large = || scales.weigh(CellEvent::Stdout { text: "x".into() }, 40 << 20);
        to.send(large().await).await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_secs(60), large()).await;
        assert!(waiting.is_err(), "80 MiB were on their way");
        assert!(events.recv().await.is_some());
        to.send(large().await).await.unwrap();
        let larger_than_all = scales.weigh(CellEvent::Done, usize::MAX);
        let (_, second) = tokio::join!(larger_than_all, events.recv());
        assert!(second.is_some());
    }
}
