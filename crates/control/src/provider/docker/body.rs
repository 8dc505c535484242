//! Bytes that a thread makes, as the body of a request.
//!
//! A body that ends early would be taken for the whole: an archive is unpacked as far as it goes. So the end is said, and
//! one that is not said is an error, at which the request is cut off.

use std::io::{self, Write};

use bytes::Bytes;
use futures::Stream;
use tokio::sync::mpsc;

/// Pieces on their way.
const AHEAD: usize = 4;

pub struct Writer(mpsc::Sender<Option<Bytes>>);

pub fn channel() -> (Writer, impl Stream<Item = io::Result<Bytes>> + Send + 'static) {
    let (to, from) = mpsc::channel(AHEAD);
    let body = futures::stream::unfold(Some(from), |from: Option<mpsc::Receiver<Option<Bytes>>>| async move {
        let mut from = from?;
        match from.recv().await {
            Some(Some(bytes)) => Some((Ok(bytes), Some(from))),
            Some(None) => None,
            None => Some((Err(io::Error::other("the bytes end before their end")), None)),
        }
    });
    (Writer(to), body)
}

impl Writer {
    /// All bytes are there. Blocking.
    pub fn finish(self) -> io::Result<()> {
        self.0.blocking_send(None).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Blocking: on a thread.
impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Some(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    async fn read(write: impl FnOnce(Writer) + Send + 'static) -> Vec<Result<Vec<u8>, String>> {
        let (writer, body) = channel();
        let thread = tokio::task::spawn_blocking(move || write(writer));
        let pieces = body.map(|piece| piece.map(|bytes| bytes.to_vec()).map_err(|error| error.to_string()));
        let pieces = pieces.collect().await;
        thread.await.unwrap();
        pieces
    }

    #[tokio::test]
    async fn a_body_without_a_said_end_is_an_error() {
        let whole = read(|mut writer| {
            writer.write_all(b"all").unwrap();
            writer.finish().unwrap();
        });
        assert_eq!(whole.await, [Ok(b"all".to_vec())]);
        let cut = read(|mut writer| writer.write_all(b"half").unwrap());
        assert_eq!(cut.await, [Ok(b"half".to_vec()), Err("the bytes end before their end".to_owned())]);
    }
}
