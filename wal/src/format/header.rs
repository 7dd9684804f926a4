//! The header of a batch.

use super::codec::{Decoder, Encoder};
use super::{Checksum, FORMAT_VERSION};
use crate::HardState;
use crate::limits::{ALIGNMENT, BATCH_ENTRIES_MAX, BODY_SIZE_MAX_BYTES, COUNTER_MAX, SECTOR_SIZE};

/// Bytes of a header. It lies within one sector, so that a crash leaves a whole header or none.
pub(crate) const HEADER_SIZE: usize = 192;
const HEADER_BYTES: u64 = 192;
const MAGIC: [u8; 8] = *b"gbrdwal\0";
const CHECKSUM_AT: usize = HEADER_SIZE - 4;

const _: () = assert!(HEADER_SIZE <= SECTOR_SIZE && HEADER_SIZE == 192 && HEADER_BYTES == 192);

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Entries and the hard state after them.
    Entries,
    /// A hard state only.
    State,
    /// The first batch of a process: what older epochs left beyond its cut is dead. It may carry entries.
    EpochStart,
    /// Says that everything up to its sequence number is durable. Outside the chain.
    Seal,
}

impl Kind {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Kind::Entries => 1,
            Kind::State => 2,
            Kind::EpochStart => 3,
            Kind::Seal => 4,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Entries),
            2 => Some(Kind::State),
            3 => Some(Kind::EpochStart),
            4 => Some(Kind::Seal),
            _ => None,
        }
    }
}

/// What a batch says of the one before it in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) kind: Kind,
    pub(crate) first_index: u64,
    /// The log's last index after that batch.
    pub(crate) last_index: u64,
    /// The term of the entry at `last_index`.
    pub(crate) last_term: u64,
    /// The checksum of that batch's header.
    pub(crate) checksum: u32,
}

/// A batch's header; `docs/log-format.md` says what each field promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) kind: Kind,
    pub(crate) keyspace: u32,
    pub(crate) log_id: u128,
    pub(crate) shard: u16,
    pub(crate) segment: u64,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    /// Everything up to this sequence number was durable when this batch was encoded.
    pub(crate) durable_sequence: u64,
    /// Of an epoch start: the last sequence number that older epochs contribute. Otherwise zero.
    pub(crate) cut: u64,
    pub(crate) first_index: u64,
    pub(crate) entry_count: u32,
    pub(crate) body_len: u32,
    /// The term of the entry before the first one.
    pub(crate) term_before: u64,
    /// The term of the log's last entry after this batch.
    pub(crate) last_term: u64,
    pub(crate) hard_state: HardState,
    pub(crate) previous: Link,
    pub(crate) body_checksum: u32,
}

impl BatchHeader {
    /// The log's last index after this batch.
    pub(crate) fn last_index(&self) -> u64 {
        self.first_index + u64::from(self.entry_count) - 1
    }

    /// Bytes that the batch takes on disk.
    pub(crate) fn size(&self) -> u64 {
        padded_size(u64::from(self.body_len))
    }

    /// How a following batch refers to this one, whose encoded header has this checksum.
    pub(crate) fn link(&self, checksum: u32) -> Link {
        Link {
            kind: self.kind,
            first_index: self.first_index,
            last_index: self.last_index(),
            last_term: self.last_term,
            checksum,
        }
    }

    /// Writes the header and returns its checksum.
    pub(crate) fn encode(&self, checksum: Checksum, bytes: &mut [u8; HEADER_SIZE]) -> u32 {
        assert!(self.is_plausible(), "a header that recovery would refuse is never written");
        let mut out = Encoder::new(bytes);
        out.put(&MAGIC);
        out.u16(FORMAT_VERSION);
        out.u8(self.kind.to_byte());
        out.u8(self.previous.kind.to_byte());
        out.u32(self.keyspace);
        out.u128(self.log_id);
        out.u16(self.shard);
        out.put(&[0; 6]);
        out.u64(self.segment);
        out.u64(self.generation);
        out.u64(self.offset);
        out.u64(self.epoch);
        out.u64(self.sequence);
        out.u64(self.durable_sequence);
        out.u64(self.cut);
        out.u64(self.first_index);
        out.u32(self.entry_count);
        out.u32(self.body_len);
        out.u64(self.term_before);
        out.u64(self.last_term);
        out.u64(self.hard_state.term);
        out.u64(self.hard_state.vote);
        out.u64(self.hard_state.commit);
        out.u64(self.previous.first_index);
        out.u64(self.previous.last_index);
        out.u64(self.previous.last_term);
        out.u32(self.previous.checksum);
        out.u32(self.body_checksum);
        out.put(&[0; 4]);
        assert_eq!(out.position(), CHECKSUM_AT);
        let sum = checksum.of(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        sum
    }

    /// Reads a header and its checksum; `None` unless every bit of it verifies and no bound is exceeded.
    pub(crate) fn decode(checksum: Checksum, bytes: &[u8; HEADER_SIZE]) -> Option<(BatchHeader, u32)> {
        if bytes[..MAGIC.len()] != MAGIC {
            return None;
        }
        let (covered, stored) = bytes.split_last_chunk::<4>()?;
        let sum = u32::from_le_bytes(*stored);
        if checksum.of(covered) != sum {
            return None;
        }
        let header = BatchHeader::decode_fields(&covered[MAGIC.len()..])?;
        header.is_plausible().then_some((header, sum))
    }

    fn decode_fields(covered: &[u8]) -> Option<BatchHeader> {
        let mut fields = Decoder::new(covered);
        if fields.u16()? != FORMAT_VERSION {
            return None;
        }
        let kind = Kind::from_byte(fields.u8()?)?;
        let previous_kind = Kind::from_byte(fields.u8()?)?;
        let keyspace = fields.u32()?;
        let log_id = fields.u128()?;
        let shard = fields.u16()?;
        fields.take(6)?;
        let header = BatchHeader {
            kind,
            keyspace,
            log_id,
            shard,
            segment: fields.u64()?,
            generation: fields.u64()?,
            offset: fields.u64()?,
            epoch: fields.u64()?,
            sequence: fields.u64()?,
            durable_sequence: fields.u64()?,
            cut: fields.u64()?,
            first_index: fields.u64()?,
            entry_count: fields.u32()?,
            body_len: fields.u32()?,
            term_before: fields.u64()?,
            last_term: fields.u64()?,
            hard_state: HardState { term: fields.u64()?, vote: fields.u64()?, commit: fields.u64()? },
            previous: Link {
                kind: previous_kind,
                first_index: fields.u64()?,
                last_index: fields.u64()?,
                last_term: fields.u64()?,
                checksum: fields.u32()?,
            },
            body_checksum: fields.u32()?,
        };
        fields.take(4)?;
        assert_eq!(fields.remaining(), 0);
        Some(header)
    }

    /// Whether the fields agree with each other, so that arithmetic on them cannot overflow.
    fn is_plausible(&self) -> bool {
        let entries = usize::try_from(self.entry_count).unwrap_or(usize::MAX);
        let bounded = u64::from(self.body_len) <= BODY_SIZE_MAX_BYTES
            && entries <= BATCH_ENTRIES_MAX
            && self.offset.is_multiple_of(ALIGNMENT)
            && self.first_index >= 1
            && self.first_index < 2 * COUNTER_MAX
            && self.sequence < 2 * COUNTER_MAX
            && self.epoch < 2 * COUNTER_MAX
            && self.generation < 2 * COUNTER_MAX;
        let of_kind = match self.kind {
            Kind::Entries => self.entry_count > 0 && self.cut == 0,
            Kind::State => self.entry_count == 0 && self.cut == 0,
            Kind::EpochStart => self.cut.checked_add(1) == Some(self.sequence) && self.durable_sequence == self.cut,
            Kind::Seal => self.entry_count == 0 && self.durable_sequence == self.sequence && self.cut == 0,
        };
        let in_order = match self.kind {
            Kind::Seal => true,
            _ => self.sequence >= 1 && self.durable_sequence < self.sequence,
        };
        bounded && of_kind && in_order && (self.entry_count == 0) == (self.body_len == 0)
    }
}

/// Bytes on disk of a batch whose body has `body_len` bytes.
pub(crate) fn padded_size(body_len: u64) -> u64 {
    (HEADER_BYTES + body_len).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BatchHeader {
        BatchHeader {
            kind: Kind::Entries,
            keyspace: 3,
            log_id: 77,
            shard: 1,
            segment: 4,
            generation: 9,
            offset: 8192,
            epoch: 2,
            sequence: 40,
            durable_sequence: 38,
            cut: 0,
            first_index: 100,
            entry_count: 2,
            body_len: 60,
            term_before: 5,
            last_term: 6,
            hard_state: HardState { term: 6, vote: 2, commit: 99 },
            previous: Link { kind: Kind::State, first_index: 100, last_index: 99, last_term: 5, checksum: 0xabcd },
            body_checksum: 0x1234,
        }
    }

    #[test]
    fn a_header_comes_back_as_it_was_written() {
        let (mut bytes, checksum) = ([0; HEADER_SIZE], Checksum::new(77));
        let sum = header().encode(checksum, &mut bytes);
        assert_eq!(BatchHeader::decode(checksum, &bytes), Some((header(), sum)));
        assert_eq!(BatchHeader::decode(Checksum::new(78), &bytes), None);
    }

    #[test]
    fn no_single_flipped_bit_of_a_header_is_accepted() {
        let (mut bytes, checksum) = ([0; HEADER_SIZE], Checksum::new(77));
        header().encode(checksum, &mut bytes);
        for bit in 0..HEADER_SIZE * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BatchHeader::decode(checksum, &bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_although_its_checksum_is_right() {
        let checksum = Checksum::new(77);
        let mut bytes = [0; HEADER_SIZE];
        header().encode(checksum, &mut bytes);
        bytes[108..112].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = checksum.of(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(BatchHeader::decode(checksum, &bytes), None);
    }
}
