//! A connection to a port inside, whose bytes are activity of the sandbox.
//!
//! It can be open for as long as a browser shows the page: that alone keeps nothing awake.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::activity::Attendance;
use crate::guest::Pipe;

/// Often enough for any idle time, and no lock for each piece of a long download.
const EVERY: Duration = Duration::from_millis(500);

pub struct Noted {
    pipe: Box<dyn Pipe>,
    attendance: Attendance,
    at: Option<Instant>,
}

impl Noted {
    pub fn new(pipe: Box<dyn Pipe>, attendance: Attendance) -> Self {
        Noted { pipe, attendance, at: None }
    }

    fn note(&mut self) {
        let now = Instant::now();
        if self.at.is_none_or(|at| now.duration_since(at) >= EVERY) {
            self.at = Some(now);
            self.attendance.note();
        }
    }
}

impl AsyncRead for Noted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        let read = Pin::new(&mut self.pipe).poll_read(context, room);
        if room.filled().len() > before {
            self.note();
        }
        read
    }
}

impl AsyncWrite for Noted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.note();
        Pin::new(&mut self.pipe).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note();
        Pin::new(&mut self.pipe).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.pipe.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}
