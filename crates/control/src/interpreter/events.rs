//! What happens in a cell, on its way to whoever asked.
//!
//! A slow reader makes the cell wait: behind it are at most so many events, and at most so many bytes, since the sandbox
//! decides how large an event is.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::CellEvent;

/// Events on their way.
const MOST: usize = 64;
/// KiB on their way. The largest event there can be fits.
const ROOM: u32 = 64 << 10;

/// An event with the room that it takes until somebody has it.
pub(super) type Weighed = (CellEvent, Option<OwnedSemaphorePermit>);

/// Where room is taken for events.
#[derive(Clone)]
pub(super) struct Scales(Arc<Semaphore>);

impl Scales {
    pub(super) fn new() -> Scales {
        Scales(Arc::new(Semaphore::new(ROOM as usize)))
    }

    /// Waits for room for an event that came as so many bytes.
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

    /// As many as there are, at most `limit`; none when all were told.
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
