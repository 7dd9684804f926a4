//! The segments of one shard.

use core::time::Duration;
use std::collections::VecDeque;

use crate::limits::{ALIGNMENT, KEPT_SEGMENTS_MAX, PREPARED_SEGMENTS, SEAL_SLOTS};

/// The segment that batches are written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) generation: u64,
    /// Where the next batch goes.
    pub(crate) offset: u64,
    /// The last batch placed here.
    pub(crate) last_sequence: u64,
    /// Whether it may be used again once its batches are below the anchor.
    pub(crate) reusable: bool,
}

/// A segment without live batches, of the configured size, ready to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) number: u64,
    /// Set by the first seal; otherwise by opening.
    pub(crate) generation: Option<u64>,
    /// How many seals were written to its slots since it became ready.
    pub(crate) seal_count: u64,
    /// Whether it held batches before.
    pub(crate) recycled: bool,
}

/// A segment that is not written any more and whose batches may still be needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) number: u64,
    pub(crate) size: u64,
    /// Needed until the anchor reaches this sequence number.
    pub(crate) last_sequence: u64,
    /// Whether it may be used again; otherwise it is removed.
    pub(crate) reusable: bool,
}

/// The segment for one batch that fits no ordinary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oversize {
    None,
    Preparing { size: u64 },
    Prepared { number: u64, size: u64 },
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// One shard's segments. Each file is in exactly one of these places.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) index: u16,
    /// Whether batches are written here; if not, it only waits for its segments to be recycled.
    pub(crate) enabled: bool,
    pub(crate) segment_size: u64,
    pub(crate) active: Option<Active>,
    pub(crate) ready: VecDeque<Ready>,
    pub(crate) retired: Vec<Retired>,
    /// Ordinary segments being prepared.
    pub(crate) preparing: u64,
    pub(crate) oversize: Oversize,
    pub(crate) next_number: u64,
    pub(crate) in_flight: u16,
    /// The disk was full; preparing is tried again then.
    pub(crate) retry_at: Option<Duration>,
}

impl Shard {
    pub(crate) fn new(index: u16, enabled: bool, segment_size: u64) -> Shard {
        Shard {
            index,
            enabled,
            segment_size,
            active: None,
            ready: VecDeque::new(),
            retired: Vec::new(),
            preparing: 0,
            oversize: Oversize::None,
            next_number: 1,
            in_flight: 0,
            retry_at: None,
        }
    }

    /// Whether a batch of this size needs a segment of its own.
    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        size > self.segment_size - SEAL_SLOTS * ALIGNMENT
    }

    /// Whether a batch of this size can be placed now.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        if self.is_oversize(size) {
            return matches!(self.oversize, Oversize::Prepared { size: prepared, .. } if prepared >= size);
        }
        self.active.is_some_and(|active| active.size - active.offset >= size) || !self.ready.is_empty()
    }

    /// Gives a batch its place, opening the next segment where the current one is full.
    ///
    /// `next_generation` is the one that a segment opened now gets.
    pub(crate) fn place(&mut self, size: u64, sequence: u64, next_generation: &mut u64) -> Place {
        assert!(self.enabled && self.has_room(size), "room was checked");
        if self.is_oversize(size) {
            return self.place_oversize(sequence, next_generation);
        }
        if self.active.is_none_or(|active| active.size - active.offset < size) {
            self.open_next(next_generation);
        }
        let active = self.active.as_mut().expect("just opened");
        let place = Place { segment: active.number, generation: active.generation, offset: active.offset };
        active.offset += size;
        active.last_sequence = sequence;
        assert!(active.offset <= active.size, "batches lie within their segment");
        place
    }

    fn place_oversize(&mut self, sequence: u64, next_generation: &mut u64) -> Place {
        let Oversize::Prepared { number, size } = std::mem::replace(&mut self.oversize, Oversize::None) else {
            unreachable!("room was checked");
        };
        self.retired.push(Retired { number, size, last_sequence: sequence, reusable: false });
        Place { segment: number, generation: take_generation(next_generation), offset: 0 }
    }

    fn open_next(&mut self, next_generation: &mut u64) {
        if let Some(full) = self.active.take() {
            let Active { number, size, last_sequence, reusable, .. } = full;
            self.retired.push(Retired { number, size, last_sequence, reusable });
        }
        let ready = self.ready.pop_front().expect("room was checked");
        self.active = Some(Active {
            number: ready.number,
            size: self.segment_size,
            generation: ready.generation.unwrap_or_else(|| take_generation(next_generation)),
            // A seal may still be in flight to its slot: batches never go there.
            offset: if ready.seal_count > 0 { SEAL_SLOTS * ALIGNMENT } else { 0 },
            last_sequence: 0,
            reusable: true,
        });
    }

    /// Gives a seal its place in the next segment.
    pub(crate) fn place_seal(&mut self, next_generation: &mut u64) -> Option<Place> {
        let ready = self.ready.front_mut()?;
        let generation = *ready.generation.get_or_insert_with(|| take_generation(next_generation));
        let offset = ready.seal_count % SEAL_SLOTS * ALIGNMENT;
        ready.seal_count += 1;
        Some(Place { segment: ready.number, generation, offset })
    }

    fn prepared(&self) -> u64 {
        u64::from(self.active.is_some()) + u64::try_from(self.ready.len()).expect("bounded") + self.preparing
    }

    /// Whether another ordinary segment should be prepared now.
    pub(crate) fn wants_segment(&self) -> bool {
        self.enabled && self.retry_at.is_none() && self.prepared() < PREPARED_SEGMENTS
    }

    pub(crate) fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Segments that hold batches which may be needed, or are ready for some.
    pub(crate) fn kept(&self) -> usize {
        usize::from(self.active.is_some()) + self.ready.len() + self.retired.len()
    }

    /// Takes out what the anchor does not need any more: `recycle` what fits, and return what is to be removed.
    pub(crate) fn release(&mut self, anchor_sequence: u64) -> Vec<u64> {
        let mut removed = Vec::new();
        let released: Vec<Retired> =
            self.retired.extract_if(.., |segment| segment.last_sequence <= anchor_sequence).collect();
        for segment in released {
            let fits = segment.reusable && self.enabled && segment.size == self.segment_size;
            let room = self.kept() < KEPT_SEGMENTS_MAX;
            if fits && room {
                let number = segment.number;
                self.ready.push_back(Ready { number, generation: None, seal_count: 0, recycled: true });
            } else {
                removed.push(segment.number);
            }
        }
        removed
    }

    /// Space that batches can take before another segment must be prepared on a full disk. While the disk is not known
    /// to be full, what is about to be prepared counts.
    pub(crate) fn room_bytes(&self) -> u64 {
        let whole = self.segment_size - SEAL_SLOTS * ALIGNMENT;
        let open = self.active.map_or(0, |active| active.size - active.offset);
        let ready = u64::try_from(self.ready.len()).expect("bounded");
        let expected = if self.retry_at.is_none() { PREPARED_SEGMENTS.saturating_sub(self.prepared()) } else { 0 };
        open + (ready + expected + if self.retry_at.is_none() { self.preparing } else { 0 }) * whole
    }

    /// Bytes of all files of this shard.
    pub(crate) fn file_bytes(&self) -> u64 {
        let oversize = if let Oversize::Prepared { size, .. } = self.oversize { size } else { 0 };
        let retired: u64 = self.retired.iter().map(|segment| segment.size).sum();
        let ready = u64::try_from(self.ready.len()).expect("bounded") * self.segment_size;
        self.active.map_or(0, |active| active.size) + ready + retired + oversize
    }
}

fn take_generation(next_generation: &mut u64) -> u64 {
    *next_generation += 1;
    *next_generation - 1
}
