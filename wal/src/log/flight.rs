//! A batch between its closing and its being durable, and how it is encoded.

use core::time::Duration;

use super::marks::Mark;
use super::pending::OpenBatch;
use super::shard::Place;
use crate::format::{BatchHeader, Checksum, HEADER_SIZE, Kind, Link, Manifest, encode_body, padded_size};
use crate::{AppendNumber, Entry, HardState, OpId};

/// A batch that has its number and its place.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) op: OpId,
    pub(crate) shard: u16,
    pub(crate) place: Place,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    pub(crate) through: AppendNumber,
    pub(crate) started: Duration,
    pub(crate) done: bool,
    pub(crate) size: u64,
    pub(crate) padding: u64,
    pub(crate) entry_count: u32,
    /// Emptied when the batch is encoded.
    entries: Vec<Entry>,
    body_len: u64,
    first_index: u64,
    term_before: u64,
    hard_state: HardState,
    /// Set when the batch is encoded.
    link: Option<Link>,
}

impl Flight {
    pub(crate) fn new(
        op: OpId,
        shard: u16,
        place: Place,
        sequence: u64,
        kind: Kind,
        batch: OpenBatch,
        started: Duration,
    ) -> Flight {
        let size = batch.size();
        Flight {
            op,
            shard,
            place,
            sequence,
            kind,
            through: batch.through,
            started,
            done: false,
            size,
            padding: size - batch.body_len - u64::try_from(HEADER_SIZE).expect("small"),
            entry_count: u32::try_from(batch.entries.len()).expect("bounded"),
            entries: batch.entries,
            body_len: batch.body_len,
            first_index: batch.first_index,
            term_before: batch.term_before,
            hard_state: batch.hard_state,
            link: None,
        }
    }

    /// The batch as a possible anchor.
    pub(crate) fn mark(&self, epoch: u64) -> Mark {
        let link = self.link.expect("a batch is encoded before it is done");
        Mark::new(epoch, self.sequence, self.hard_state, link)
    }
}

/// A seal being written.
#[derive(Debug)]
pub(crate) struct Seal {
    pub(crate) op: OpId,
    pub(crate) shard: u16,
    pub(crate) place: Place,
    /// The batch that it seals.
    pub(crate) mark: Mark,
    pub(crate) filled: bool,
}

/// What every batch carries beside its own content.
pub(crate) struct Context<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) checksum: Checksum,
    pub(crate) epoch: u64,
    pub(crate) durable_sequence: u64,
    pub(crate) previous: Link,
}

/// Encodes a batch once, into the buffer it is written from, and returns what the next one says of it.
pub(crate) fn encode_batch(flight: &mut Flight, context: &Context<'_>, buf: &mut [u8]) -> Link {
    let size = usize::try_from(padded_size(flight.body_len)).expect("a batch fits memory");
    assert!(buf.len() == size, "the buffer has the effect's length");
    let (head, rest) = buf.split_first_chunk_mut::<HEADER_SIZE>().expect("a batch has a header");
    let entries = std::mem::take(&mut flight.entries);
    let body_len = encode_body(&entries, rest);
    let (body, padding) = rest.split_at_mut(body_len);
    padding.fill(0);
    let header = BatchHeader {
        kind: flight.kind,
        keyspace: context.manifest.keyspace,
        log_id: context.manifest.log_id,
        shard: flight.shard,
        segment: flight.place.segment,
        generation: flight.place.generation,
        offset: flight.place.offset,
        epoch: context.epoch,
        sequence: flight.sequence,
        durable_sequence: context.durable_sequence,
        cut: if flight.kind == Kind::EpochStart { flight.sequence - 1 } else { 0 },
        first_index: flight.first_index,
        entry_count: flight.entry_count,
        body_len: u32::try_from(body_len).expect("bounded"),
        term_before: flight.term_before,
        last_term: entries.last().map_or(flight.term_before, |entry| entry.term),
        hard_state: flight.hard_state,
        previous: context.previous,
        body_checksum: context.checksum.of(body),
    };
    assert!(u64::from(header.body_len) == flight.body_len, "sizes were summed as they are encoded");
    let link = header.link(header.encode(context.checksum, head));
    flight.link = Some(link);
    link
}

/// Encodes a seal.
pub(crate) fn encode_seal(seal: &Seal, manifest: &Manifest, checksum: Checksum, buf: &mut [u8]) {
    let (head, rest) = buf.split_first_chunk_mut::<HEADER_SIZE>().expect("a seal has a header");
    rest.fill(0);
    let mark = &seal.mark;
    let header = BatchHeader {
        kind: Kind::Seal,
        keyspace: manifest.keyspace,
        log_id: manifest.log_id,
        shard: seal.shard,
        segment: seal.place.segment,
        generation: seal.place.generation,
        offset: seal.place.offset,
        epoch: mark.epoch,
        sequence: mark.sequence,
        durable_sequence: mark.sequence,
        cut: 0,
        first_index: mark.link.last_index + 1,
        entry_count: 0,
        body_len: 0,
        term_before: mark.link.last_term,
        last_term: mark.link.last_term,
        hard_state: mark.hard_state,
        previous: mark.link,
        body_checksum: checksum.of(&[]),
    };
    header.encode(checksum, head);
}
