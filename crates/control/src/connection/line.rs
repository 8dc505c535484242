//! One TCP connection that can be ended from outside while hyper, TLS or a WebSocket's handler has it in hand.
//!
//! The socket is shared: whoever ends the connection shuts it down, and whoever reads or writes sees its end. No second
//! descriptor is needed for that.

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

/// Whose connection it is, once it was upgraded: the admission lives as long as the connection.
#[derive(Clone, Default)]
pub struct Tenant(Arc<Upgraded>);

#[derive(Default)]
struct Upgraded {
    /// Looked at with every read, so that a lock is only taken where there is something to take.
    is_new: AtomicBool,
    whose: Mutex<Option<(Admission, Option<Busy>)>>,
}

/// Ends a connection that may be gone already.
#[derive(Clone)]
pub struct End(Weak<TcpStream>);

impl Line {
    pub fn new(socket: TcpStream) -> Self {
        Line { socket: Arc::new(socket), tenant: Tenant::default() }
    }

    pub fn end(&self) -> End {
        End(Arc::downgrade(&self.socket))
    }

    /// The last word to somebody for whom there is no place; what the kernel does not take at once is not said.
    pub fn say_and_close(self, word: &[u8]) {
        let _said = self.socket.try_write(word);
    }

    pub fn tenant(&self) -> Tenant {
        self.tenant.clone()
    }
}

impl Tenant {
    /// The connection is this request's own from now on, and ends with its right.
    pub fn moves_in(&self, admission: Admission, busy: Option<Busy>, end: End) {
        let cut: Cut = Box::new(move || end.now());
        admission.upgraded(cut);
        *self.0.whose.lock().unwrap_or_else(PoisonError::into_inner) = Some((admission, busy));
        self.0.is_new.store(true, Ordering::Release);
    }

    /// The account of whoever has just moved in, where messages are put together.
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

    /// Nothing more comes or goes. What the kernel has already taken it still sends.
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
