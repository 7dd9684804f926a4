//! A socket that counts how long answers to writes took until they were in it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};

use crate::core::Core;
use crate::stages::Unsent;

/// A connection's socket.
pub struct TimedStream<S> {
    stream: S,
    core: Core,
    unsent: Unsent,
}

impl<S> TimedStream<S> {
    /// `unsent` is where the connection's calls note the answers to writes.
    pub fn new(stream: S, core: Core, unsent: Unsent) -> TimedStream<S> {
        TimedStream { stream, core, unsent }
    }

    fn written(&self) {
        if let Some(published) = self.unsent.take() {
            self.core.record_reply(published);
        }
    }
}

impl<S: Read + Unpin> Read for TimedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: Write + Unpin> Write for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.written();
        Poll::Ready(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, pieces));
        self.written();
        Poll::Ready(outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
