//! What members ask each other about their states.
//!
//! ```text
//! question = 0 u8, boot u64, number u64, and: 0 u8, revision i64, index u64 | 1 u8, revision i64
//! answer   = 1 u8, boot u64, number u64, and: 0 u8, hash u32, compact revision i64, newest revision i64, index u64
//!                                           | 1 u8, newest revision i64, index u64 | 2 u8, compact revision i64
//!                                           | 3 u8 | 4 u8 | 5 u8
//! ```

use bytes::{BufMut, BytesMut};

use crate::peer::{PeerDecodeError, Reader};

/// A question, or the answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashMessage {
    /// A question.
    Question(HashQuestion),
    /// The answer to one.
    Answer(HashAnswer),
}

/// A question about a member's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashQuestion {
    /// The asking process.
    pub boot: u64,
    /// Names the question within it.
    pub number: u64,
    /// What is asked.
    pub what: HashWhat,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashWhat {
    /// The hash of the history up to a revision, once this entry is applied: who asks shows the revision with it.
    History {
        /// The revision.
        revision: i64,
        /// The entry.
        index: u64,
    },
    /// The hash that a compaction to this revision computed.
    Compaction {
        /// The revision.
        revision: i64,
    },
}

impl HashWhat {
    /// The revision.
    pub fn revision(&self) -> i64 {
        match self {
            HashWhat::History { revision, .. } | HashWhat::Compaction { revision } => *revision,
        }
    }
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashAnswer {
    /// The process that asked.
    pub boot: u64,
    /// The question.
    pub number: u64,
    /// What is answered.
    pub finding: Finding,
}

/// What a member finds about its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The hash.
    Hash {
        /// Its value.
        hash: u32,
        /// The compaction floor that it was computed with.
        compact_revision: i64,
        /// The newest revision that the member shows.
        newest: i64,
        /// The entry with which it shows that.
        index: u64,
    },
    /// It has applied the entry, and has no such revision.
    Short {
        /// The newest revision that it shows.
        newest: i64,
        /// The entry with which it shows that.
        index: u64,
    },
    /// It has compacted beyond the revision.
    Compacted {
        /// Its compaction floor.
        compact_revision: i64,
    },
    /// It has not applied the entry in good time.
    Lags,
    /// It keeps no hash of such a compaction.
    Unknown,
    /// Too much is asked of it.
    Busy,
}

mod tag {
    pub const QUESTION: u8 = 0;
    pub const ANSWER: u8 = 1;

    pub const HISTORY: u8 = 0;
    pub const COMPACTION: u8 = 1;

    pub const HASH: u8 = 0;
    pub const SHORT: u8 = 1;
    pub const COMPACTED: u8 = 2;
    pub const LAGS: u8 = 3;
    pub const UNKNOWN: u8 = 4;
    pub const BUSY: u8 = 5;
}

impl HashMessage {
    pub(crate) fn put(&self, buffer: &mut BytesMut) {
        match self {
            HashMessage::Question(HashQuestion { boot, number, what }) => {
                buffer.put_u8(tag::QUESTION);
                buffer.put_u64_le(*boot);
                buffer.put_u64_le(*number);
                match what {
                    HashWhat::History { revision, index } => {
                        buffer.put_u8(tag::HISTORY);
                        buffer.put_i64_le(*revision);
                        buffer.put_u64_le(*index);
                    }
                    HashWhat::Compaction { revision } => {
                        buffer.put_u8(tag::COMPACTION);
                        buffer.put_i64_le(*revision);
                    }
                }
            }
            HashMessage::Answer(HashAnswer { boot, number, finding }) => {
                buffer.put_u8(tag::ANSWER);
                buffer.put_u64_le(*boot);
                buffer.put_u64_le(*number);
                finding.put(buffer);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<HashMessage, PeerDecodeError> {
        let (kind, boot, number) = (reader.u8()?, reader.u64()?, reader.u64()?);
        match kind {
            tag::QUESTION => {
                let what = match reader.u8()? {
                    tag::HISTORY => HashWhat::History { revision: reader.i64()?, index: reader.u64()? },
                    tag::COMPACTION => HashWhat::Compaction { revision: reader.i64()? },
                    value => return Err(PeerDecodeError::UnknownValue { field: "hash question", value }),
                };
                Ok(HashMessage::Question(HashQuestion { boot, number, what }))
            }
            tag::ANSWER => Ok(HashMessage::Answer(HashAnswer { boot, number, finding: Finding::read(reader)? })),
            value => Err(PeerDecodeError::UnknownValue { field: "hash message", value }),
        }
    }
}

impl Finding {
    fn put(&self, buffer: &mut BytesMut) {
        match self {
            Finding::Hash { hash, compact_revision, newest, index } => {
                buffer.put_u8(tag::HASH);
                buffer.put_u32_le(*hash);
                buffer.put_i64_le(*compact_revision);
                buffer.put_i64_le(*newest);
                buffer.put_u64_le(*index);
            }
            Finding::Short { newest, index } => {
                buffer.put_u8(tag::SHORT);
                buffer.put_i64_le(*newest);
                buffer.put_u64_le(*index);
            }
            Finding::Compacted { compact_revision } => {
                buffer.put_u8(tag::COMPACTED);
                buffer.put_i64_le(*compact_revision);
            }
            Finding::Lags => buffer.put_u8(tag::LAGS),
            Finding::Unknown => buffer.put_u8(tag::UNKNOWN),
            Finding::Busy => buffer.put_u8(tag::BUSY),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Finding, PeerDecodeError> {
        Ok(match reader.u8()? {
            tag::HASH => Finding::Hash {
                hash: reader.u32()?,
                compact_revision: reader.i64()?,
                newest: reader.i64()?,
                index: reader.u64()?,
            },
            tag::SHORT => Finding::Short { newest: reader.i64()?, index: reader.u64()? },
            tag::COMPACTED => Finding::Compacted { compact_revision: reader.i64()? },
            tag::LAGS => Finding::Lags,
            tag::UNKNOWN => Finding::Unknown,
            tag::BUSY => Finding::Busy,
            value => return Err(PeerDecodeError::UnknownValue { field: "finding", value }),
        })
    }
}
