//! Sockets that never block: the kernel is asked once to tell of all that a socket becomes ready for; reading and writing
//! are plain system calls.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hyper::rt::ReadBufCursor;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::tasks::Local;

/// What a socket is ready for, as far as the kernel has said.
#[derive(Default)]
pub struct Readiness {
    can_read: Cell<bool>,
    can_write: Cell<bool>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
    /// The other side will send no more: reading goes on until it answers so.
    pub hung_up: Cell<bool>,
    /// The error with which the kernel refused to tell of this socket; 0 is none.
    pub failure: Cell<i32>,
    /// The socket's descriptor.
    pub descriptor: Cell<RawFd>,
    /// Whether the kernel has been asked and has not ended it.
    pub asked: Cell<bool>,
    /// Whether the socket is closed.
    pub closed: Cell<bool>,
    /// Whether the kernel tells of room only when it is asked, each time anew.
    pub room_on_request: Cell<bool>,
    /// The question for room that is under way.
    pub room_asked: Cell<Option<usize>>,
}

impl Readiness {
    /// Something arrived.
    pub fn readable(&self) {
        self.can_read.set(true);
        wake(&self.reader);
    }

    /// There is room to write.
    pub fn writable(&self) {
        self.can_write.set(true);
        wake(&self.writer);
    }

    /// The kernel will not tell.
    pub fn fail(&self, errno: i32) {
        self.failure.set(errno);
        wake(&self.reader);
        wake(&self.writer);
    }
}

fn wake(waiting: &Cell<Option<Waker>>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

/// A socket of this thread's executor, of any kind; it must be in non-blocking mode. At most one task reads it and one
/// writes it.
pub struct Socket<S: AsFd> {
    socket: S,
    readiness: Rc<Readiness>,
    key: usize,
}

impl<S: AsFd> Socket<S> {
    /// Takes a socket in.
    pub fn new(socket: S) -> Socket<S> {
        Socket::watched(socket, false)
    }

    /// Takes a socket for datagrams in. The kernel says that such a socket has room for each datagram that leaves it, and
    /// would wake this thread as often as it sends; so it is asked only while there is none.
    pub fn for_datagrams(socket: S) -> Socket<S> {
        Socket::watched(socket, true)
    }

    fn watched(socket: S, room_on_request: bool) -> Socket<S> {
        let readiness = Rc::new(Readiness::default());
        readiness.room_on_request.set(room_on_request);
        // It may be ready as it is; the first attempt tells.
        readiness.can_read.set(true);
        readiness.can_write.set(true);
        let key = Local::current().ring.borrow_mut().watch(&socket, readiness.clone());
        Socket { socket, readiness, key }
    }

    /// The socket itself.
    pub fn get(&self) -> &S {
        &self.socket
    }

    /// Makes an attempt to read (or to accept) whenever the socket may be ready for it, until one does not end in
    /// `WouldBlock`.
    ///
    /// # Errors
    /// What the attempt answers.
    pub async fn reading<T>(&self, mut attempt: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
        poll_fn(|cx| self.poll(&self.readiness.can_read, &self.readiness.reader, cx, &mut attempt)).await
    }

    /// Makes an attempt to write whenever the socket may have room for it, until one does not end in `WouldBlock`.
    ///
    /// # Errors
    /// What the attempt answers.
    pub async fn writing<T>(&self, mut attempt: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
        poll_fn(|cx| self.poll_writing(cx, &mut attempt)).await
    }

    fn poll_writing<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: &mut impl FnMut(&S) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let Readiness { can_write, writer, room_on_request, room_asked, .. } = &*self.readiness;
        let outcome = self.poll(can_write, writer, cx, attempt);
        if outcome.is_pending() && room_on_request.get() && room_asked.get().is_none() {
            Local::current().ring.borrow_mut().ask_for_room(&self.readiness);
        }
        outcome
    }

    /// The last attempt to read took all that there was: the next one waits until the kernel tells of more.
    pub fn drained(&self) {
        if !self.readiness.hung_up.get() {
            self.readiness.can_read.set(false);
        }
    }

    fn poll<T>(
        &self,
        ready: &Cell<bool>,
        waiting: &Cell<Option<Waker>>,
        cx: &mut Context<'_>,
        attempt: &mut impl FnMut(&S) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            if self.readiness.failure.get() != 0 {
                return Poll::Ready(Err(io::Error::from_raw_os_error(self.readiness.failure.get())));
            }
            if !ready.get() {
                waiting.set(Some(cx.waker().clone()));
                return Poll::Pending;
            }
            match attempt(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.set(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }
}

impl<S: AsFd> Drop for Socket<S> {
    fn drop(&mut self) {
        Local::current().ring.borrow_mut().forget(self.key);
    }
}

impl<S: AsFd + Unpin> hyper::rt::Read for Socket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let readiness = &self.readiness;
        // SAFETY: nothing that is initialised is made uninitialised: the kernel only writes to it.
        #[allow(unsafe_code)]
        let room = unsafe { into.as_mut() };
        let wanted = room.len();
        let mut attempt = |socket: &S| {
            let ((read, _), _) = rustix::net::recv(socket, &mut *room, RecvFlags::DONTWAIT)?;
            Ok(read.len())
        };
        let count = std::task::ready!(self.poll(&readiness.can_read, &readiness.reader, cx, &mut attempt))?;
        if count < wanted && count > 0 && !readiness.hung_up.get() {
            // The socket was drained; what arrives from now on is told anew.
            readiness.can_read.set(false);
        }
        // SAFETY: the kernel has just written this many bytes from the start of the room.
        #[allow(unsafe_code)]
        unsafe {
            into.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsFd + Unpin> hyper::rt::Write for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut attempt = |socket: &S| Ok(rustix::net::send(socket, bytes, flags)?);
        self.poll_writing(cx, &mut attempt)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut attempt =
            |socket: &S| Ok(rustix::net::sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags)?);
        self.poll_writing(cx, &mut attempt)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&self.socket, Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
