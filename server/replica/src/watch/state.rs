//! Streams and watchers.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use super::blocks::{Block, Builder, event_bytes};
use super::response::{WatchEvent, WatchResponse};
use super::slab::Key;
use crate::canary::{self, Canary};
use crate::events::Event;
use crate::request::KeyRange;

/// Names a stream of a hub. A name is never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(super) Key);

/// A stream has as many responses to requests waiting as it may: its client must read before it asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the watch stream's client does not read its responses")]
pub struct StreamFull;

/// Where a watcher stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It was offered every event up to the hub's revision; of later ones it takes those from `from` on.
    Synced { from: i64 },
    /// Its events before `cursor`, which is not beyond the hub's revision, were sent or are pending; the rest is still
    /// to be found.
    Lagging { cursor: i64 },
    /// The floor passed its cursor. It keeps its id until the client cancels it.
    Compacted,
}

/// Events of one block that are pending on a watcher.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) block: Rc<Block>,
    /// Their positions in the block's batch, in order; never empty.
    pub(super) indices: Vec<usize>,
}

impl Pending {
    fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.indices.iter().map(|index| &self.block.batch.events[*index])
    }

    fn first_revision(&self) -> i64 {
        self.events().next().expect("it is not empty").revision.main
    }
}

#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) stream: StreamId,
    pub(super) watch_id: i64,
    pub(super) keys: KeyRange,
    pub(super) no_put: bool,
    pub(super) no_delete: bool,
    pub(super) prev_kv: bool,
    pub(super) fragment: bool,
    pub(super) progress_notify: bool,
    pub(super) position: Position,
    /// Progress below this revision would say nothing of this watcher.
    pub(super) progress_from: i64,
    /// Nothing was sent since the last time periodic progress was due.
    pub(super) quiet: bool,
    /// It stands in its stream's list of due progress.
    pub(super) due: bool,
    /// It stands in its stream's queue of watchers with events pending.
    pub(super) queued: bool,
    /// In revision order. All revisions are whole.
    pub(super) pending: VecDeque<Pending>,
    /// While events are offered: the revision at which the stream had no room left. Nothing from it on is taken.
    pub(super) stopped_at: Option<i64>,
    /// While events are offered: it was offered one.
    pub(super) touched: bool,
}

impl Watcher {
    /// Whether its filters let an event pass.
    pub(super) fn admits(&self, event: &Event) -> bool {
        if event.deleted { !self.no_delete } else { !self.no_put }
    }

    /// The first revision of which something is pending.
    pub(super) fn first_pending(&self) -> Option<i64> {
        self.pending.front().map(Pending::first_revision)
    }

    /// Bytes of all that is pending.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.iter().flat_map(Pending::events).map(event_bytes).sum()
    }

    /// The first revision that is pending in one of the blocks, which are sorted by their addresses.
    pub(super) fn first_pending_of(&self, blocks: &[*const Block]) -> Option<i64> {
        let mut pending = self.pending.iter();
        let found = pending.find(|pending| blocks.binary_search(&Rc::as_ptr(&pending.block)).is_ok());
        found.map(Pending::first_revision)
    }

    /// Takes an event, unless the stream has no room for it or had none for an earlier one. Then the whole revision is
    /// left, and all that follows.
    pub(super) fn offer(&mut self, key: Key, stream: &mut Stream, block: &Rc<Block>, index: usize) {
        if self.stopped_at.is_some() {
            return;
        }
        let event = &block.batch.events[index];
        let bytes = event_bytes(event);
        let revision = event.revision.main;
        if stream.pending_bytes == 0 {
            stream.let_through = Some((key, revision));
        }
        if stream.pending_bytes + bytes > stream.pending_bytes_max && stream.let_through != Some((key, revision)) {
            if canary::is_on(Canary::StarvedEventsLost) {
                return;
            }
            self.stopped_at = Some(revision);
            stream.pending_bytes -= self.take_back(revision);
            return;
        }
        stream.pending_bytes += bytes;
        match self.pending.back_mut().filter(|last| Rc::ptr_eq(&last.block, block)) {
            Some(last) => last.indices.push(index),
            None => self.pending.push_back(Pending { block: Rc::clone(block), indices: vec![index] }),
        }
    }

    /// Drops what is pending from a revision on; returns the bytes.
    pub(super) fn take_back(&mut self, revision: i64) -> usize {
        let mut bytes = 0;
        while let Some(last) = self.pending.back_mut() {
            while let Some(index) = last.indices.pop() {
                let event = &last.block.batch.events[index];
                if event.revision.main < revision {
                    last.indices.push(index);
                    return bytes;
                }
                bytes += event_bytes(event);
            }
            self.pending.pop_back();
        }
        bytes
    }

    /// Takes whole revisions from the front of what is pending, one at least, up to `limit` bytes; returns them with
    /// their bytes.
    pub(super) fn take_front(&mut self, limit: usize) -> (VecDeque<WatchEvent>, usize) {
        let (mut taken, mut bytes, mut revision) = (VecDeque::new(), 0, None);
        while let Some(first) = self.pending.front_mut() {
            let mut used = 0;
            for &index in &first.indices {
                let event = &first.block.batch.events[index];
                let starts = revision.is_some_and(|revision| revision != event.revision.main);
                if starts && bytes >= limit {
                    break;
                }
                revision = Some(event.revision.main);
                bytes += event_bytes(event);
                taken.push_back(WatchEvent::new(first.block.batch.clone(), index));
                used += 1;
            }
            if used < first.indices.len() {
                first.indices.drain(..used);
                break;
            }
            self.pending.pop_front();
        }
        (taken, bytes)
    }
}

/// A response's events on their way out: first their previous pairs are read, then they leave, perhaps in fragments.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) watcher: Key,
    pub(super) watch_id: i64,
    pub(super) header_revision: i64,
    pub(super) prev_kv: bool,
    pub(super) fragment: bool,
    /// The first of them have left, if `started`.
    pub(super) events: VecDeque<WatchEvent>,
    /// Events whose previous pair was looked up.
    pub(super) looked_up: usize,
    pub(super) started: bool,
}

#[derive(Debug)]
pub(super) struct Stream {
    /// Responses to requests; they go before all else, so that a watcher's creation is told before its events.
    pub(super) control: VecDeque<WatchResponse>,
    /// Its watchers by id, those included that fell behind the floor.
    pub(super) watchers: BTreeMap<i64, Key>,
    /// The next id to choose.
    pub(super) next_id: i64,
    /// Watchers with events pending, each once, in the order in which they are served. Some may have nothing pending
    /// any more, or be gone.
    pub(super) queue: VecDeque<Key>,
    /// Lagging watchers by cursor.
    pub(super) lagging: BTreeSet<(i64, Key)>,
    /// Watchers that fell behind the floor.
    pub(super) compacted: usize,
    /// What is pending on all its watchers.
    pub(super) pending_bytes: usize,
    pub(super) pending_bytes_max: usize,
    /// The watcher and revision that found nothing pending: it is taken whole, however large, or it never could be.
    pub(super) let_through: Option<(Key, i64)>,
    /// Revisions for which progress was asked.
    pub(super) progress: VecDeque<i64>,
    /// Responses to let pass before it is looked again whether progress can be told.
    pub(super) progress_patience: usize,
    /// Watchers to which periodic progress is due.
    pub(super) due: VecDeque<Key>,
    pub(super) progress_watchers: usize,
    pub(super) progress_interval: Duration,
    /// When periodic progress is looked at next.
    pub(super) tick: Duration,
    pub(super) outgoing: Option<Outgoing>,
    pub(super) builder: Option<Builder>,
    /// Responses with events since the last step of catching up.
    pub(super) served: u32,
    /// Its reader was told that there is nothing for it.
    pub(super) waiting: bool,
    /// It stands in the hub's list of ready streams.
    pub(super) listed: bool,
}

impl Stream {
    pub(super) fn new(now: Duration, progress_interval: Duration, pending_bytes_max: usize) -> Self {
        Self {
            control: VecDeque::new(),
            watchers: BTreeMap::new(),
            next_id: 0,
            queue: VecDeque::new(),
            lagging: BTreeSet::new(),
            compacted: 0,
            pending_bytes: 0,
            pending_bytes_max,
            let_through: None,
            progress: VecDeque::new(),
            progress_patience: 0,
            due: VecDeque::new(),
            progress_watchers: 0,
            progress_interval,
            tick: now + progress_interval,
            outgoing: None,
            builder: None,
            served: 0,
            waiting: true,
            listed: false,
        }
    }

    /// Puts a watcher with events pending into the queue, if it is not there.
    pub(super) fn enqueue(&mut self, key: Key, watcher: &mut Watcher) {
        if !watcher.queued && !watcher.pending.is_empty() {
            watcher.queued = true;
            self.queue.push_back(key);
        }
    }
}
