//! What the log remembers of durable batches, so that it can name an anchor.

use std::collections::VecDeque;

use crate::HardState;
use crate::format::{Anchor, Link};
use crate::limits::MARKS_MAX;

/// A durable batch as a possible anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) hard_state: HardState,
    pub(crate) link: Link,
}

/// The durable batches since the last anchor, in order of sequence; when there are too many, every other one.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    base: Anchor,
    ring: VecDeque<Mark>,
}

impl Marks {
    pub(crate) fn new(base: Anchor) -> Marks {
        Marks { base, ring: VecDeque::new() }
    }

    pub(crate) fn base(&self) -> &Anchor {
        &self.base
    }

    pub(crate) fn push(&mut self, mark: Mark) {
        assert!(self.ring.back().map_or(self.base.sequence, |last| last.sequence) < mark.sequence);
        if self.ring.len() == MARKS_MAX {
            // A coarser ring only makes an anchor a little older than it could be.
            let mut keep = false;
            self.ring.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.ring.push_back(mark);
    }

    /// The newest batch whose last index is at most `applied_index`. Everything behind it in the chain is either a
    /// continuation or replaces entries above the commit index, thus above `applied_index`.
    pub(crate) fn anchor(&self, applied_index: u64, durable_sequence: u64) -> Anchor {
        let found = self.ring.iter().rev().find(|mark| mark.link.last_index <= applied_index);
        let mut anchor = self.base;
        if let Some(mark) = found {
            anchor.epoch = mark.epoch;
            anchor.sequence = mark.sequence;
            anchor.last_index = mark.link.last_index;
            anchor.last_term = mark.link.last_term;
            anchor.hard_state = mark.hard_state;
            anchor.link = mark.link;
        }
        assert!(anchor.last_index <= applied_index, "an index never goes back behind its own checkpoint");
        anchor.applied_index = applied_index;
        anchor.durable_sequence = durable_sequence;
        anchor
    }

    /// The anchor is durable: what is before it is forgotten.
    pub(crate) fn rebase(&mut self, anchor: &Anchor) {
        assert!(anchor.sequence >= self.base.sequence, "anchors never go back");
        self.base = *anchor;
        while self.ring.front().is_some_and(|mark| mark.sequence <= anchor.sequence) {
            self.ring.pop_front();
        }
    }
}
