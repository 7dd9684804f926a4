//! Batches of events that a hub holds, and how long.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use garboard_storage::{Paged, Record, Revision, View};

use super::hub::CatchUpBudget;
use super::limits::EVENT_OVERHEAD_BYTES;
use crate::events::{Event, EventBatch};
use crate::read::fault::may_miss;
use crate::request::KeyValue;

/// All events of a span of revisions.
#[derive(Debug)]
pub(super) struct Block {
    /// The first revision covered.
    pub(super) first: i64,
    /// The last revision covered.
    pub(super) last: i64,
    pub(super) batch: Arc<EventBatch>,
    pub(super) size_bytes: usize,
}

impl Block {
    pub(super) fn new(first: i64, last: i64, batch: Arc<EventBatch>) -> Rc<Self> {
        let size_bytes = batch.events.iter().map(event_bytes).sum::<usize>() + EVENT_OVERHEAD_BYTES;
        Rc::new(Self { first, last, batch, size_bytes })
    }

    fn covers(&self, revision: i64) -> bool {
        (self.first..=self.last).contains(&revision)
    }
}

/// What an event is taken to occupy.
pub(super) fn event_bytes(event: &Event) -> usize {
    event.kv.key.len() + event.kv.value.len() + EVENT_OVERHEAD_BYTES
}

/// Blocks with a bound on what they occupy together, oldest first.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: VecDeque<Rc<Block>>,
    size_bytes: usize,
}

impl Blocks {
    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    pub(super) fn push(&mut self, block: Rc<Block>) {
        self.size_bytes += block.size_bytes;
        self.blocks.push_back(block);
    }

    /// Takes the oldest blocks until no more than `bytes` are left, or, with `keep_newest`, one block.
    pub(super) fn shrink(&mut self, bytes: usize, keep_newest: bool) -> Vec<Rc<Block>> {
        let mut taken = Vec::new();
        while self.size_bytes > bytes && self.blocks.len() > usize::from(keep_newest) {
            let block = self.blocks.pop_front().expect("it is not empty");
            self.size_bytes -= block.size_bytes;
            taken.push(block);
        }
        taken
    }

    /// Drops the oldest blocks in which nothing is pending until no more than `bytes` are left.
    pub(super) fn shrink_unused(&mut self, bytes: usize) {
        while self.size_bytes > bytes
            && let Some(block) = self.blocks.pop_front_if(|block| Rc::strong_count(block) == 1)
        {
            self.size_bytes -= block.size_bytes;
        }
    }

    /// Any block that covers a revision, the newest first.
    pub(super) fn covering(&self, revision: i64) -> Option<Rc<Block>> {
        self.blocks.iter().rev().find(|block| block.covers(revision)).map(Rc::clone)
    }

    /// Blocks in a row from the one that covers `revision`, for blocks that follow each other without a gap: about as
    /// many as one step of catching up takes. Empty when the oldest block is younger.
    pub(super) fn run_from(&self, revision: i64, budget: CatchUpBudget) -> Vec<Rc<Block>> {
        if self.blocks.front().is_none_or(|oldest| revision < oldest.first) {
            return Vec::new();
        }
        let start = self.blocks.partition_point(|block| block.last < revision);
        let (mut events, mut bytes, mut run) = (0, 0, Vec::new());
        for block in self.blocks.range(start..) {
            if events >= budget.records || bytes >= budget.bytes {
                break;
            }
            events += block.batch.events.len();
            bytes += block.size_bytes;
            run.push(Rc::clone(block));
        }
        run
    }
}

/// Reads a block from the index, in bounded steps.
#[derive(Debug)]
pub(super) struct Builder {
    /// Everything from this revision on, before `next`, has been read.
    first: i64,
    next: Revision,
    events: Vec<Event>,
    size_bytes: usize,
}

impl Builder {
    pub(super) fn new(first: i64) -> Self {
        Self { first, next: Revision { main: first, sub: 0 }, events: Vec::new(), size_bytes: 0 }
    }

    /// Whether what it will have read covers `revision`.
    pub(super) fn serves(&self, revision: i64) -> bool {
        self.first <= revision && revision <= self.next.main
    }

    /// Reads on, through revision `last` at most; `None` when the step's budget is spent within a revision. The block
    /// ends at the first revision after which it is large enough. On a missing page what was read stays.
    pub(super) fn step(&mut self, view: &View<'_>, last: i64, budget: CatchUpBudget) -> Paged<Option<Rc<Block>>> {
        // What compaction has reached may be incomplete by now.
        self.first = self.first.max(view.compacted());
        let mut cursor = view.events(self.next);
        let mut records = 0;
        loop {
            may_miss()?;
            let record = cursor.next()?.filter(|record| record.revision.main <= last);
            let Some(record) = record else {
                return Ok(Some(self.finish(last)));
            };
            let within = self.events.last().is_some_and(|event| event.revision.main == record.revision.main);
            let large = self.events.len() >= budget.records || self.size_bytes >= budget.bytes;
            if large && !within {
                return Ok(Some(self.finish(record.revision.main - 1)));
            }
            if records >= budget.records {
                return Ok(None);
            }
            records += 1;
            self.next = Revision { main: record.revision.main, sub: record.revision.sub + 1 };
            let event = to_event(record);
            self.size_bytes += event_bytes(&event);
            self.events.push(event);
        }
    }

    fn finish(&mut self, last: i64) -> Rc<Block> {
        let first = self.first;
        let mut events = std::mem::take(&mut self.events);
        events.retain(|event| event.revision.main >= first);
        Block::new(first, last, Arc::new(EventBatch { first_revision: first, last_revision: last, events }))
    }
}

/// A record of the history as the event it was.
fn to_event(record: Record) -> Event {
    let mod_revision = record.revision.main;
    if record.deleted {
        let kv = KeyValue { key: record.key, mod_revision, ..KeyValue::default() };
        return Event { deleted: true, kv, revision: record.revision, previous: record.previous };
    }
    let kv = KeyValue {
        key: record.key,
        create_revision: record.create_revision,
        mod_revision,
        version: record.version,
        value: record.value,
        lease: record.lease,
    };
    // The version before a creation, if there is one, is a deletion, which is nothing that the event replaced.
    let previous = record.previous.filter(|_| record.version > 1);
    Event { deleted: false, kv, revision: record.revision, previous }
}
