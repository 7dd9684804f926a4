//! What a watch asks for and what it is answered, in domain types.

use std::sync::Arc;

use bytes::Bytes;

use crate::events::{Event, EventBatch};
use crate::read::wire;
use crate::request::{KeyRange, KeyValue};

/// A request to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchCreate {
    /// The id to give the watcher; 0: the stream chooses.
    pub watch_id: i64,
    /// The keys; [`watched_keys`](Self::watched_keys) reads them off the wire.
    pub keys: KeyRange,
    /// The first revision to send events of; 0: whatever comes after now.
    pub start_revision: i64,
    /// Send progress when nothing else was sent for an interval.
    pub progress_notify: bool,
    /// Send with each event what its key held before.
    pub prev_kv: bool,
    /// Allow a revision's events to be split over responses.
    pub fragment: bool,
    /// Leave puts out.
    pub no_put: bool,
    /// Leave deletions out.
    pub no_delete: bool,
}

impl WatchCreate {
    /// The keys that a request's `key` and `range_end` name. An empty key stands for the smallest one.
    pub fn watched_keys(key: Bytes, range_end: Bytes) -> KeyRange {
        let key = if key.is_empty() { Bytes::from_static(b"\0") } else { key };
        match &range_end[..] {
            [] => KeyRange::Point(key),
            [0] => KeyRange::FromKey(key),
            _ => KeyRange::Span { start: key, end: range_end },
        }
    }
}

/// Why a watch was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The start revision is negative.
    Compacted,
    /// No key can be in the range.
    EmptyRange,
    /// The stream has a watcher of that id.
    DuplicateId,
    /// The hub has as many watchers as it may.
    TooManyWatchers,
    /// The client may not watch the keys; the text says why.
    Denied(String),
}

/// One response of a watch stream.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct WatchResponse {
    /// The watcher; −1: none was made, or, with progress, all of the stream.
    pub watch_id: i64,
    /// Answers a request to watch.
    pub created: bool,
    /// The watcher will send nothing more.
    pub canceled: bool,
    /// The floor that a canceled watcher fell behind; 0: it did not.
    pub compact_revision: i64,
    /// Why no watcher was made.
    pub cancel_reason: Option<CancelReason>,
    /// The header's revision.
    pub header_revision: i64,
    /// More of this response follows in the next.
    pub fragment: bool,
    /// The events.
    pub events: Vec<WatchEvent>,
}

/// An event of a response. It shares its key and value with every other response that has it.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    batch: Arc<EventBatch>,
    index: usize,
    previous: Option<Box<KeyValue>>,
}

impl PartialEq for WatchEvent {
    fn eq(&self, other: &Self) -> bool {
        self.event() == other.event() && self.previous == other.previous
    }
}

impl WatchEvent {
    pub(super) fn new(batch: Arc<EventBatch>, index: usize) -> Self {
        assert!(index < batch.events.len(), "an event's position lies in its batch");
        Self { batch, index, previous: None }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.batch.events[self.index]
    }

    /// What the key held before, if the watcher asked for it and it is known.
    pub fn previous(&self) -> Option<&KeyValue> {
        self.previous.as_deref()
    }

    pub(super) fn set_previous(&mut self, previous: Option<KeyValue>) {
        self.previous = previous.map(Box::new);
    }

    /// Encoded length as a field of the response. `Event`: type = 1, kv = 2, prev_kv = 3; its own field number takes
    /// one byte too.
    pub(super) fn encoded_len(&self) -> u64 {
        let kind = wire::int64_len(i64::from(self.event().deleted));
        let pair = |kv: &KeyValue| wire::delimited_len(wire::key_value_len(kv));
        wire::delimited_len(kind + pair(&self.event().kv) + self.previous().map_or(0, pair))
    }
}
