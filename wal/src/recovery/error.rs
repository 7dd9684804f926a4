//! Why a log is not opened, in words an operator can act on.

use core::fmt;

use super::Why;
use crate::{ConfigError, ManifestError};

/// A place in the log's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The shard, that is, the folder.
    pub shard: u16,
    /// The number in the file's name.
    pub segment: u64,
    /// Bytes from the file's start.
    pub offset: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "wal/shard-{:04}/segment-{:08}, offset {}", self.shard, self.segment, self.offset)
    }
}

/// The log cannot be opened. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The configuration is out of its bounds.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The manifest cannot be used.
    #[error("wal/manifest cannot be used; {ADVICE}")]
    Manifest(#[source] ManifestError),
    /// The log holds another keyspace than the configuration names.
    #[error("the log holds keyspace {found}, not {expected}")]
    Keyspace {
        /// What the manifest says.
        found: u32,
        /// What the configuration says.
        expected: u32,
    },
    /// The log and the index are not of one store.
    #[error("the log and the index do not belong together: their identities differ")]
    Foreign,
    /// The meta page contradicts itself.
    #[error("the index's meta page is at index {applied}, before its own log anchor at {anchor}")]
    Meta {
        /// The applied index of the meta page.
        applied: u64,
        /// The last index of the anchor.
        anchor: u64,
    },
    /// A segment in a shard that the manifest does not name.
    #[error("shard {shard} has segments, but the manifest names {shards} shards")]
    UnknownShard {
        /// The shard.
        shard: u16,
        /// How many the manifest names.
        shards: u16,
    },
    /// More or larger segment files than a log can have.
    #[error("the log's folders hold more or larger segment files than a log can have")]
    TooMuch,
    /// A counter is so high that no log of this program can have reached it.
    #[error("the log's counters are beyond {}: this log was not written by this program", crate::limits::COUNTER_MAX)]
    Exhausted,
    /// The index has no anchor for the log.
    #[error("{why}; refill this member from its peers or from a snapshot")]
    NoMeta {
        /// Why.
        why: Why,
    },
    /// Something is damaged, and what.
    #[error(transparent)]
    Damaged(Box<Damage>),
}

/// What is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log is corrupt at {location}, index {index}: {why} (batch {sequence}, durable up to batch {durable_sequence}); \
     {ADVICE}"
)]
pub struct Damage {
    /// What the table says.
    pub why: Why,
    /// Whether the log may be repaired from peers; otherwise it cannot be told what it was.
    pub repairable: bool,
    /// Where the damage is, as exactly as it can be told.
    pub location: Location,
    /// The first index that is not there.
    pub index: u64,
    /// The first batch that is not there, or that contradicts the ones before.
    pub sequence: u64,
    /// The last batch that is known to have been durable.
    pub durable_sequence: u64,
}

const ADVICE: &str = "let this member be repaired from its peers, replace it, or run `garboard salvage` to keep what \
                      lies before";
