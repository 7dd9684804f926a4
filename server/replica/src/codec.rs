//! The data of a Raft entry: a batch of commands, each with the principal it runs for.
//!
//! ```text
//! entry    = version u8 (1), keyspace u32, command count u32, command…
//!          | version u8 (2), keyspace u32, command count u32, source, command…
//! source   = member id u64, session u64, sequence number of the first command u64
//! command  = principal, kind u8, body
//! bytes    = length u32, bytes
//! list<T>  = count u32, T…
//! ```
//!
//! All integers are little-endian. Decoding is bounds-checked, accepts nothing beyond the end of the last command, and
//! hands out slices of the entry's own buffer: keys and values are never copied. Raft's entry without data (a leader's
//! first) holds no commands.

mod decode;
mod encode;

use bytes::Bytes;

use crate::members::MembersError;
use crate::request::{Command, KeyspaceId, Principal};

pub use decode::decode_entry;
pub use encode::EntryBuilder;

/// The version of an entry that does not say where its commands come from.
pub const VERSION: u8 = 1;

/// The version of one that does.
pub const VERSION_SOURCED: u8 = 2;

/// Where the count stands in an entry's data: behind the version and the keyspace.
const COUNT_OFFSET: usize = 5;
/// Bytes before the first command.
const HEADER_BYTES: usize = 9;
/// Bytes of a source.
const SOURCE_BYTES: usize = 3 * size_of::<u64>();

/// A command and the principal it runs for, as an entry holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// On whose behalf.
    pub principal: Principal,
    /// What to do.
    pub command: Command,
}

/// Where the commands of an entry come from, so that each takes effect once however often it is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The member whose clients wait for them.
    pub member_id: u64,
    /// Its session: larger than any that it had before.
    pub session: u64,
    /// The first command's number in the session, from 1; the others follow it one by one.
    pub first: u64,
}

/// The commands of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The store they are for.
    pub keyspace: KeyspaceId,
    /// Where they come from, if the entry says.
    pub source: Option<Source>,
    /// The commands, in the order in which they take effect.
    pub items: Vec<Item>,
}

/// Why the data of an entry cannot be read. It was written by a newer version or damaged: applying must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The version is none this code knows.
    #[error("entry encoding version {0} is unknown")]
    UnknownVersion(u8),
    /// The data ends within a field.
    #[error("entry data ends within a field at byte {0}")]
    Truncated(usize),
    /// A field holds a value that nothing encodes.
    #[error("unknown value {value} of {field} at byte {offset}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u8,
        /// Where it stands.
        offset: usize,
    },
    /// Data follows the last command.
    #[error("{0} bytes follow the last command of the entry")]
    Trailing(usize),
    /// A change of a member's record can't be read.
    #[error("a member change cannot be read")]
    Member(#[source] MembersError),
    /// Transactions are nested deeper than validation lets through.
    #[error("transactions are nested too deeply")]
    TooDeep,
}

mod tag {
    //! Values of the tag bytes.
    pub const PRINCIPAL_ANONYMOUS: u8 = 0;
    pub const PRINCIPAL_SERVER: u8 = 1;
    pub const PRINCIPAL_USER: u8 = 2;

    pub const COMMAND_PUT: u8 = 1;
    pub const COMMAND_DELETE_RANGE: u8 = 2;
    pub const COMMAND_TXN: u8 = 3;
    pub const COMMAND_COMPACT: u8 = 4;
    pub const COMMAND_LEASE_GRANT: u8 = 5;
    pub const COMMAND_LEASE_REVOKE: u8 = 6;
    pub const COMMAND_ALARM_ACTIVATE: u8 = 7;
    pub const COMMAND_ALARM_DEACTIVATE: u8 = 8;
    pub const COMMAND_MEMBER: u8 = 20;

    pub const RANGE_POINT: u8 = 0;
    pub const RANGE_SPAN: u8 = 1;
    pub const RANGE_FROM_KEY: u8 = 2;
    pub const RANGE_ALL: u8 = 3;

    pub const OPERATION_RANGE: u8 = 0;
    pub const OPERATION_PUT: u8 = 1;
    pub const OPERATION_DELETE_RANGE: u8 = 2;
    pub const OPERATION_TXN: u8 = 3;

    pub const TARGET_VERSION: u8 = 0;
    pub const TARGET_CREATE: u8 = 1;
    pub const TARGET_MOD: u8 = 2;
    pub const TARGET_VALUE: u8 = 3;
    pub const TARGET_LEASE: u8 = 4;

    pub const PUT_PREV_KV: u8 = 1;
    pub const PUT_IGNORE_VALUE: u8 = 2;
    pub const PUT_IGNORE_LEASE: u8 = 4;

    pub const RANGE_SERIALIZABLE: u8 = 1;
    pub const RANGE_KEYS_ONLY: u8 = 2;
    pub const RANGE_COUNT_ONLY: u8 = 4;
}

/// How many commands an entry's data says it holds; none if it does not say.
pub fn command_count(data: &[u8]) -> u64 {
    let count = data.get(COUNT_OFFSET..HEADER_BYTES).and_then(|count| count.try_into().ok());
    count.map_or(0, |count| u64::from(u32::from_le_bytes(count)))
}

/// Encodes a batch; what [`decode_entry`] reads back.
pub fn encode_entry(batch: &Batch) -> Bytes {
    let mut builder = match batch.source {
        None => EntryBuilder::new(batch.keyspace),
        Some(_) => EntryBuilder::sourced(batch.keyspace),
    };
    for item in &batch.items {
        builder.push(&item.principal, &item.command);
    }
    match batch.source {
        None => builder.finish(),
        Some(source) => builder.finish_with(source),
    }
}

#[cfg(test)]
mod tests;
