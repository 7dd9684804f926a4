//! What members say to each other: Raft's messages, and what goes to the leader beside them.
//!
//! Raft's messages have frames of their own (`garboard-transport`). Everything else is an opaque body to a link, and this
//! is its encoding:
//!
//! ```text
//! body     = version u8 (1), kind u8, content
//! forward  = kind 1: the data of a Raft entry that names its origin
//! refused  = kind 2: session u64, term u64, count u32, count times { first u64, last u64, reason u8 }
//! question = kind 3: boot u64, number u64, what u8, lease i64
//! answer   = kind 4: boot u64, number u64, what u8, and: 0 ttl i64; 1 left i64, granted i64; 2 reason u8
//! member   = kind 5: a message about changes of the members (`members/codec.rs`)
//! transfer = kind 6: about a snapshot, as the module `transfer` has it
//! repair   = kind 7: about a repair, as the module `repair` has it
//! hash     = kind 8: about the hash of a member's state, as the module `corruption` has it
//! full     = kind 9: index u64; the sender's space had run out once it had applied that
//! ```
//!
//! All integers are little-endian. Decoding is bounds-checked and accepts nothing beyond the content's end; what decodes
//! encodes to the same bytes.

use bytes::{BufMut, Bytes, BytesMut};
use garboard_transport::Lane;
use raft::eraftpb::Message;

use crate::corruption::HashMessage;
use crate::limits::{FORWARD_BYTES_MAX, REFUSED_RANGES_MAX};
use crate::members::{MemberMessage, MembersError};
use crate::repair::{RepairDecodeError, RepairMessage};
use crate::transfer::{TransferError, TransferMessage};

/// The version of the encoding.
const VERSION: u8 = 1;

mod tag {
    pub const FORWARD: u8 = 1;
    pub const REFUSED: u8 = 2;
    pub const QUESTION: u8 = 3;
    pub const ANSWER: u8 = 4;
    pub const MEMBER: u8 = 5;
    pub const TRANSFER: u8 = 6;
    pub const REPAIR: u8 = 7;
    pub const HASH: u8 = 8;
    pub const FULL: u8 = 9;

    pub const KEEP_ALIVE: u8 = 0;
    pub const TIME_TO_LIVE: u8 = 1;
    pub const REFUSAL: u8 = 2;
}

/// What one member says to another.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// A message of Raft.
    Raft(Message),
    /// Writes for the leader: the data of an entry that names its origin, the sender.
    Forward(Bytes),
    /// Writes that the leader does not take.
    Refused(Refused),
    /// A question that only the leader can answer.
    Question(Question),
    /// The answer to one.
    Answer(Answer),
    /// About changes of the members.
    Member(MemberMessage),
    /// About a snapshot.
    Transfer(TransferMessage),
    /// About the repair of a member.
    Repair(RepairMessage),
    /// About the hash of a member's state.
    Hash(HashMessage),
    /// The sender's space has run out: the leader is to raise its NOSPACE alarm.
    Full {
        /// What the sender had applied then. An alarm that was taken back later is not raised again.
        index: u64,
    },
}

/// Writes that were forwarded and are not taken. None of them was or will be proposed in this term, and those of earlier
/// terms are lost for good, unless the reason is that the sender does not lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The session of the sequence numbers.
    pub session: u64,
    /// The term in which they are refused.
    pub term: u64,
    /// Which, and why.
    pub ranges: Vec<RefusedRange>,
}

/// Consecutive writes, refused for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRange {
    /// The first one's sequence number.
    pub first: u64,
    /// The last one's.
    pub last: u64,
    /// Why.
    pub reason: Refusal,
}

/// Why something that was sent to the leader is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Whom it was sent to does not lead: it belongs to whoever does.
    NotLeader,
    /// The store is full.
    NoSpace,
    /// Too much is under way.
    TooManyRequests,
}

/// A question for the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The asking process.
    pub boot: u64,
    /// Names the question within it.
    pub number: u64,
    /// What is asked.
    pub what: What,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Renew a lease.
    KeepAlive {
        /// The lease.
        id: i64,
    },
    /// How long a lease has left.
    TimeToLive {
        /// The lease.
        id: i64,
    },
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The process that asked.
    pub boot: u64,
    /// The question.
    pub number: u64,
    /// What is answered.
    pub content: AnswerContent,
}

/// What can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerContent {
    /// The lease runs this long again; 0: there is no such lease.
    KeepAlive {
        /// In seconds.
        ttl_seconds: i64,
    },
    /// What the lease has left, and what it was granted; −1 left: there is no such lease.
    TimeToLive {
        /// What is left, in seconds.
        ttl_seconds: i64,
        /// What was granted, in seconds.
        granted_ttl_seconds: i64,
    },
    /// It was not done.
    Refused(Refusal),
}

/// Why bytes are no peer message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerDecodeError {
    /// The version is none this code knows.
    #[error("peer message version {0} is unknown")]
    UnknownVersion(u8),
    /// The kind is none this code knows.
    #[error("peer message kind {0} is unknown")]
    UnknownKind(u8),
    /// A field holds a value that nothing encodes.
    #[error("unknown value {value} of {field} in a peer message")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u8,
    },
    /// The length does not fit the content.
    #[error("a peer message has a wrong length")]
    Length,
    /// A message about changes of the members can't be read.
    #[error("a message about members can't be read")]
    Member(#[source] MembersError),
    /// More of something than is ever sent.
    #[error("a peer message is larger than is ever sent")]
    TooLarge,
    /// A message about a snapshot that is none.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A message about a repair that is none.
    #[error(transparent)]
    Repair(#[from] RepairDecodeError),
}

impl PeerMessage {
    /// The stream it travels on; none for what Raft says to itself alone.
    pub fn lane(&self) -> Option<Lane> {
        match self {
            PeerMessage::Raft(message) => Lane::of(message.get_msg_type()),
            PeerMessage::Forward(_) | PeerMessage::Refused(_) | PeerMessage::Member(_) => Some(Lane::Log),
            PeerMessage::Question(_) | PeerMessage::Answer(_) | PeerMessage::Repair(_) | PeerMessage::Full { .. } => {
                Some(Lane::Control)
            }
            // Nobody waits for it, and heartbeats must not.
            PeerMessage::Hash(_) => Some(Lane::Log),
            PeerMessage::Transfer(_) => Some(Lane::Bulk),
        }
    }

    /// The body of an opaque frame; none for Raft's messages, which have frames of their own.
    pub fn encode(&self) -> Option<Bytes> {
        let mut buffer = BytesMut::with_capacity(64);
        buffer.put_u8(VERSION);
        match self {
            PeerMessage::Raft(_) => return None,
            PeerMessage::Forward(data) => {
                buffer.reserve(1 + data.len());
                buffer.put_u8(tag::FORWARD);
                buffer.put_slice(data);
            }
            PeerMessage::Refused(Refused { session, term, ranges }) => {
                buffer.put_u8(tag::REFUSED);
                buffer.put_u64_le(*session);
                buffer.put_u64_le(*term);
                buffer.put_u32_le(u32::try_from(ranges.len()).expect("refusals are bounded"));
                for RefusedRange { first, last, reason } in ranges {
                    buffer.put_u64_le(*first);
                    buffer.put_u64_le(*last);
                    buffer.put_u8(reason.to_byte());
                }
            }
            PeerMessage::Question(question) => question.put(&mut buffer),
            PeerMessage::Answer(answer) => answer.put(&mut buffer),
            PeerMessage::Member(message) => {
                buffer.put_u8(tag::MEMBER);
                buffer.put_slice(&message.to_bytes());
            }
            PeerMessage::Transfer(message) => {
                buffer.put_u8(tag::TRANSFER);
                message.put(&mut buffer);
            }
            PeerMessage::Repair(message) => {
                buffer.put_u8(tag::REPAIR);
                message.put(&mut buffer);
            }
            PeerMessage::Hash(message) => {
                buffer.put_u8(tag::HASH);
                message.put(&mut buffer);
            }
            PeerMessage::Full { index } => {
                buffer.put_u8(tag::FULL);
                buffer.put_u64_le(*index);
            }
        }
        Some(buffer.freeze())
    }

    /// Reads the body of an opaque frame. A forward's data is a slice of it, and not looked into.
    ///
    /// # Errors
    /// The bytes are no message of this version.
    pub fn decode(body: &Bytes) -> Result<PeerMessage, PeerDecodeError> {
        let mut reader = Reader(body);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(PeerDecodeError::UnknownVersion(version));
        }
        let message = match reader.u8()? {
            tag::FORWARD => {
                let data = body.slice(2..);
                if data.len() > FORWARD_BYTES_MAX {
                    return Err(PeerDecodeError::TooLarge);
                }
                return Ok(PeerMessage::Forward(data));
            }
            tag::MEMBER => {
                let message = MemberMessage::from_bytes(&body[2..]).map_err(PeerDecodeError::Member)?;
                return Ok(PeerMessage::Member(message));
            }
            tag::TRANSFER => return Ok(PeerMessage::Transfer(TransferMessage::decode(&body.slice(2..))?)),
            tag::REPAIR => return Ok(PeerMessage::Repair(RepairMessage::decode(&body[2..])?)),
            tag::REFUSED => PeerMessage::Refused(reader.refused()?),
            tag::QUESTION => PeerMessage::Question(reader.question()?),
            tag::ANSWER => PeerMessage::Answer(reader.answer()?),
            tag::HASH => PeerMessage::Hash(HashMessage::read(&mut reader)?),
            tag::FULL => PeerMessage::Full { index: reader.u64()? },
            other => return Err(PeerDecodeError::UnknownKind(other)),
        };
        if reader.0.is_empty() { Ok(message) } else { Err(PeerDecodeError::Length) }
    }
}

impl Refusal {
    fn to_byte(self) -> u8 {
        match self {
            Refusal::NotLeader => 0,
            Refusal::NoSpace => 1,
            Refusal::TooManyRequests => 2,
        }
    }

    fn from_byte(value: u8) -> Result<Refusal, PeerDecodeError> {
        match value {
            0 => Ok(Refusal::NotLeader),
            1 => Ok(Refusal::NoSpace),
            2 => Ok(Refusal::TooManyRequests),
            _ => Err(PeerDecodeError::UnknownValue { field: "refusal", value }),
        }
    }
}

impl Question {
    fn put(&self, buffer: &mut BytesMut) {
        buffer.put_u8(tag::QUESTION);
        buffer.put_u64_le(self.boot);
        buffer.put_u64_le(self.number);
        let (what, id) = match self.what {
            What::KeepAlive { id } => (tag::KEEP_ALIVE, id),
            What::TimeToLive { id } => (tag::TIME_TO_LIVE, id),
        };
        buffer.put_u8(what);
        buffer.put_i64_le(id);
    }
}

impl Answer {
    fn put(&self, buffer: &mut BytesMut) {
        buffer.put_u8(tag::ANSWER);
        buffer.put_u64_le(self.boot);
        buffer.put_u64_le(self.number);
        match self.content {
            AnswerContent::KeepAlive { ttl_seconds } => {
                buffer.put_u8(tag::KEEP_ALIVE);
                buffer.put_i64_le(ttl_seconds);
            }
            AnswerContent::TimeToLive { ttl_seconds, granted_ttl_seconds } => {
                buffer.put_u8(tag::TIME_TO_LIVE);
                buffer.put_i64_le(ttl_seconds);
                buffer.put_i64_le(granted_ttl_seconds);
            }
            AnswerContent::Refused(reason) => {
                buffer.put_u8(tag::REFUSAL);
                buffer.put_u8(reason.to_byte());
            }
        }
    }
}

/// What is left of a body.
pub(crate) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], PeerDecodeError> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(PeerDecodeError::Length)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, PeerDecodeError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, PeerDecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, PeerDecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, PeerDecodeError> {
        self.take().map(i64::from_le_bytes)
    }

    fn refused(&mut self) -> Result<Refused, PeerDecodeError> {
        let (session, term) = (self.u64()?, self.u64()?);
        let count = usize::try_from(self.u32()?).map_err(|_| PeerDecodeError::TooLarge)?;
        if count > REFUSED_RANGES_MAX {
            return Err(PeerDecodeError::TooLarge);
        }
        let mut ranges = Vec::with_capacity(count);
        for _ in 0..count {
            let (first, last) = (self.u64()?, self.u64()?);
            ranges.push(RefusedRange { first, last, reason: Refusal::from_byte(self.u8()?)? });
        }
        Ok(Refused { session, term, ranges })
    }

    fn question(&mut self) -> Result<Question, PeerDecodeError> {
        let (boot, number, what, id) = (self.u64()?, self.u64()?, self.u8()?, self.i64()?);
        let what = match what {
            tag::KEEP_ALIVE => What::KeepAlive { id },
            tag::TIME_TO_LIVE => What::TimeToLive { id },
            value => return Err(PeerDecodeError::UnknownValue { field: "question", value }),
        };
        Ok(Question { boot, number, what })
    }

    fn answer(&mut self) -> Result<Answer, PeerDecodeError> {
        let (boot, number) = (self.u64()?, self.u64()?);
        let content = match self.u8()? {
            tag::KEEP_ALIVE => AnswerContent::KeepAlive { ttl_seconds: self.i64()? },
            tag::TIME_TO_LIVE => {
                AnswerContent::TimeToLive { ttl_seconds: self.i64()?, granted_ttl_seconds: self.i64()? }
            }
            tag::REFUSAL => AnswerContent::Refused(Refusal::from_byte(self.u8()?)?),
            value => return Err(PeerDecodeError::UnknownValue { field: "answer", value }),
        };
        Ok(Answer { boot, number, content })
    }
}

#[cfg(test)]
#[path = "peer/tests.rs"]
mod tests;
