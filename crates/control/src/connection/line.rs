//! One TCP connection that can be closed from outside while hyper, TLS or a WebSocket's handler uses it.
//!
//! The socket is shared: closing the connection shuts it down, and readers and writers see its end. This needs no
//! second descriptor.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::crowd::Busy;
use crate::right::{Admission, Cut, Unfinished};

/// What hyper reads and writes.
pub struct Line {
    socket: Arc<TcpStream>,
    tenant: Tenant,
}

/// The admission of an upgraded connection: it lives as long as the connection.
#[derive(Clone, Default)]
pub struct Tenant(Arc<Upgraded>);

#[derive(Default)]
struct Upgraded {
    /// Checked with every read, so that the lock is taken only when needed.
    is_new: AtomicBool,
    whose: Mutex<Option<(Admission, Option<Busy>)>>,
}

/// Closes a connection, if it still exists.
#[derive(Clone)]
pub struct End(Weak<TcpStream>);

impl Line {
    pub fn new(socket: TcpStream) -> Self {
        Line { socket: Arc::new(socket), tenant: Tenant::default() }
    }

    pub fn end(&self) -> End {
        End(Arc::downgrade(&self.socket))
    }

    /// The last answer to a client without a place; what the kernel does not accept at once is dropped.
    pub fn say_and_close(self, word: &[u8]) {
        let _said = self.socket.try_write(word);
    }

    pub fn tenant(&self) -> Tenant {
        self.tenant.clone()
    }
}

impl Tenant {
    /// Gives the connection to this request; it ends with the request's right.
    pub fn moves_in(&self, admission: Admission, busy: Option<Busy>, end: End) {
        let cut: Cut = Box::new(move || end.now());
        admission.upgraded(cut);
        *self.0.whose.lock().unwrap_or_else(PoisonError::into_inner) = Some((admission, busy));
        self.0.is_new.store(true, Ordering::Release);
    }

    /// The account of the new owner, if the connection assembles messages.
    pub fn account(&self) -> Option<Unfinished> {
        if !self.0.is_new.swap(false, Ordering::AcqRel) {
            return None;
        }
        let whose = self.0.whose.lock().unwrap_or_else(PoisonError::into_inner);
        whose.as_ref().and_then(|(admission, _)| admission.unfinished())
    }
}

impl End {
    #[cfg(test)]
    pub fn of_nothing() -> End {
        End(Weak::new())
    }

    /// Stops reading and writing. The kernel still sends what it has.
    pub fn now(&self) {
        if let Some(socket) = self.0.upgrade() {
            // The other side may have closed it before.
            let _closed = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(context))?;
            match self.socket.try_read_buf(buffer) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Line {
    fn poll_writing(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_write_ready(context))?;
            match write(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(context, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(context, |socket| socket.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
