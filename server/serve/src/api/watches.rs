//! A core's watch hub and the streams that wait for it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use garboard_replica::events::EventBatch;
use garboard_replica::watch::{StreamId, WatchConfig, WatchHub};

use crate::limits::{WATCH_REST_MAX, WATCH_REST_PER_STREAM};

/// How often a quiet watch is told how far it is, unless the server is told otherwise.
const PROGRESS_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);

/// What a stream does until the hub has something for it.
#[derive(Debug, Default)]
struct Wait {
    /// The hub has named it, and its task has not looked since.
    named: bool,
    waker: Option<Waker>,
}

/// A core's watch hub, with a waker for each stream that waits for it.
///
/// Waking a stream costs the core a message to its client. So after a batch that woke many, the streams for which the
/// next ones have something are woken a little later, together: each then gets several events with one message, and the
/// writes that come meanwhile find the core free.
#[derive(Debug)]
pub struct Watches {
    hub: RefCell<WatchHub>,
    waits: RefCell<HashMap<StreamId, Wait>>,
    /// Before this time no batch wakes streams.
    rests_until: Cell<Duration>,
    /// The hub has named streams that are not woken.
    held: Cell<bool>,
    /// The task that wakes them when the rest is over.
    alarm: RefCell<Option<Waker>>,
    progress_interval: Cell<Duration>,
    jitter: RandomState,
}

impl Watches {
    /// Watches that will be told of every batch after `revision`.
    pub fn new(config: WatchConfig, revision: i64) -> Watches {
        Watches {
            hub: RefCell::new(WatchHub::new(config, revision)),
            waits: RefCell::default(),
            rests_until: Cell::default(),
            held: Cell::new(false),
            alarm: RefCell::default(),
            progress_interval: Cell::new(PROGRESS_INTERVAL_DEFAULT),
            jitter: RandomState::new(),
        }
    }

    /// Periodic progress on streams that are opened from now on comes at about this interval.
    pub fn set_progress_interval(&self, interval: Duration) {
        self.progress_interval.set(interval);
    }

    /// Offers a published batch to the watchers.
    pub fn handle_events(&self, now: Duration, batch: &Arc<EventBatch>) {
        let mut hub = self.hub.borrow_mut();
        hub.handle_events(batch);
        if now < self.rests_until.get()
            && let Some(alarm) = self.alarm.borrow_mut().take()
        {
            alarm.wake();
            self.held.set(true);
        }
        if !self.held.get() {
            self.wake_many(now, &mut hub);
        }
    }

    /// When the streams are to be woken for which batches had something during a rest. Without a task that waits for
    /// this, there are no rests.
    pub fn poll_held(&self, cx: &Context<'_>) -> Poll<Duration> {
        if self.held.get() {
            return Poll::Ready(self.rests_until.get());
        }
        *self.alarm.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The rest is over.
    pub fn wake_held(&self, now: Duration) {
        self.held.set(false);
        self.wake_many(now, &mut self.hub.borrow_mut());
    }

    fn wake_many(&self, now: Duration, hub: &mut WatchHub) {
        let woken = self.wake(hub);
        let rest = WATCH_REST_PER_STREAM.saturating_mul(u32::try_from(woken).unwrap_or(u32::MAX));
        self.rests_until.set(now + rest.min(WATCH_REST_MAX));
    }

    /// Nothing up to `revision` was handed to this core: watches read it from the index.
    pub fn restore(&self, revision: i64) {
        self.with_hub(|hub| hub.handle_restore(revision));
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.hub.borrow().poll_timeout()
    }

    /// Looks to whom periodic progress is due.
    pub fn handle_timeout(&self, now: Duration) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.with_hub(|hub| hub.handle_timeout(now));
        }
    }

    /// Calls the hub, then wakes the streams for which that made something ready; during a rest, at its end.
    pub fn with_hub<T>(&self, call: impl FnOnce(&mut WatchHub) -> T) -> T {
        let mut hub = self.hub.borrow_mut();
        let value = call(&mut hub);
        if !self.held.get() {
            self.wake(&mut hub);
        }
        value
    }

    /// Wakes the streams that the hub names. Returns how many there were.
    fn wake(&self, hub: &mut WatchHub) -> usize {
        let mut woken = 0;
        let mut waits = self.waits.borrow_mut();
        while let Some(id) = hub.poll_ready() {
            woken += 1;
            let wait = waits.entry(id).or_default();
            wait.named = true;
            if let Some(waker) = wait.waker.take() {
                waker.wake();
            }
        }
        woken
    }

    /// Opens a stream. Its interval is up to a tenth longer than the configured one, so that streams that were opened
    /// together do not all get their progress at once.
    pub fn open(&self, now: Duration) -> StreamId {
        let share = u32::try_from(self.jitter.hash_one(now.as_nanos()) % 1_024).expect("below 1,024");
        let configured = self.progress_interval.get();
        let interval = configured + configured / 10 * share / 1_024;
        self.with_hub(|hub| hub.open_stream(now, interval))
    }

    /// Closes a stream.
    pub fn close(&self, id: StreamId) {
        self.with_hub(|hub| hub.close_stream(id));
        self.waits.borrow_mut().remove(&id);
    }

    /// Whether the hub has named the stream since this was last answered with yes; if not, the waker is called once it
    /// does.
    pub fn poll_named(&self, id: StreamId, waker: &Waker) -> Poll<()> {
        let mut waits = self.waits.borrow_mut();
        let wait = waits.entry(id).or_default();
        if std::mem::take(&mut wait.named) {
            return Poll::Ready(());
        }
        wait.waker = Some(waker.clone());
        Poll::Pending
    }
}
