//! A connection's way out that sends once for all that was written while the connection was worked on.
//!
//! HTTP/2 hands each answer down by itself and flushes after it. Under load many answers of a connection are ready at
//! once, and a system call for each would cost more than all else that is done for them. So what is written gathers here,
//! and goes to the socket when the connection has nothing more to do for now.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};

/// Bytes that gather before the socket must take some.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// What is written at once and is this long goes to the socket as it is, if nothing waits before it.
const DIRECT_BYTES: usize = 8 << 10;
/// The room that a connection keeps while nothing waits in it.
const KEPT_BYTES: usize = 4 << 10;

/// A stream whose writes gather. Clones are the same stream.
pub struct Corked<S>(Rc<RefCell<State<S>>>);

impl<S> Clone for Corked<S> {
    fn clone(&self) -> Corked<S> {
        Corked(self.0.clone())
    }
}

struct State<S> {
    stream: S,
    gathered: Vec<u8>,
    /// How much of it the socket has taken.
    sent: usize,
}

impl<S: Read + Write + Unpin> Corked<S> {
    /// Gathers what is written to `stream`.
    pub fn new(stream: S) -> Corked<S> {
        Corked(Rc::new(RefCell::new(State { stream, gathered: Vec::new(), sent: 0 })))
    }

    /// Drives the connection that writes to this stream, and sends what has gathered each time it has to wait.
    pub async fn drive<F: Future>(self, connection: F) -> F::Output {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() {
                // An error of the socket shows at the connection's next read or write.
                let _ = self.0.borrow_mut().drain(cx);
            }
            polled
        })
        .await
    }
}

impl<S: Write + Unpin> State<S> {
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.gathered[self.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        self.sent = 0;
        self.gathered.clear();
        if self.gathered.capacity() > KEPT_BYTES {
            self.gathered = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Gathers pieces, or passes them on.
    fn write(&mut self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.gathered.len() - self.sent + len > GATHERED_BYTES_MAX || len >= DIRECT_BYTES {
            ready!(self.drain(cx))?;
        }
        if len >= DIRECT_BYTES {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        }
        for piece in pieces {
            self.gathered.extend_from_slice(piece);
        }
        Poll::Ready(Ok(len))
    }
}

impl<S: Read + Unpin> Read for Corked<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_read(cx, into)
    }
}

impl<S: Write + Unpin> Write for Corked<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().write(cx, &[IoSlice::new(bytes)])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().write(cx, pieces)
    }

    /// Says that all is sent; [`Corked::drive`] sends it.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        ready!(state.drain(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// A socket that takes so much and tells what it was given, call by call.
    #[derive(Default)]
    struct Recorder {
        room: usize,
        calls: Vec<Vec<u8>>,
        shut: bool,
    }

    impl Read for Recorder {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl Write for Recorder {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Poll::Pending;
            }
            self.room -= count;
            self.calls.push(bytes[..count].to_vec());
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.shut = true;
            Poll::Ready(Ok(()))
        }
    }

    fn corked(room: usize) -> Corked<Recorder> {
        Corked::new(Recorder { room, ..Recorder::default() })
    }

    fn write(stream: &mut Corked<Recorder>, bytes: &[u8]) -> Poll<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        let written = Pin::new(&mut *stream).poll_write(&mut cx, bytes).map(Result::unwrap);
        assert!(Pin::new(stream).poll_flush(&mut cx).is_ready());
        written
    }

    #[test]
    fn what_one_turn_of_a_connection_writes_is_sent_at_once_and_in_order() {
        let stream = corked(usize::MAX);
        let mut turn = 0;
        let mut writer = stream.clone();
        let connection = poll_fn(move |cx| {
            turn += 1;
            for number in 0..3_u8 {
                assert_eq!(write(&mut writer, &[turn, number]), Poll::Ready(2));
            }
            cx.waker().wake_by_ref();
            if turn == 2 { Poll::Ready(()) } else { Poll::Pending }
        });
        let kept = stream.clone();
        futures::executor::block_on(stream.drive(connection));
        assert_eq!(kept.0.borrow().stream.calls, [vec![1, 0, 1, 1, 1, 2]], "the second turn's wait for the shutdown");
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut kept.clone()).poll_shutdown(&mut cx).is_ready());
        let state = kept.0.borrow();
        assert_eq!(state.stream.calls[1..], [vec![2, 0, 2, 1, 2, 2]]);
        assert!(state.stream.shut);
    }

    #[test]
    fn no_more_gathers_than_the_bound_and_nothing_is_lost_when_the_socket_takes_little() {
        let mut stream = corked(10);
        let piece: Vec<u8> = (0..DIRECT_BYTES - 1).map(|number| u8::try_from(number % 251).unwrap()).collect();
        let mut taken = Vec::new();
        while let Poll::Ready(count) = write(&mut stream, &piece) {
            taken.extend_from_slice(&piece[..count]);
            assert!(taken.len() <= GATHERED_BYTES_MAX + 10 + piece.len());
        }
        let mut cx = Context::from_waker(Waker::noop());
        let mut state = stream.0.borrow_mut();
        while state.drain(&mut cx).is_pending() {
            state.stream.room = 1000;
        }
        assert_eq!(state.stream.calls.concat(), taken);
        assert!(state.gathered.capacity() <= KEPT_BYTES);
    }

    #[test]
    fn long_writes_are_not_copied_and_stay_behind_what_waits() {
        let mut stream = corked(usize::MAX);
        assert_eq!(write(&mut stream, b"short"), Poll::Ready(5));
        let long = vec![7; DIRECT_BYTES];
        assert_eq!(write(&mut stream, &long), Poll::Ready(DIRECT_BYTES));
        assert_eq!(stream.0.borrow().stream.calls, [b"short".to_vec(), long]);
    }
}
