//! The hub: streams open and close, watchers come and go, batches are offered to them.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use garboard_storage::View;

use super::blocks::{Block, Blocks};
use super::index::MatchIndex;
use super::limits::{
    CATCH_UP_BYTES, CATCH_UP_RECORDS, HUB_HISTORY_BYTES, HUB_RECENT_BYTES, HUB_WATCHERS, PROGRESS_INTERVAL_MIN,
    RESPONSE_BYTES, STREAM_CONTROL_RESPONSES, STREAM_PENDING_BYTES, STREAM_PROGRESS_REQUESTS,
};
use super::response::{CancelReason, WatchCreate, WatchResponse};
use super::slab::{Key, Slab};
use super::state::{Position, Stream, StreamFull, StreamId, Watcher};
use crate::canary::{self, Canary};
use crate::events::EventBatch;

/// The id of a response that is about no single watcher.
const NO_WATCHER: i64 = -1;

/// What a hub is told at its making.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchConfig {
    /// Encoded size that a fragment stays below, unless a single event is larger: the largest request that the server
    /// accepts, with its allowance for overhead.
    pub fragment_bytes: u64,
    /// See [`STREAM_PENDING_BYTES`].
    pub stream_pending_bytes: usize,
    /// See [`HUB_RECENT_BYTES`].
    pub hub_recent_bytes: usize,
    /// See [`HUB_HISTORY_BYTES`].
    pub hub_history_bytes: usize,
    /// See [`RESPONSE_BYTES`].
    pub response_bytes: usize,
    /// How far a step of catching up reads.
    pub catch_up: CatchUpBudget,
}

/// How far one step of catching up reads; it ends at the first revision beyond either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUpBudget {
    /// See [`CATCH_UP_RECORDS`].
    pub records: usize,
    /// See [`CATCH_UP_BYTES`].
    pub bytes: usize,
}

impl WatchConfig {
    /// The default bounds.
    pub fn new(fragment_bytes: u64) -> Self {
        Self {
            fragment_bytes,
            stream_pending_bytes: STREAM_PENDING_BYTES,
            hub_recent_bytes: HUB_RECENT_BYTES,
            hub_history_bytes: HUB_HISTORY_BYTES,
            response_bytes: RESPONSE_BYTES,
            catch_up: CatchUpBudget { records: CATCH_UP_RECORDS, bytes: CATCH_UP_BYTES },
        }
    }
}

/// What a hub holds, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WatchStats {
    /// Open streams.
    pub streams: usize,
    /// Watchers of all streams.
    pub watchers: usize,
    /// Watchers that are lagging.
    pub slow_watchers: usize,
    /// Bytes of events pending on all streams, an event counted for each watcher.
    pub pending_bytes: usize,
    /// Bytes of the batches and blocks held, each counted once.
    pub held_bytes: usize,
}

/// The watches of one keyspace on one core.
///
/// Calling order: the batches in the order of their revisions, each after it was published; every view that is passed
/// in is of a root published no earlier than the last batch handled. After any call, [`poll_ready`](Self::poll_ready)
/// names the streams for which [`next_response`](Self::next_response) has something, each once until it has answered
/// `None`.
#[derive(Debug)]
pub struct WatchHub {
    pub(super) config: WatchConfig,
    /// Every event up to it was offered to every synced watcher.
    pub(super) revision: i64,
    pub(super) streams: Slab<Stream>,
    pub(super) watchers: Slab<Watcher>,
    pub(super) index: MatchIndex,
    /// The newest batches, without a gap up to `revision`.
    pub(super) recent: Blocks,
    /// Blocks read for lagging watchers. Once none is left, nothing is kept that is not pending.
    pub(super) history: Blocks,
    /// Lagging watchers of all streams.
    pub(super) lagging_count: usize,
    ready: VecDeque<StreamId>,
    /// Streams with a watcher that wants periodic progress, by when it is looked at next.
    ticks: BTreeSet<(Duration, StreamId)>,
    /// Streams whose clients have asked for progress.
    pub(super) progress_asked: BTreeSet<StreamId>,
}

impl WatchHub {
    /// A hub that will be told of every batch after `revision`.
    pub fn new(config: WatchConfig, revision: i64) -> Self {
        Self {
            config,
            revision,
            streams: Slab::new(),
            watchers: Slab::new(),
            index: MatchIndex::new(),
            recent: Blocks::default(),
            history: Blocks::default(),
            lagging_count: 0,
            ready: VecDeque::new(),
            ticks: BTreeSet::new(),
            progress_asked: BTreeSet::new(),
        }
    }

    /// The revision up to which batches were handled.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// What the hub holds.
    pub fn stats(&self) -> WatchStats {
        let streams = self.streams.keys();
        let streams = streams.iter().filter_map(|key| self.streams.get(*key));
        let pending = streams.map(|stream| stream.pending_bytes).sum();
        WatchStats {
            streams: self.streams.len(),
            watchers: self.watchers.len(),
            slow_watchers: self.lagging_count,
            pending_bytes: pending,
            held_bytes: self.recent.size_bytes() + self.history.size_bytes(),
        }
    }

    /// Opens a stream. `progress_interval` is how long nothing must be sent before periodic progress is: the configured
    /// interval with the stream's own jitter.
    pub fn open_stream(&mut self, now: Duration, progress_interval: Duration) -> StreamId {
        let interval = progress_interval.max(PROGRESS_INTERVAL_MIN);
        StreamId(self.streams.insert(Stream::new(now, interval, self.config.stream_pending_bytes)))
    }

    /// Closes a stream and forgets its watchers.
    pub fn close_stream(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(id.0) else {
            return;
        };
        self.lagging_count -= stream.lagging.len();
        for key in stream.watchers.into_values() {
            let watcher = self.watchers.remove(key).expect("a stream's watchers exist");
            if watcher.position != Position::Compacted {
                self.index.remove(&watcher.keys, key);
            }
        }
        self.ticks.remove(&(stream.tick, id));
        self.progress_asked.remove(&id);
    }

    /// Whether a stream takes requests. While it does not, the client's next request is not to be read.
    pub fn accepts_requests(&self, id: StreamId) -> bool {
        self.streams.get(id.0).is_some_and(|stream| stream.control.len() < STREAM_CONTROL_RESPONSES)
    }

    /// Makes a watcher, or tells the client why not.
    ///
    /// # Errors
    /// [`StreamFull`], which [`accepts_requests`](Self::accepts_requests) foretells.
    pub fn create(
        &mut self,
        now: Duration,
        id: StreamId,
        create: WatchCreate,
        view: &View<'_>,
    ) -> Result<(), StreamFull> {
        self.check_view(view);
        let watcher_count = self.watchers.len();
        let Some(stream) = self.streams.get_mut(id.0) else {
            return Ok(());
        };
        let refusal = if create.start_revision < 0 {
            Some(CancelReason::Compacted)
        } else if create.keys.is_empty() {
            Some(CancelReason::EmptyRange)
        } else if stream.watchers.contains_key(&create.watch_id) && create.watch_id != 0 {
            Some(CancelReason::DuplicateId)
        } else if watcher_count >= HUB_WATCHERS {
            Some(CancelReason::TooManyWatchers)
        } else {
            None
        };
        if let Some(reason) = refusal {
            return self.reject(id, reason, view);
        }
        let watch_id = if create.watch_id == 0 { choose_id(stream) } else { create.watch_id };
        let response = WatchResponse { watch_id, created: true, ..header(view) };
        push_control(stream, response)?;
        self.insert_watcher(now, id, watch_id, create, view);
        self.wake(id);
        Ok(())
    }

    /// Tells the client that a watcher was not made. For requests that are refused before they reach the hub.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn reject(&mut self, id: StreamId, reason: CancelReason, view: &View<'_>) -> Result<(), StreamFull> {
        if let Some(stream) = self.streams.get_mut(id.0) {
            let cancel_reason = Some(reason);
            let answer = WatchResponse { watch_id: NO_WATCHER, created: true, canceled: true, ..header(view) };
            push_control(stream, WatchResponse { cancel_reason, ..answer })?;
            self.wake(id);
        }
        Ok(())
    }

    /// Ends a watcher and tells the client; an unknown id is met with silence.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn cancel(&mut self, id: StreamId, watch_id: i64, view: &View<'_>) -> Result<(), StreamFull> {
        let Some(stream) = self.streams.get_mut(id.0) else {
            return Ok(());
        };
        let Some(&key) = stream.watchers.get(&watch_id) else {
            return Ok(());
        };
        push_control(stream, WatchResponse { watch_id, canceled: true, ..header(view) })?;
        self.remove_watcher(id, watch_id, key);
        self.wake(id);
        Ok(())
    }

    /// Asks for progress of a whole stream. It is dropped without a word unless the stream has watchers and all of them
    /// are synced and have started; otherwise the client is told once it was sent every event up to the view's
    /// revision.
    pub fn request_progress(&mut self, id: StreamId, view: &View<'_>) {
        self.check_view(view);
        let Some(stream) = self.streams.get_mut(id.0) else {
            return;
        };
        let behind = !stream.lagging.is_empty() && !canary::is_on(Canary::ProgressAhead);
        let unsynced = behind || stream.compacted > 0 || stream.watchers.is_empty();
        if unsynced || stream.progress.len() >= STREAM_PROGRESS_REQUESTS {
            return;
        }
        let revision = view.revision();
        let watchers = &self.watchers;
        let started = |key: &Key| watchers.get(*key).is_some_and(|watcher| watcher.progress_from <= revision);
        if stream.watchers.values().all(started) {
            stream.progress.push_back(revision);
            self.progress_asked.insert(id);
            self.wake(id);
        }
    }

    /// Offers the events of a published batch to all synced watchers. A batch that was handled before, or that a
    /// restored state included, is ignored.
    pub fn handle_events(&mut self, batch: &Arc<EventBatch>) {
        if batch.last_revision <= self.revision {
            return;
        }
        if batch.first_revision != self.revision + 1 {
            self.handle_restore(batch.first_revision - 1);
        }
        let block = Block::new(batch.first_revision, batch.last_revision, Arc::clone(batch));
        let mut touched = Vec::new();
        for (index, event) in batch.events.iter().enumerate() {
            let (watchers, streams) = (&mut self.watchers, &mut self.streams);
            self.index.find(&event.kv.key, &mut |key| {
                let watcher = watchers.get_mut(key).expect("the index names watchers that exist");
                let early = canary::is_on(Canary::FutureWatchEarly);
                let takes =
                    matches!(watcher.position, Position::Synced { from } if from <= event.revision.main || early);
                if takes && watcher.admits(event) {
                    let stream = streams.get_mut(watcher.stream.0).expect("a watcher's stream exists");
                    watcher.offer(key, stream, &block, index);
                    if !std::mem::replace(&mut watcher.touched, true) {
                        touched.push(key);
                    }
                }
            });
        }
        self.revision = batch.last_revision;
        for key in touched {
            self.settle(key, None);
        }
        self.recent.push(block);
        self.let_go();
        for id in self.progress_asked.clone() {
            self.wake(id);
        }
    }

    /// The store's state was replaced by a snapshot at `revision`: what lies between was not told batch by batch, and
    /// every watcher finds it by itself.
    pub fn handle_restore(&mut self, revision: i64) {
        if revision <= self.revision {
            return;
        }
        let missed_from = self.revision + 1;
        self.revision = revision;
        if canary::is_on(Canary::RestoredWatchSkips) {
            return;
        }
        for block in self.recent.shrink(0, false) {
            self.history.push(block);
        }
        for key in self.watchers.keys() {
            let watcher = self.watchers.get_mut(key).expect("just listed");
            if let Position::Synced { from } = watcher.position {
                let id = watcher.stream;
                self.place(key, from.max(missed_from));
                self.wake(id);
            }
        }
        self.let_go();
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.ticks.first().map(|(tick, _)| *tick)
    }

    /// Looks to whom periodic progress is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some(&(tick, id)) = self.ticks.first().filter(|(tick, _)| *tick <= now) {
            self.ticks.remove(&(tick, id));
            let stream = self.streams.get_mut(id.0).expect("a stream that ticks is open");
            stream.tick = next_tick(tick, stream.progress_interval, now);
            self.ticks.insert((stream.tick, id));
            let mut any = false;
            for &key in stream.watchers.values() {
                let watcher = self.watchers.get_mut(key).expect("a stream's watchers exist");
                if !watcher.progress_notify {
                    continue;
                }
                let synced = matches!(watcher.position, Position::Synced { .. }) && watcher.pending.is_empty();
                if std::mem::replace(&mut watcher.quiet, true) && synced && !std::mem::replace(&mut watcher.due, true) {
                    stream.due.push_back(key);
                    any = true;
                }
            }
            if any {
                self.wake(id);
            }
        }
    }

    /// A stream that has something to read. It is named once until its reader was told that there is nothing left.
    pub fn poll_ready(&mut self) -> Option<StreamId> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(stream) = self.streams.get_mut(id.0) {
                stream.listed = false;
                return Some(id);
            }
        }
        None
    }

    pub(super) fn check_view(&self, view: &View<'_>) {
        assert!(view.revision() >= self.revision, "a view is no older than the batches that were handled");
    }

    /// Names a stream as ready, if its reader waits.
    pub(super) fn wake(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id.0)
            && std::mem::replace(&mut stream.waiting, false)
            && !std::mem::replace(&mut stream.listed, true)
        {
            self.ready.push_back(id);
        }
    }

    fn insert_watcher(&mut self, now: Duration, id: StreamId, watch_id: i64, create: WatchCreate, view: &View<'_>) {
        let start = create.start_revision;
        let current = view.revision();
        let watcher = Watcher {
            stream: id,
            watch_id,
            keys: create.keys,
            no_put: create.no_put,
            no_delete: create.no_delete,
            prev_kv: create.prev_kv,
            fragment: create.fragment,
            progress_notify: create.progress_notify,
            position: Position::Compacted,
            progress_from: if start > 0 { start } else { current },
            quiet: true,
            due: false,
            queued: false,
            pending: VecDeque::new(),
            stopped_at: None,
            touched: false,
        };
        let keys = watcher.keys.clone();
        let key = self.watchers.insert(watcher);
        self.index.insert(&keys, key);
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        let replaced = stream.watchers.insert(watch_id, key);
        assert!(replaced.is_none(), "an id names one watcher of a stream");
        if create.progress_notify {
            stream.progress_watchers += 1;
            if stream.progress_watchers == 1 {
                stream.tick = next_tick(stream.tick, stream.progress_interval, now);
                self.ticks.insert((stream.tick, id));
            }
        }
        self.place(key, if start > 0 { start } else { current + 1 });
    }

    fn remove_watcher(&mut self, id: StreamId, watch_id: i64, key: Key) {
        let watcher = self.watchers.remove(key).expect("a stream's watchers exist");
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        stream.watchers.remove(&watch_id);
        stream.pending_bytes -= watcher.pending_bytes();
        if watcher.progress_notify {
            stream.progress_watchers -= 1;
            if stream.progress_watchers == 0 {
                self.ticks.remove(&(stream.tick, id));
            }
        }
        match watcher.position {
            Position::Synced { .. } => {}
            Position::Lagging { cursor } => {
                assert!(stream.lagging.remove(&(cursor, key)), "a lagging watcher is in its stream's list");
                self.lagging_count -= 1;
            }
            Position::Compacted => stream.compacted -= 1,
        }
        if watcher.position != Position::Compacted {
            self.index.remove(&watcher.keys, key);
        }
        // The rest of a response that has begun to leave must follow it; one that has not is dropped.
        if stream.outgoing.as_ref().is_some_and(|outgoing| outgoing.watcher == key && !outgoing.started) {
            stream.outgoing = None;
        }
    }

    /// Puts a watcher where its cursor says: lagging up to the hub's revision, synced beyond.
    pub(super) fn place(&mut self, key: Key, cursor: i64) {
        let watcher = self.watchers.get_mut(key).expect("the caller found it");
        let stream = self.streams.get_mut(watcher.stream.0).expect("a watcher's stream exists");
        if let Position::Lagging { cursor } = watcher.position {
            assert!(stream.lagging.remove(&(cursor, key)), "a lagging watcher is in its stream's list");
            self.lagging_count -= 1;
        }
        watcher.position = if cursor > self.revision {
            Position::Synced { from: cursor }
        } else {
            stream.lagging.insert((cursor, key));
            self.lagging_count += 1;
            Position::Lagging { cursor }
        };
        if self.lagging_count == 0 {
            self.history.shrink_unused(0);
        }
    }

    /// After events were offered to a watcher: queues what it took and places it where it stopped, or else at
    /// `reached`, if that is given.
    pub(super) fn settle(&mut self, key: Key, reached: Option<i64>) {
        let watcher = self.watchers.get_mut(key).expect("the caller found it");
        watcher.touched = false;
        let id = watcher.stream;
        let cursor = watcher.stopped_at.take().or(reached);
        let stream = self.streams.get_mut(id.0).expect("a watcher's stream exists");
        stream.enqueue(key, watcher);
        if let Some(cursor) = cursor {
            self.place(key, cursor);
        }
        self.wake(id);
    }

    /// Lets go of the oldest batches and blocks over the bounds, and makes watchers lag to which they are pending.
    pub(super) fn let_go(&mut self) {
        self.recent.shrink_unused(self.config.hub_recent_bytes / 4);
        let mut doomed = Vec::new();
        if self.recent.size_bytes() > self.config.hub_recent_bytes {
            // More than the excess goes at once, so that the search for watchers is rare.
            doomed.extend(self.recent.shrink(self.config.hub_recent_bytes / 4 * 3, false));
        }
        doomed.extend(self.history.shrink(self.config.hub_history_bytes, true));
        doomed.retain(|block| Rc::strong_count(block) > 1);
        if doomed.is_empty() {
            return;
        }
        let mut doomed: Vec<*const Block> = doomed.iter().map(Rc::as_ptr).collect();
        doomed.sort_unstable();
        for key in self.watchers.keys() {
            let watcher = self.watchers.get_mut(key).expect("just listed");
            let Some(revision) = watcher.first_pending_of(&doomed) else {
                continue;
            };
            let stream = self.streams.get_mut(watcher.stream.0).expect("a watcher's stream exists");
            stream.pending_bytes -= watcher.take_back(revision);
            self.place(key, revision);
        }
    }
}

fn header(view: &View<'_>) -> WatchResponse {
    WatchResponse { header_revision: view.revision(), ..WatchResponse::default() }
}

fn push_control(stream: &mut Stream, response: WatchResponse) -> Result<(), StreamFull> {
    if stream.control.len() >= STREAM_CONTROL_RESPONSES {
        return Err(StreamFull);
    }
    stream.control.push_back(response);
    Ok(())
}

/// The smallest id not below the stream's next one that no watcher has.
fn choose_id(stream: &mut Stream) -> i64 {
    while stream.watchers.contains_key(&stream.next_id) {
        stream.next_id += 1;
    }
    let id = stream.next_id;
    stream.next_id += 1;
    id
}

/// The first tick after `now` of those that follow `tick` at `interval`.
fn next_tick(tick: Duration, interval: Duration, now: Duration) -> Duration {
    if tick > now {
        return tick;
    }
    let missed = (now - tick).as_nanos() / interval.as_nanos();
    let missed = u32::try_from(missed).unwrap_or(u32::MAX - 1);
    tick + interval * (missed + 1)
}
