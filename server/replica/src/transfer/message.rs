//! What sender and receiver of a snapshot say to each other.
//!
//! ```text
//! message  = version u8 (1), kind u8, transfer id u64, body
//! offer    = kind 1: index u64, term u64, membership length u16, membership
//! chunk    = kind 2: number u64, checksum u32, last u8 (0 or 1), bytes to the end
//! progress = kind 3: received u64, imported u64, state u8, resend u8 (0 or 1)
//! ```
//!
//! All integers are little-endian. The membership is in the encoding of [`Membership`].

use bytes::{BufMut, Bytes, BytesMut};
use garboard_storage::limits::SNAPSHOT_CHUNK_BYTES;

use crate::raft::Membership;

const VERSION: u8 = 1;
const KIND_OFFER: u8 = 1;
const KIND_CHUNK: u8 = 2;
const KIND_PROGRESS: u8 = 3;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferMessage {
    /// Sender to receiver.
    Offer(Offer),
    /// Sender to receiver.
    Chunk(Chunk),
    /// Receiver to sender.
    Progress(Progress),
}

/// A snapshot that can be had. It is repeated while no progress is heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Names the transfer; no other of this sender has it.
    pub id: u64,
    /// The entry that the snapshot includes last.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The members as of that entry.
    pub membership: Membership,
}

/// A part of a snapshot's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The transfer.
    pub id: u64,
    /// Counts chunks from zero.
    pub number: u64,
    /// CRC-32C of the stream up to the end of this chunk.
    pub checksum: u32,
    /// Nothing follows.
    pub is_last: bool,
    /// The bytes.
    pub bytes: Bytes,
}

/// How far a receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The transfer.
    pub id: u64,
    /// Chunks that it has.
    pub received: u64,
    /// Those of them that are built into trees: they make room for as many others.
    pub imported: u64,
    /// What it makes of the transfer.
    pub state: State,
    /// What was sent behind what is received is lost: it answers an offer, or a chunk that was not whole.
    pub resend: bool,
}

/// What a receiver makes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Going,
    /// It takes no offer now: another one is under way, or one has failed.
    Busy,
    /// It does not need the snapshot, or does not know the transfer.
    NotNeeded,
    /// It could not take the snapshot in.
    Failed,
    /// The snapshot is durable and in place.
    Installed,
}

impl State {
    const ALL: [State; 5] = [State::Going, State::Busy, State::NotNeeded, State::Failed, State::Installed];
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The version is none this code knows.
    #[error("transfer encoding version {0} is unknown")]
    UnknownVersion(u8),
    /// The kind is none this code knows.
    #[error("transfer message kind {0} is unknown")]
    UnknownKind(u8),
    /// A field holds what nothing encodes, or the length does not fit the content.
    #[error("a transfer message is malformed: {0}")]
    Malformed(&'static str),
}

impl TransferMessage {
    /// Which transfer it is about.
    pub fn id(&self) -> u64 {
        match self {
            TransferMessage::Offer(Offer { id, .. })
            | TransferMessage::Chunk(Chunk { id, .. })
            | TransferMessage::Progress(Progress { id, .. }) => *id,
        }
    }

    /// Appends the encoding.
    pub(crate) fn put(&self, bytes: &mut BytesMut) {
        bytes.put_u8(VERSION);
        match self {
            TransferMessage::Offer(Offer { id, index, term, membership }) => {
                bytes.put_u8(KIND_OFFER);
                [*id, *index, *term].iter().for_each(|field| bytes.put_u64_le(*field));
                let membership = membership.to_bytes();
                bytes.put_u16_le(u16::try_from(membership.len()).expect("memberships are small"));
                bytes.put_slice(&membership);
            }
            TransferMessage::Chunk(Chunk { id, number, checksum, is_last, bytes: content }) => {
                bytes.reserve(content.len() + 32);
                bytes.put_u8(KIND_CHUNK);
                bytes.put_u64_le(*id);
                bytes.put_u64_le(*number);
                bytes.put_u32_le(*checksum);
                bytes.put_u8(u8::from(*is_last));
                bytes.put_slice(content);
            }
            TransferMessage::Progress(Progress { id, received, imported, state, resend }) => {
                bytes.put_u8(KIND_PROGRESS);
                [*id, *received, *imported].iter().for_each(|field| bytes.put_u64_le(*field));
                let state = State::ALL.iter().zip(0u8..).find(|(known, _)| *known == state);
                bytes.put_u8(state.expect("every state is listed").1);
                bytes.put_u8(u8::from(*resend));
            }
        }
    }

    /// Reads the encoding. A chunk's bytes are a slice of what is given.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &Bytes) -> Result<TransferMessage, TransferError> {
        let mut fields = Fields { bytes: bytes.clone() };
        let version = fields.byte()?;
        if version != VERSION {
            return Err(TransferError::UnknownVersion(version));
        }
        let message = match fields.byte()? {
            KIND_OFFER => {
                let (id, index, term) = (fields.number()?, fields.number()?, fields.number()?);
                let length = usize::from(u16::from_le_bytes(fields.array()?));
                let membership = Membership::from_bytes(&fields.split(length)?);
                let membership = membership.map_err(|_| TransferError::Malformed("the membership"))?;
                TransferMessage::Offer(Offer { id, index, term, membership })
            }
            KIND_CHUNK => {
                let (id, number) = (fields.number()?, fields.number()?);
                let checksum = u32::from_le_bytes(fields.array()?);
                let is_last = fields.flag()?;
                let bytes = std::mem::take(&mut fields.bytes);
                if bytes.is_empty() || bytes.len() > SNAPSHOT_CHUNK_BYTES {
                    return Err(TransferError::Malformed("a chunk's length"));
                }
                TransferMessage::Chunk(Chunk { id, number, checksum, is_last, bytes })
            }
            KIND_PROGRESS => {
                let (id, received, imported) = (fields.number()?, fields.number()?, fields.number()?);
                let state = State::ALL.get(usize::from(fields.byte()?)).copied();
                let state = state.ok_or(TransferError::Malformed("the state"))?;
                if imported > received {
                    return Err(TransferError::Malformed("more is imported than received"));
                }
                let resend = fields.flag()?;
                TransferMessage::Progress(Progress { id, received, imported, state, resend })
            }
            kind => return Err(TransferError::UnknownKind(kind)),
        };
        if fields.bytes.is_empty() { Ok(message) } else { Err(TransferError::Malformed("bytes behind its end")) }
    }
}

struct Fields {
    bytes: Bytes,
}

impl Fields {
    fn split(&mut self, length: usize) -> Result<Bytes, TransferError> {
        if self.bytes.len() < length {
            return Err(TransferError::Malformed("it ends within a field"));
        }
        Ok(self.bytes.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TransferError> {
        let bytes = self.split(N)?;
        Ok(bytes[..].try_into().expect("as many bytes were split off"))
    }

    fn byte(&mut self) -> Result<u8, TransferError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn flag(&mut self) -> Result<bool, TransferError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(TransferError::Malformed("a flag")),
        }
    }

    fn number(&mut self) -> Result<u64, TransferError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_as_they_were_written_and_nothing_else_reads() {
        let membership = Membership { voters: vec![1, 2], learners: vec![u64::MAX] };
        let mut messages = vec![
            TransferMessage::Offer(Offer { id: 7, index: 8, term: 9, membership }),
            TransferMessage::Chunk(Chunk {
                id: u64::MAX,
                number: 3,
                checksum: 4,
                is_last: true,
                bytes: Bytes::from_static(b"content"),
            }),
        ];
        messages.extend(
            State::ALL.map(|state| {
                TransferMessage::Progress(Progress { id: 1, received: 5, imported: 4, state, resend: true })
            }),
        );
        for message in messages {
            let mut bytes = BytesMut::new();
            message.put(&mut bytes);
            let bytes = bytes.freeze();
            assert_eq!(TransferMessage::decode(&bytes).as_ref(), Ok(&message));
            for length in 0..bytes.len() {
                let shorter = TransferMessage::decode(&bytes.slice(..length));
                let is_chunk = matches!(shorter, Ok(TransferMessage::Chunk(_)));
                assert!(shorter.is_err() || is_chunk, "only a chunk's content has any length");
            }
            for at in 0..bytes.len() {
                let mut wrong = bytes.to_vec();
                wrong[at] ^= 0x55;
                if let Ok(other) = TransferMessage::decode(&wrong.into()) {
                    assert_ne!(other, message);
                }
            }
        }
    }
}
