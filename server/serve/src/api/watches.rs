//! A core's watch hub and the streams that wait for it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use garboard_replica::events::EventBatch;
use garboard_replica::watch::{StreamId, WatchConfig, WatchHub};

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
#[derive(Debug)]
pub struct Watches {
    hub: RefCell<WatchHub>,
    waits: RefCell<HashMap<StreamId, Wait>>,
    progress_interval: Cell<Duration>,
    jitter: RandomState,
}

impl Watches {
    /// Watches that will be told of every batch after `revision`.
    pub fn new(config: WatchConfig, revision: i64) -> Watches {
        Watches {
            hub: RefCell::new(WatchHub::new(config, revision)),
            waits: RefCell::default(),
            progress_interval: Cell::new(PROGRESS_INTERVAL_DEFAULT),
            jitter: RandomState::new(),
        }
    }

    /// Periodic progress on streams that are opened from now on comes at about this interval.
    pub fn set_progress_interval(&self, interval: Duration) {
        self.progress_interval.set(interval);
    }

    /// Offers a published batch to the watchers.
    pub fn handle_events(&self, batch: &Arc<EventBatch>) {
        self.with_hub(|hub| hub.handle_events(batch));
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

    /// Calls the hub, then wakes the streams for which that made something ready.
    pub fn with_hub<T>(&self, call: impl FnOnce(&mut WatchHub) -> T) -> T {
        let mut hub = self.hub.borrow_mut();
        let value = call(&mut hub);
        let mut waits = self.waits.borrow_mut();
        while let Some(id) = hub.poll_ready() {
            let wait = waits.entry(id).or_default();
            wait.named = true;
            if let Some(waker) = wait.waker.take() {
                waker.wake();
            }
        }
        value
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
