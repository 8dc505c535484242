//! Limits what a client sends over a WebSocket: an incomplete message is counted for its organisation and has a
//! deadline.
//!
//! It is above TLS, where frames can be read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::Frames;
use super::line::Tenant;
use crate::right::Unfinished;

/// A message must be complete this long after its first byte.
const MESSAGE: Duration = Duration::from_secs(60);

pub struct Metered<S> {
    stream: S,
    tenant: Tenant,
    /// Set once the connection assembles messages.
    meter: Option<Meter>,
}

/// How much of a message is there, and the deadline for the rest.
struct Meter {
    frames: Frames,
    account: Unfinished,
    deadline: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<S> Metered<S> {
    pub fn new(stream: S, tenant: Tenant) -> Self {
        Metered { stream, tenant, meter: None }
    }
}

impl Meter {
    /// Counts what was read; an error where an incomplete message is too large.
    fn pass(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.frames.pass(bytes) || !self.frames.is_unfinished() {
            self.deadline = None;
        }
        if self.frames.is_unfinished() && self.deadline.is_none() {
            self.deadline = Some(Box::pin(tokio::time::sleep(MESSAGE)));
        }
        if self.account.set(self.frames.pending()) {
            return Ok(());
        }
        Err(io::Error::other("the organisation's unfinished messages are too large together"))
    }

    /// Whether the deadline has passed; wakes the task when it does.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(account) = this.tenant.account() {
            this.meter = Some(Meter { frames: Frames::default(), account, deadline: None });
        }
        let Some(meter) = &mut this.meter else { return Pin::new(&mut this.stream).poll_read(context, buffer) };
        if meter.is_late(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        Poll::Ready(meter.pass(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::connection::line::End;
    use crate::right::Rights;

    #[tokio::test(start_paused = true)]
    async fn a_message_that_never_becomes_whole_has_its_time_and_an_idle_client_has_all_of_it() {
        let admission = Arc::new(Rights::default()).admit();
        admission.assembles();
        let tenant = Tenant::default();
        tenant.moves_in(admission, None, End::of_nothing());
        let (mut client, server) = tokio::io::duplex(1024);
        let mut server = Metered::new(server, tenant);
        let mut buffer = [0; 64];
        // A complete message, and then nothing for an hour.
        client.write_all(&[0x81, 0x80, 0, 0, 0, 0]).await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 6);
        let silent = tokio::time::timeout(Duration::from_secs(3600), server.read(&mut buffer)).await;
        assert!(silent.is_err(), "an idle client may stay");
        // Half a message.
        client.write_all(&[0x81]).await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 1);
        let begun = tokio::time::Instant::now();
        assert_eq!(server.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), MESSAGE);
    }
}
