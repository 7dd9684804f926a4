//! The format's numbers, in the order of `docs/peer-frames.md`, and the frame's header.

use crate::limits;
use raft::eraftpb::{EntryType, MessageType};

/// The first bytes of every frame.
pub const MAGIC: [u8; 4] = *b"GBPF";
/// The format's version. A reader knows one version and refuses every other.
pub const VERSION: u8 = 1;

/// Bytes in a header: magic 4, version 1, kind 1, flags 2, keyspace 8, body length 4, body checksum 4, four zeros, and
/// the checksum of all that.
pub const HEADER_BYTES: usize = 32;
/// Where the header's own checksum stands, which covers what is before it.
pub(crate) const HEADER_CHECKSUM_AT: usize = 28;

/// Flag: raft-rs' `reject`.
pub(crate) const FLAG_REJECT: u16 = 1 << 0;
/// Flag: the body ends with a snapshot.
pub(crate) const FLAG_SNAPSHOT: u16 = 1 << 1;
pub(crate) const FLAGS_KNOWN: u16 = FLAG_REJECT | FLAG_SNAPSHOT;

/// The kind of a frame whose body is the replica's own and none of Raft's.
pub(crate) const KIND_OPAQUE: u8 = 32;

/// Bytes in the fixed part of a body: ten fields of eight bytes, and the context's length and the entry count.
pub(crate) const FIXED_BYTES: usize = 10 * 8 + 2 * 4;
/// Bytes in an entry's head: term 8, index 8, type 1, three zeros, data length 4, context length 4.
pub(crate) const ENTRY_HEAD_BYTES: usize = 28;
/// Bytes in a snapshot's head: index 8, term 8, four member counts of 4, auto-leave 1, three zeros, data length 4.
pub(crate) const SNAPSHOT_HEAD_BYTES: usize = 40;
/// Bytes in a member's id.
pub(crate) const MEMBER_BYTES: usize = 8;

const _: () = assert!(4 + 1 + 1 + 2 + 8 + 4 + 4 + 4 == HEADER_CHECKSUM_AT && HEADER_CHECKSUM_AT + 4 == HEADER_BYTES);
const _: () = assert!(8 + 8 + 1 + 3 + 4 + 4 == ENTRY_HEAD_BYTES);
const _: () = assert!(8 + 8 + 4 * 4 + 1 + 3 + 4 == SNAPSHOT_HEAD_BYTES);
const _: () = assert!(FIXED_BYTES < limits::BODY_BYTES_MAX as usize);

/// Why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The stream does not begin with a frame: it is out of step, or the peer speaks something else.
    #[error("a frame does not begin with its magic")]
    Magic,
    /// A version that this server does not know.
    #[error("version {0} of the frame format is unknown")]
    Version(u8),
    /// The header is damaged.
    #[error("the header's checksum does not fit")]
    HeaderChecksum,
    /// The body is damaged.
    #[error("the body's checksum does not fit")]
    BodyChecksum,
    /// A kind of message that the format does not have.
    #[error("message kind {0} is unknown")]
    Kind(u8),
    /// A flag that the format does not have.
    #[error("flags {0:#06x} are unknown")]
    Flags(u16),
    /// Bytes that must be zero are not.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A kind of entry that the format does not have.
    #[error("entry type {0} is unknown")]
    EntryType(u8),
    /// A length or count is beyond its bound.
    #[error("{what} of {value} is beyond the bound of {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// What the frame says.
        value: u32,
        /// What it may say.
        max: u32,
    },
    /// The body ends before what its own lengths promise.
    #[error("the body ends within its {0}")]
    Truncated(&'static str),
    /// The body goes on behind its last part.
    #[error("{0} bytes follow the last part of the body")]
    Trailing(usize),
    /// An earlier frame of the stream was refused, so nothing tells where the next one begins.
    #[error("the stream was given up at an earlier frame")]
    GivenUp,
}

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of raft-rs.
    Raft(MessageType),
    /// Bytes that only the replica reads.
    Opaque,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        match number {
            KIND_OPAQUE => Some(Self::Opaque),
            number => message_type(number).map(Self::Raft),
        }
    }
}

/// A header that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub flags: u16,
    pub keyspace: u64,
    /// At most [`limits::BODY_BYTES_MAX`].
    pub body_bytes: u32,
    pub body_checksum: u32,
}

impl Header {
    /// The header's bytes. `kind` is the wire's number of the message type.
    pub fn encode(kind: u8, flags: u16, keyspace: u64, body_bytes: u32, body_checksum: u32) -> [u8; HEADER_BYTES] {
        assert!(body_bytes <= limits::BODY_BYTES_MAX, "a frame's length is checked before its header is made");
        assert!(flags & !FLAGS_KNOWN == 0, "only flags of the format are set");
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = kind;
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&keyspace.to_le_bytes());
        bytes[16..20].copy_from_slice(&body_bytes.to_le_bytes());
        bytes[20..24].copy_from_slice(&body_checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..HEADER_CHECKSUM_AT]);
        bytes[HEADER_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Checks a header. Nothing in it is believed before its checksum fits, and the length not before its bound.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DecodeError> {
        if bytes[0..4] != MAGIC {
            return Err(DecodeError::Magic);
        }
        if bytes[4] != VERSION {
            return Err(DecodeError::Version(bytes[4]));
        }
        let checksum = crc32fast::hash(&bytes[..HEADER_CHECKSUM_AT]);
        let mut rest = Fields::new(&bytes[5..]);
        let (kind, flags, keyspace) = (rest.u8("header")?, rest.u16("header")?, rest.u64("header")?);
        let (body_bytes, body_checksum) = (rest.u32("header")?, rest.u32("header")?);
        let (reserved, stored) = (rest.u32("header")?, rest.u32("header")?);
        if stored != checksum {
            return Err(DecodeError::HeaderChecksum);
        }
        if reserved != 0 {
            return Err(DecodeError::Reserved);
        }
        if flags & !FLAGS_KNOWN != 0 {
            return Err(DecodeError::Flags(flags));
        }
        let kind = Kind::of(kind).ok_or(DecodeError::Kind(kind))?;
        if kind == Kind::Opaque && flags != 0 {
            return Err(DecodeError::Flags(flags));
        }
        check_bound("body length", body_bytes, limits::BODY_BYTES_MAX)?;
        Ok(Self { kind, flags, keyspace, body_bytes, body_checksum })
    }
}

pub(crate) fn check_bound(what: &'static str, value: u32, max: u32) -> Result<(), DecodeError> {
    if value <= max { Ok(()) } else { Err(DecodeError::TooLarge { what, value, max }) }
}

/// The wire's number of a message type. None for what raft-rs sends only to itself.
pub(crate) fn message_kind(message_type: MessageType) -> Option<u8> {
    Some(match message_type {
        MessageType::MsgAppend => 1,
        MessageType::MsgAppendResponse => 2,
        MessageType::MsgRequestVote => 3,
        MessageType::MsgRequestVoteResponse => 4,
        MessageType::MsgRequestPreVote => 5,
        MessageType::MsgRequestPreVoteResponse => 6,
        MessageType::MsgSnapshot => 7,
        MessageType::MsgHeartbeat => 8,
        MessageType::MsgHeartbeatResponse => 9,
        MessageType::MsgTransferLeader => 10,
        MessageType::MsgTimeoutNow => 11,
        MessageType::MsgReadIndex => 12,
        MessageType::MsgReadIndexResp => 13,
        MessageType::MsgPropose => 14,
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum => return None,
    })
}

/// The message type with a number on the wire.
pub(crate) fn message_type(kind: u8) -> Option<MessageType> {
    Some(match kind {
        1 => MessageType::MsgAppend,
        2 => MessageType::MsgAppendResponse,
        3 => MessageType::MsgRequestVote,
        4 => MessageType::MsgRequestVoteResponse,
        5 => MessageType::MsgRequestPreVote,
        6 => MessageType::MsgRequestPreVoteResponse,
        7 => MessageType::MsgSnapshot,
        8 => MessageType::MsgHeartbeat,
        9 => MessageType::MsgHeartbeatResponse,
        10 => MessageType::MsgTransferLeader,
        11 => MessageType::MsgTimeoutNow,
        12 => MessageType::MsgReadIndex,
        13 => MessageType::MsgReadIndexResp,
        14 => MessageType::MsgPropose,
        _ => return None,
    })
}

/// The wire's number of an entry type.
pub(crate) fn entry_kind(entry_type: EntryType) -> u8 {
    match entry_type {
        EntryType::EntryNormal => 1,
        EntryType::EntryConfChange => 2,
        EntryType::EntryConfChangeV2 => 3,
    }
}

/// The entry type with a number on the wire. Zero is none, so that a hole of zeros is no entry.
pub(crate) fn entry_type(kind: u8) -> Option<EntryType> {
    Some(match kind {
        1 => EntryType::EntryNormal,
        2 => EntryType::EntryConfChange,
        3 => EntryType::EntryConfChangeV2,
        _ => return None,
    })
}

/// Reads little-endian fields from the front of a slice.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], DecodeError> {
        let (field, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated(part))?;
        self.rest = rest;
        Ok(*field)
    }

    pub fn u8(&mut self, part: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.take(part)?))
    }

    pub fn u16(&mut self, part: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.take(part)?))
    }

    pub fn u32(&mut self, part: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take(part)?))
    }

    pub fn u64(&mut self, part: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take(part)?))
    }

    pub fn i64(&mut self, part: &'static str) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.take(part)?))
    }

    /// Three bytes that must be zero.
    pub fn padding(&mut self, part: &'static str) -> Result<(), DecodeError> {
        if self.take::<3>(part)? == [0; 3] { Ok(()) } else { Err(DecodeError::Reserved) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_message_types_map_one_to_one() {
        for kind in 0..=u8::MAX {
            assert_eq!(message_type(kind).and_then(message_kind), message_type(kind).map(|_| kind));
            assert!(kind != KIND_OPAQUE || message_type(kind).is_none(), "no number means two things");
            assert_eq!(entry_type(kind).map(entry_kind), entry_type(kind).map(|_| kind));
        }
    }

    #[test]
    fn a_changed_bit_anywhere_in_the_header_is_noticed() {
        let good = Header::encode(1, FLAG_REJECT, 7, 1_000, 0xdead_beef);
        assert!(Header::decode(&good).is_ok());
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_though_its_checksum_fits() {
        let mut bytes = Header::encode(1, 0, 0, 0, 0);
        bytes[16..20].copy_from_slice(&(limits::BODY_BYTES_MAX + 1).to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..HEADER_CHECKSUM_AT]);
        bytes[HEADER_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        let refused = Header::decode(&bytes).unwrap_err();
        assert!(matches!(refused, DecodeError::TooLarge { what: "body length", .. }), "{refused:?}");
    }
}
