//! The hello: the first bytes that each side of a connection sends, before anything else.
//!
//! ```text
//!  0     4     6     8         16     24    32     40       48    49      56        72    76
//!  ┌─────┬─────┬─────┬─────────┬──────┬─────┬──────┬────────┬─────┬───────┬─────────┬─────┐
//!  │GBPH │ver- │leng-│ cluster │ from │ to  │ boot │ losses │kind │7 zeros│tripwire │check│
//!  │     │sion │th   │         │      │     │      │        │     │       │  token  │sum  │
//!  └─────┴─────┴─────┴─────────┴──────┴─────┴──────┴────────┴─────┴───────┴─────────┴─────┘
//! ```
//!
//! Magic, version and length stand where they stand in every version, so that a reader can always say which one it met.

use super::LinkKind;

const MAGIC: [u8; 4] = *b"GBPH";
/// The version of hello and frames that this server speaks.
pub const PROTOCOL_VERSION: u16 = 1;
/// Bytes in a hello.
pub const HELLO_BYTES: usize = 76;
const PREFIX_BYTES: usize = 8;
const CHECKSUM_AT: usize = HELLO_BYTES - 4;

const _: () = assert!(4 + 2 + 2 == PREFIX_BYTES && PREFIX_BYTES + 5 * 8 + 8 + 16 == CHECKSUM_AT);

/// Bytes that only the two ends of a link know.
pub type TripwireToken = [u8; 16];

/// What each side of a connection says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which of a pair's two connections it is.
    pub kind: LinkKind,
    /// The sender's cluster.
    pub cluster_id: u64,
    /// The sender.
    pub from: u64,
    /// The member that the sender means to reach; 0 where the answerer can't know better.
    pub to: u64,
    /// Differs at each start of the sender.
    pub boot: u64,
    /// How often the sender, since its start, lost its link of this kind with the receiver: a connection that it still
    /// has and the other has lost is told by it.
    pub losses: u64,
    /// What the receiver shows on its tripwire connection to the sender.
    pub tripwire: TripwireToken,
}

/// Why bytes are no hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// It speaks something else.
    #[error("it does not begin with a hello")]
    Magic,
    /// It speaks another version.
    #[error("it speaks version {0} of the peer protocol, this member speaks version {PROTOCOL_VERSION}")]
    Version(u16),
    /// It is damaged or made wrongly.
    #[error("its hello is damaged")]
    Damaged,
}

impl Hello {
    /// The hello's bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        let length = u16::try_from(HELLO_BYTES).expect("a hello is short");
        bytes[6..8].copy_from_slice(&length.to_le_bytes());
        let numbers = [self.cluster_id, self.from, self.to, self.boot, self.losses];
        for (field, number) in bytes[PREFIX_BYTES..].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes[48] = match self.kind {
            LinkKind::Main => 1,
            LinkKind::Bulk => 2,
        };
        bytes[56..72].copy_from_slice(&self.tripwire);
        let checksum = crc32fast::hash(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a hello from the front of `bytes`. None while some of it is still to come.
    ///
    /// # Errors
    /// As soon as what is there can't become one.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, HelloError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(HelloError::Magic);
        }
        let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let version = u16::from_le_bytes([prefix[4], prefix[5]]);
        if version != PROTOCOL_VERSION {
            return Err(HelloError::Version(version));
        }
        if usize::from(u16::from_le_bytes([prefix[6], prefix[7]])) != HELLO_BYTES {
            return Err(HelloError::Damaged);
        }
        let Some(bytes) = bytes.first_chunk::<HELLO_BYTES>() else { return Ok(None) };
        let stored = u32::from_le_bytes([bytes[72], bytes[73], bytes[74], bytes[75]]);
        if stored != crc32fast::hash(&bytes[..CHECKSUM_AT]) || bytes[49..56] != [0; 7] {
            return Err(HelloError::Damaged);
        }
        let kind = match bytes[48] {
            1 => LinkKind::Main,
            2 => LinkKind::Bulk,
            _ => return Err(HelloError::Damaged),
        };
        let mut numbers = [0; 5];
        for (number, field) in numbers.iter_mut().zip(bytes[PREFIX_BYTES..48].chunks_exact(8)) {
            *number = u64::from_le_bytes(field.try_into().map_err(|_| HelloError::Damaged)?);
        }
        let [cluster_id, from, to, boot, losses] = numbers;
        let mut tripwire = [0; 16];
        tripwire.copy_from_slice(&bytes[56..72]);
        Ok(Some(Self { kind, cluster_id, from, to, boot, losses, tripwire }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello =
        Hello { kind: LinkKind::Bulk, cluster_id: 1, from: 2, to: 3, boot: 4, losses: 5, tripwire: [6; 16] };

    #[test]
    fn a_hello_reads_back_as_written_and_only_when_all_of_it_is_there() {
        let bytes = HELLO.encode();
        for end in 0..HELLO_BYTES {
            assert_eq!(Hello::decode(&bytes[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(Hello::decode(&bytes), Ok(Some(HELLO)));
    }

    #[test]
    fn a_changed_bit_anywhere_is_noticed() {
        for bit in 0..HELLO_BYTES * 8 {
            let mut bytes = HELLO.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = HELLO.encode();
        bytes[4] = 9;
        assert_eq!(Hello::decode(&bytes[..8]), Err(HelloError::Version(9)));
    }
}
