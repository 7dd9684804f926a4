//! A client's connection as its core keeps an eye on it: what the client owes, what waits for it to read, and whether it
//! is to be closed.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use crate::budget::{Answers, Budget};
use crate::frame_scanner::{FrameScanner, Owes};
use crate::limits::{
    DATA_PAUSE_MAX, GREETING_TIME_MAX, HEADERS_TIME_MAX, LONG_SCANS_PER_CONNECTION, SOCKET_STALL_MAX, TICK,
};
use crate::wheel::Wheel;

/// Bytes that are read at a time, at most: what hyper asks for.
const READ_BYTES: usize = 16 << 10;
/// No time.
const NEVER: u64 = u64::MAX;

/// Why this side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// It was opened and not used.
    #[error("the client did not greet within {GREETING_TIME_MAX:?}")]
    NoGreeting,
    /// A frame was begun and not finished.
    #[error("a frame without data took longer than {HEADERS_TIME_MAX:?}")]
    SlowHeaders,
    /// A frame of data was begun and not finished.
    #[error("nothing of a frame of data came for {DATA_PAUSE_MAX:?}")]
    PausedData,
    /// The client does not read its socket.
    #[error("the client read nothing of its socket for {SOCKET_STALL_MAX:?}")]
    SocketStalled,
    /// Others need the room that its answers take.
    #[error("the client left its answers unread while others waited for room")]
    AnswersUnread,
}

/// A client's connection. Clones are the same one. What it counts may be given back from wherever its answers' bytes are
/// dropped; only its core looks at it.
#[derive(Clone, Debug)]
pub struct Connection(Arc<State>);

#[derive(Debug)]
struct State {
    wheel: Wheel,
    /// When the client must have sent what it owes, in nanoseconds since the process's start.
    due: AtomicU64,
    /// What it owes until then.
    owes: Mutex<Owes>,
    /// Since when the client's kernel takes nothing.
    blocked_since: AtomicU64,
    /// Bytes of answers that the client has not taken.
    unread: AtomicUsize,
    /// When it last took some, or the first came to wait.
    read_at: AtomicU64,
    ended: Mutex<End>,
    /// Its own room for answers.
    answers: Answers,
    /// Its own places for first passes of long reads.
    scans: Budget,
}

#[derive(Debug, Default)]
struct End {
    reason: Option<Ended>,
    waker: Option<Waker>,
    /// Its client is to go elsewhere.
    closing: bool,
    closing_waker: Option<Waker>,
}

impl Connection {
    /// A connection that has just been accepted, on which so many bytes of answers may wait.
    pub fn new(wheel: Wheel, answer_bytes: usize) -> Connection {
        let due = nanos(wheel.now() + TICK + GREETING_TIME_MAX);
        Connection(Arc::new(State {
            wheel,
            due: AtomicU64::new(due),
            owes: Mutex::new(Owes::Greeting),
            blocked_since: AtomicU64::new(NEVER),
            unread: AtomicUsize::new(0),
            read_at: AtomicU64::new(0),
            ended: Mutex::default(),
            // Its calls are bounded, so that those who wait are.
            answers: Answers::new(answer_bytes, usize::MAX),
            scans: Budget::new(LONG_SCANS_PER_CONNECTION, usize::MAX),
        }))
    }

    /// Its own room for answers.
    pub fn answers(&self) -> &Answers {
        &self.0.answers
    }

    /// Its own places for first passes of long reads.
    pub fn scans(&self) -> &Budget {
        &self.0.scans
    }

    /// Resolves when this side ends it.
    pub async fn ended(&self) -> Ended {
        poll_fn(|cx| {
            let mut end = self.lock_end();
            match end.reason {
                Some(reason) => Poll::Ready(reason),
                None => {
                    end.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Resolves once the client is to be told to go elsewhere.
    pub async fn closing(&self) {
        poll_fn(|cx| {
            let mut end = self.lock_end();
            if end.closing {
                return Poll::Ready(());
            }
            end.closing_waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Has the client told to go elsewhere with its next calls; those under way go on.
    pub fn close(&self) {
        let waker = {
            let mut end = self.lock_end();
            end.closing = true;
            end.closing_waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends it.
    pub fn end(&self, reason: Ended) {
        let waker = {
            let mut end = self.lock_end();
            end.reason.get_or_insert(reason);
            end.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends it if the client has let a deadline pass.
    pub fn look(&self, now: Duration) {
        let now = nanos(now);
        if self.0.due.load(Ordering::Relaxed) <= now {
            self.end(match *self.0.owes.lock().expect("no holder of this lock panics") {
                Owes::Greeting => Ended::NoGreeting,
                Owes::Data => Ended::PausedData,
                Owes::Headers | Owes::Nothing => Ended::SlowHeaders,
            });
        }
        let blocked = self.0.blocked_since.load(Ordering::Relaxed);
        if blocked != NEVER && now.saturating_sub(blocked) >= nanos(SOCKET_STALL_MAX) {
            self.end(Ended::SocketStalled);
        }
    }

    /// Bytes of answers wait for the client.
    pub fn add_unread(&self, bytes: usize) {
        if self.0.unread.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.0.read_at.store(nanos(self.0.wheel.now()), Ordering::Relaxed);
        }
    }

    /// The client took some, or gave up the call that they were for.
    pub fn remove_unread(&self, bytes: usize) {
        let before = self.0.unread.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "what is taken was there");
        self.0.read_at.store(nanos(self.0.wheel.now()), Ordering::Relaxed);
    }

    /// Bytes of answers that wait, if the client has taken none for so long.
    pub fn unread_for(&self, now: Duration, time: Duration) -> Option<usize> {
        let unread = self.0.unread.load(Ordering::Relaxed);
        let since = self.0.read_at.load(Ordering::Relaxed);
        (unread > 0 && nanos(now).saturating_sub(since) >= nanos(time)).then_some(unread)
    }

    /// The client owes this, from now on.
    fn set_owed(&self, owes: Owes) {
        let time = match owes {
            Owes::Nothing => return self.0.due.store(NEVER, Ordering::Relaxed),
            Owes::Greeting => GREETING_TIME_MAX,
            Owes::Headers => HEADERS_TIME_MAX,
            Owes::Data => DATA_PAUSE_MAX,
        };
        *self.0.owes.lock().expect("no holder of this lock panics") = owes;
        // The wheel is behind by a tick at most; no deadline is met early.
        self.0.due.store(nanos(self.0.wheel.now() + TICK + time), Ordering::Relaxed);
    }

    fn lock_end(&self) -> MutexGuard<'_, End> {
        self.0.ended.lock().expect("no holder of this lock panics")
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER - 1)
}

/// A connection's stream. What is read is held against what the client owes; while the client's kernel takes nothing,
/// nothing is read either, so that who does not read its answers can't ask for more.
#[derive(Debug)]
pub struct Guarded<S> {
    stream: S,
    connection: Connection,
    scanner: FrameScanner,
    is_blocked: bool,
    /// Who wanted to read meanwhile.
    reader: Option<Waker>,
}

impl<S> Guarded<S> {
    /// Guards a new connection's stream.
    pub fn new(stream: S, connection: Connection) -> Guarded<S> {
        Guarded { stream, connection, scanner: FrameScanner::default(), is_blocked: false, reader: None }
    }

    fn note_read(&mut self, bytes: &[u8]) {
        let before = (self.scanner.owes(), self.scanner.finished());
        self.scanner.receive(bytes);
        let owes = self.scanner.owes();
        // Data may come as slowly as it does, as long as it comes; for all else there is one time for the whole.
        if owes == Owes::Data || before != (owes, self.scanner.finished()) {
            self.connection.set_owed(owes);
        }
    }

    fn note_write(&mut self, is_blocked: bool) {
        if is_blocked == self.is_blocked {
            return;
        }
        self.is_blocked = is_blocked;
        let state = &self.connection.0;
        let since = if is_blocked { nanos(state.wheel.now()) } else { NEVER };
        state.blocked_since.store(since, Ordering::Relaxed);
        if !is_blocked && let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl<S: Read + Unpin> Read for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_blocked {
            this.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // What was read can be looked at in a buffer of this side's own only.
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut room[..READ_BYTES.min(into.remaining())]);
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer.unfilled()))?;
        this.note_read(buffer.filled());
        into.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: Write + Unpin> Write for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(outcome.is_pending());
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.note_write(outcome.is_pending());
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

    fn connection() -> (Wheel, Connection, Guarded<()>) {
        let wheel = Wheel::default();
        let connection = Connection::new(wheel.clone(), 1 << 20);
        let guarded = Guarded::new((), connection.clone());
        (wheel, connection, guarded)
    }

    fn ended_at(connection: &Connection, wheel: &Wheel, now: Duration) -> Option<Ended> {
        wheel.advance(now);
        connection.look(now);
        connection.ended().now_or_never()
    }

    #[test]
    fn who_does_not_greet_is_closed_and_who_does_may_be_silent_for_ever() {
        let (wheel, silent, _guarded) = connection();
        assert_eq!(ended_at(&silent, &wheel, GREETING_TIME_MAX), None);
        assert_eq!(ended_at(&silent, &wheel, GREETING_TIME_MAX + TICK), Some(Ended::NoGreeting));

        let (wheel, idle, mut guarded) = connection();
        guarded.note_read(PREFACE);
        guarded.note_read(SETTINGS);
        assert_eq!(ended_at(&idle, &wheel, Duration::from_secs(1 << 20)), None);
    }

    #[test]
    fn a_greeting_byte_by_byte_has_no_more_time_than_one_at_once() {
        let (wheel, connection, mut guarded) = connection();
        for (number, byte) in PREFACE.iter().enumerate() {
            let now = Duration::from_millis(500 * number as u64);
            if now >= GREETING_TIME_MAX + TICK {
                break;
            }
            assert_eq!(ended_at(&connection, &wheel, now), None);
            guarded.note_read(&[*byte]);
        }
        assert_eq!(ended_at(&connection, &wheel, GREETING_TIME_MAX + TICK), Some(Ended::NoGreeting));
    }

    #[test]
    fn headers_that_trickle_are_cut_off_and_data_that_trickles_is_not() {
        let (wheel, connection, mut guarded) = connection();
        guarded.note_read(PREFACE);
        guarded.note_read(SETTINGS);
        let second = Duration::from_secs(1);
        // A frame of 100 bytes of data, one a second.
        guarded.note_read(&[0, 0, 100, 0, 0, 0, 0, 0, 1]);
        for number in 1..=100 {
            guarded.note_read(&[0]);
            assert_eq!(ended_at(&connection, &wheel, number * second), None);
        }
        // Headers whose end never comes, in continuations.
        let start = 100 * second;
        guarded.note_read(&[0, 0, 1, 1, 0, 0, 0, 0, 3, 0]);
        for number in 1..=9 {
            assert_eq!(ended_at(&connection, &wheel, start + number * second), None);
            guarded.note_read(&[0, 0, 1, 9, 0, 0, 0, 0, 3, 0]);
        }
        assert_eq!(ended_at(&connection, &wheel, start + HEADERS_TIME_MAX + 2 * TICK), Some(Ended::SlowHeaders));
    }

    #[test]
    fn a_pause_within_data_ends_the_connection() {
        let (wheel, connection, mut guarded) = connection();
        guarded.note_read(PREFACE);
        guarded.note_read(SETTINGS);
        guarded.note_read(&[0, 0, 100, 0, 0, 0, 0, 0, 1, 7]);
        assert_eq!(ended_at(&connection, &wheel, DATA_PAUSE_MAX), None);
        assert_eq!(ended_at(&connection, &wheel, DATA_PAUSE_MAX + TICK), Some(Ended::PausedData));
    }

    #[test]
    fn a_socket_that_is_not_read_ends_and_any_progress_starts_anew() {
        let (wheel, connection, mut guarded) = connection();
        guarded.note_read(PREFACE);
        guarded.note_read(SETTINGS);
        guarded.note_write(true);
        assert_eq!(ended_at(&connection, &wheel, SOCKET_STALL_MAX - TICK), None);
        guarded.note_write(false);
        guarded.note_write(true);
        assert_eq!(ended_at(&connection, &wheel, SOCKET_STALL_MAX), None);
        assert_eq!(ended_at(&connection, &wheel, 2 * SOCKET_STALL_MAX), Some(Ended::SocketStalled));
    }
}
