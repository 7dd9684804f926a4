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
    /// The lowest first index of this batch and of the ones right before it that are not remembered.
    pub(crate) lowest_index: u64,
    /// Bytes of all batches up to the end of this one that this process has read or written.
    position: u64,
}

impl Mark {
    pub(crate) fn new(epoch: u64, sequence: u64, hard_state: HardState, link: Link) -> Mark {
        Mark { epoch, sequence, hard_state, link, lowest_index: link.first_index, position: 0 }
    }
}

const _: () = assert!(MARKS_MAX.is_multiple_of(2));

/// The durable batches since the last anchor, in order of sequence; when there are too many, every other one.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    base: Anchor,
    ring: VecDeque<Mark>,
    /// The position of the anchor's batch.
    base_position: u64,
    /// The position of the newest batch.
    position: u64,
}

impl Marks {
    pub(crate) fn new(base: Anchor) -> Marks {
        Marks { base, ring: VecDeque::new(), base_position: 0, position: 0 }
    }

    pub(crate) fn base(&self) -> &Anchor {
        &self.base
    }

    /// Bytes of the batches behind the newest durable anchor: what a start would replay.
    pub(crate) fn replay_bytes(&self) -> u64 {
        self.position - self.base_position
    }

    /// A batch of `size` bytes is durable.
    pub(crate) fn push(&mut self, mark: Mark, size: u64) {
        assert!(self.ring.back().map_or(self.base.sequence, |last| last.sequence) < mark.sequence);
        if self.ring.len() == MARKS_MAX {
            self.thin();
        }
        self.position += size;
        self.ring.push_back(Mark { position: self.position, ..mark });
    }

    /// Forgets every other batch: a coarser ring only makes an anchor a little older than it could be.
    fn thin(&mut self) {
        let mut dropped: Option<u64> = None;
        self.ring.retain_mut(|mark| match dropped.take() {
            None => {
                dropped = Some(mark.lowest_index);
                false
            }
            Some(lowest) => {
                mark.lowest_index = mark.lowest_index.min(lowest);
                true
            }
        });
        assert!(dropped.is_none(), "the ring has an even size, so that the newest batch is kept");
    }

    /// The newest batch whose last index is at most `applied_index` and of whose entries none was replaced later.
    pub(crate) fn anchor(&self, applied_index: u64, durable_sequence: u64) -> Anchor {
        let mut lowest = u64::MAX;
        let found = self.ring.iter().rev().find(|mark| {
            let stands = mark.link.last_index <= applied_index && mark.link.last_index < lowest;
            lowest = lowest.min(mark.lowest_index);
            stands
        });
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
        while let Some(mark) = self.ring.pop_front_if(|mark| mark.sequence <= anchor.sequence) {
            self.base_position = mark.position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Kind;

    fn mark(sequence: u64, first_index: u64, last_index: u64) -> Mark {
        let link = Link { kind: Kind::Entries, first_index, last_index, last_term: 1, checksum: 7 };
        Mark::new(1, sequence, HardState::default(), link)
    }

    #[test]
    fn an_anchor_never_lies_behind_entries_that_were_replaced() {
        let mut marks = Marks::new(Anchor::genesis(1));
        for (sequence, first, last) in [(1, 1, 4), (2, 5, 9), (3, 8, 12), (4, 13, 13)] {
            marks.push(mark(sequence, first, last), 4096);
        }
        let sequences = [0, 3, 4, 9, 11, 12, 13].map(|applied| marks.anchor(applied, 4).sequence);
        assert_eq!(sequences, [0, 0, 1, 1, 1, 3, 4]);
    }

    #[test]
    fn a_full_ring_forgets_batches_and_still_never_names_a_replaced_one() {
        let mut marks = Marks::new(Anchor::genesis(1));
        for sequence in 1..=10 * u64::try_from(MARKS_MAX).unwrap() {
            // Each batch replaces the last entry of the one before it.
            marks.push(mark(sequence, 10 * sequence, 10 * sequence + 10), 4096);
        }
        assert!(marks.ring.len() <= MARKS_MAX);
        assert_eq!(marks.anchor(u64::MAX, 1).sequence, 10 * u64::try_from(MARKS_MAX).unwrap());
        assert_eq!(marks.anchor(10 * 10 * u64::try_from(MARKS_MAX).unwrap() + 9, 1).sequence, 0);
    }
    #[test]
    fn what_a_start_would_replay_is_what_was_written_behind_the_anchor() {
        let mut marks = Marks::new(Anchor::genesis(1));
        for sequence in 1..=10 {
            marks.push(mark(sequence, sequence, sequence), 1000 * sequence);
        }
        assert_eq!(marks.replay_bytes(), 55_000);
        let anchor = marks.anchor(7, 10);
        marks.rebase(&anchor);
        assert_eq!(marks.replay_bytes(), 8_000 + 9_000 + 10_000);
    }
}
