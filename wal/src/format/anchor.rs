//! Where the chain starts: the part of the log's state that the index's meta page keeps.

use super::codec::{Decoder, Encoder};
use super::header::Link;
use super::{Checksum, FORMAT_VERSION, Kind};
use crate::HardState;

/// Bytes of an encoded anchor.
pub const ANCHOR_SIZE: usize = 128;
const CHECKSUM_AT: usize = ANCHOR_SIZE - 4;

/// A batch from which on the log is needed, and what the log was after it. Replay starts behind it; everything up to it
/// may be recycled once the anchor is durable in the index's meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub(crate) log_id: u128,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    /// Everything up to this sequence number was durable when the anchor was made; at least `sequence`.
    pub(crate) durable_sequence: u64,
    /// The applied index for which the anchor was made; at least `last_index`.
    pub(crate) applied_index: u64,
    /// The log's last index behind this anchor: the batch's, or a snapshot's.
    pub(crate) last_index: u64,
    /// The term at `last_index`.
    pub(crate) last_term: u64,
    /// The hard state that the batch carries.
    pub(crate) hard_state: HardState,
    /// What the next batch must say of this one.
    pub(crate) link: Link,
}

/// Bytes that are no anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnchorError {
    /// Not the length of an anchor.
    #[error("a log anchor has {ANCHOR_SIZE} bytes, not {len}")]
    Length {
        /// The length.
        len: usize,
    },
    /// Made by a version this one does not know.
    #[error("log anchor of format version {version}, this program reads version {FORMAT_VERSION}")]
    Version {
        /// The version found.
        version: u16,
    },
    /// The checksum does not match.
    #[error("the log anchor is damaged")]
    Damaged,
}

impl Anchor {
    /// The anchor of a log in which nothing was ever written.
    pub fn genesis(log_id: u128) -> Anchor {
        let link = Link { kind: Kind::EpochStart, first_index: 1, last_index: 0, last_term: 0, checksum: 0 };
        Anchor {
            log_id,
            epoch: 0,
            sequence: 0,
            durable_sequence: 0,
            applied_index: 0,
            last_index: 0,
            last_term: 0,
            hard_state: HardState::default(),
            link,
        }
    }

    /// The applied index for which the anchor was made.
    pub fn applied_index(&self) -> u64 {
        self.applied_index
    }

    /// The sequence number of the batch: replay starts behind it.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The identity of the log that this anchor belongs to.
    pub fn log_id(&self) -> u128 {
        self.log_id
    }

    /// The largest of everything that is counted on from here.
    pub(crate) fn counter_max(&self) -> u64 {
        let HardState { term, commit, .. } = self.hard_state;
        let counters = [self.epoch, self.sequence, self.durable_sequence, self.applied_index, self.last_index];
        counters.into_iter().fold(self.last_term.max(term).max(commit), u64::max)
    }

    /// Whether the fields agree with each other as those of every log's anchor do.
    fn is_plausible(&self) -> bool {
        self.durable_sequence >= self.sequence
            && self.applied_index >= self.last_index
            && self.hard_state.term >= self.last_term
            && self.hard_state.commit <= self.last_index
    }

    /// The anchor as the meta page keeps it.
    pub fn to_bytes(&self) -> [u8; ANCHOR_SIZE] {
        assert!(self.is_plausible(), "an anchor that would be refused is never written");
        let mut bytes = [0; ANCHOR_SIZE];
        let mut out = Encoder::new(&mut bytes);
        out.u16(FORMAT_VERSION);
        out.u8(self.link.kind.to_byte());
        out.u8(0);
        out.u32(self.link.checksum);
        out.u128(self.log_id);
        let state = self.hard_state;
        for field in [self.epoch, self.sequence, self.durable_sequence, self.applied_index, self.last_index] {
            out.u64(field);
        }
        for field in [self.last_term, state.term, state.vote, state.commit] {
            out.u64(field);
        }
        out.u64(self.link.first_index);
        out.u64(self.link.last_index);
        out.u64(self.link.last_term);
        assert!(out.position() <= CHECKSUM_AT);
        let sum = Checksum::new(self.log_id).of(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads an anchor back.
    ///
    /// # Errors
    /// When the bytes are not an anchor that this version wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Anchor, AnchorError> {
        let bytes: &[u8; ANCHOR_SIZE] = bytes.try_into().map_err(|_| AnchorError::Length { len: bytes.len() })?;
        let version = u16::from_le_bytes([bytes[0], bytes[1]]);
        if version != FORMAT_VERSION {
            return Err(AnchorError::Version { version });
        }
        let anchor = Anchor::decode_fields(&bytes[2..CHECKSUM_AT]).ok_or(AnchorError::Damaged)?;
        // Encoding again checks the checksum, every reserved byte, and that nothing was lost on the way.
        if !anchor.is_plausible() || anchor.to_bytes() != *bytes {
            return Err(AnchorError::Damaged);
        }
        Ok(anchor)
    }

    fn decode_fields(bytes: &[u8]) -> Option<Anchor> {
        let mut fields = Decoder::new(bytes);
        let kind = Kind::from_byte(fields.u8()?)?;
        fields.u8()?;
        let checksum = fields.u32()?;
        Some(Anchor {
            log_id: fields.u128()?,
            epoch: fields.u64()?,
            sequence: fields.u64()?,
            durable_sequence: fields.u64()?,
            applied_index: fields.u64()?,
            last_index: fields.u64()?,
            last_term: fields.u64()?,
            hard_state: HardState { term: fields.u64()?, vote: fields.u64()?, commit: fields.u64()? },
            link: Link {
                kind,
                first_index: fields.u64()?,
                last_index: fields.u64()?,
                last_term: fields.u64()?,
                checksum,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_comes_back_as_it_was_written_and_no_flipped_bit_is_accepted() {
        let mut anchor = Anchor::genesis(u128::MAX / 7);
        anchor.sequence = 17;
        anchor.durable_sequence = 19;
        (anchor.applied_index, anchor.last_index) = (7, 6);
        anchor.hard_state = HardState { term: 4, vote: 5, commit: 6 };
        let mut bytes = anchor.to_bytes();
        assert_eq!(Anchor::from_bytes(&bytes), Ok(anchor));
        for bit in 0..ANCHOR_SIZE * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Anchor::from_bytes(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Anchor::from_bytes(&bytes[1..]), Err(AnchorError::Length { len: 127 }));
    }
}
