//! What members say about a repair.

use bytes::{BufMut, BytesMut};

use crate::limits::MEMBERS_MAX;

const ASK: u8 = 1;
const ANSWER: u8 = 2;

/// What members say about a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairMessage {
    /// The sender has lost what it had acknowledged before its start with this boot.
    Ask {
        /// The asking process.
        boot: u64,
    },
    /// What the sender knows.
    Answer(RepairAnswer),
}

/// The answer to [`RepairMessage::Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairAnswer {
    /// The process that asked.
    pub boot: u64,
    /// The sender's term.
    pub term: u64,
    /// Up to where everything is committed, if the sender leads and knows it; it does not count any more what the asker
    /// had acknowledged before. 0 otherwise.
    pub commit: u64,
    /// The index as of which the voters are meant.
    pub applied: u64,
    /// Whether the sender is not under repair itself. If it is, it may have forgotten terms and changes of the members.
    pub is_whole: bool,
    /// Who votes. Empty if the sender knows of nobody, is not whole, or has a change of the members in its log that is not
    /// applied.
    pub voters: Vec<u64>,
}

/// Why bytes are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairDecodeError {
    /// The kind is none this code knows.
    #[error("repair message kind {0} is unknown")]
    UnknownKind(u8),
    /// The sender is neither whole nor under repair.
    #[error("a repair message's sender is in a state of {0}, which is unknown")]
    UnknownState(u8),
    /// The length does not fit the content.
    #[error("a repair message has a wrong length")]
    Length,
}

impl RepairMessage {
    /// Appends the encoding.
    ///
    /// ```text
    /// ask    = 1 u8, boot u64 LE
    /// answer = 2 u8, boot u64 LE, term u64 LE, commit u64 LE, applied u64 LE, whole u8 (0 or 1), count u8, count times
    ///          member id u64 LE
    /// ```
    pub(crate) fn put(&self, buffer: &mut BytesMut) {
        match self {
            RepairMessage::Ask { boot } => {
                buffer.put_u8(ASK);
                buffer.put_u64_le(*boot);
            }
            RepairMessage::Answer(answer) => {
                buffer.put_u8(ANSWER);
                for number in [answer.boot, answer.term, answer.commit, answer.applied] {
                    buffer.put_u64_le(number);
                }
                buffer.put_u8(u8::from(answer.is_whole));
                assert!(answer.voters.len() <= MEMBERS_MAX, "clusters are small");
                buffer.put_u8(u8::try_from(answer.voters.len()).expect("clusters are small"));
                answer.voters.iter().for_each(|id| buffer.put_u64_le(*id));
            }
        }
    }

    /// Reads what [`RepairMessage::put`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Result<RepairMessage, RepairDecodeError> {
        let (kind, mut rest) = bytes.split_first().ok_or(RepairDecodeError::Length)?;
        let mut number = || {
            let (number, after) = rest.split_first_chunk::<8>().ok_or(RepairDecodeError::Length)?;
            rest = after;
            Ok(u64::from_le_bytes(*number))
        };
        match *kind {
            ASK => {
                let boot = number()?;
                if rest.is_empty() { Ok(RepairMessage::Ask { boot }) } else { Err(RepairDecodeError::Length) }
            }
            ANSWER => {
                let (boot, term, commit, applied) = (number()?, number()?, number()?, number()?);
                let ([is_whole, count], ids) = rest.split_first_chunk().ok_or(RepairDecodeError::Length)?;
                let is_whole = match *is_whole {
                    0 => false,
                    1 => true,
                    other => return Err(RepairDecodeError::UnknownState(other)),
                };
                let count = usize::from(*count);
                if count > MEMBERS_MAX || ids.len() != count * size_of::<u64>() {
                    return Err(RepairDecodeError::Length);
                }
                let ids = ids.chunks_exact(size_of::<u64>());
                let voters =
                    ids.map(|id| u64::from_le_bytes(id.try_into().expect("chunks have this length"))).collect();
                Ok(RepairMessage::Answer(RepairAnswer { boot, term, commit, applied, is_whole, voters }))
            }
            other => Err(RepairDecodeError::UnknownKind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_message_reads_back_as_it_was_written_and_no_other_length_is_read(
            numbers in any::<[u64; 4]>(),
            is_whole in any::<bool>(),
            voters in proptest::option::of(proptest::collection::vec(any::<u64>(), 0..9)),
        ) {
            let [boot, term, commit, applied] = numbers;
            let message = match voters {
                None => RepairMessage::Ask { boot },
                Some(voters) => RepairMessage::Answer(RepairAnswer { boot, term, commit, applied, is_whole, voters }),
            };
            let mut buffer = BytesMut::new();
            message.put(&mut buffer);
            prop_assert_eq!(RepairMessage::decode(&buffer), Ok(message));
            for length in 0..buffer.len() {
                prop_assert!(RepairMessage::decode(&buffer[..length]).is_err());
            }
            buffer.put_u8(0);
            prop_assert!(RepairMessage::decode(&buffer).is_err());
        }
    }
}
