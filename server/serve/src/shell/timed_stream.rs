//! A socket that counts how long answers to writes took until they were in it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::io::{AsyncRead, AsyncWrite};

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

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }

    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &mut [io::IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read_vectored(cx, buffers)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.written();
        Poll::Ready(outcome)
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

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
