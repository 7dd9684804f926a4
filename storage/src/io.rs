//! Effects, their outcomes, configuration, and what opening tells.

use crate::types::{Applied, PageId};
use bytes::Bytes;
use thiserror::Error;

/// Names one effect of [`Index::poll_io`](crate::Index::poll_io).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

/// What the shell must do to the index file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Write the bytes at the offset; offset and length are multiples of the page size. Completed means visible to the
    /// mapping, so it is a buffered write. So that the log's writes never stand behind a large flush, the shell has the
    /// kernel write each one back and waits for it (`sync_file_range`) before it reports it, and pauses between writes
    /// unless [`Index::must_wait`](crate::Index::must_wait); an error of that is a failed write.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// What to write.
        bytes: Bytes,
    },
    /// Make every completed write durable (`fdatasync`). Never retried.
    Sync,
    /// Allocate the file up to this size, for real (`fallocate`), and make the size durable.
    Grow {
        /// The size in bytes.
        new_size: u64,
    },
}

/// One effect. Effects that are out at the same time are independent and may complete in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexIo {
    /// Names the effect in [`Index::handle_io`](crate::Index::handle_io).
    pub id: IoId,
    /// What to do.
    pub op: IoOp,
}

/// Why an effect failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum IoFailure {
    /// The file system is full.
    #[error("no space left on the device")]
    NoSpace,
    /// Any other error, by its number.
    #[error("input/output error (errno {0})")]
    Errno(i32),
}

impl IoFailure {
    /// What an operating system error means.
    pub fn of(error: &std::io::Error) -> IoFailure {
        match error.kind() {
            std::io::ErrorKind::StorageFull => IoFailure::NoSpace,
            _ => IoFailure::Errno(error.raw_os_error().unwrap_or(5)),
        }
    }
}

/// The index can no longer be written; the process stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum IndexFailure {
    /// A write failed.
    #[error("writing the index at offset {offset} failed")]
    Write {
        /// Where.
        offset: u64,
        /// Why.
        source: IoFailure,
    },
    /// A sync failed.
    #[error("making the index durable failed")]
    Sync {
        /// Why.
        source: IoFailure,
    },
    /// Growing failed for another reason than a full disk.
    #[error("growing the index to {new_size} bytes failed")]
    Grow {
        /// The size asked for.
        new_size: u64,
        /// Why.
        source: IoFailure,
    },
}

/// A page could not be read or is not what its pointer says. It is never served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PageError {
    /// The read failed.
    #[error("page {number} of the index (offset {offset}) cannot be read", number = page.number)]
    Unreadable {
        /// Which page.
        page: PageId,
        /// Its offset in bytes.
        offset: u64,
        /// Why.
        source: IoFailure,
    },
    /// The checksum, the page's own number or its birth is wrong.
    #[error("page {number} of the index (offset {offset}) is damaged: {reason}", number = page.number)]
    Damaged {
        /// Which page.
        page: PageId,
        /// Its offset in bytes.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
}

/// What the caller chooses.
#[derive(Clone, Debug)]
pub struct IndexConfig {
    /// The cluster that the file belongs to.
    pub cluster_id: u64,
    /// The member that the file belongs to.
    pub member_id: u64,
    /// Above this many dirty bytes the index wants a checkpoint.
    pub checkpoint_bytes: u64,
    /// Above this many dirty bytes new writes must wait.
    pub dirty_bytes_max: u64,
}

impl IndexConfig {
    /// The defaults for a member.
    pub fn new(cluster_id: u64, member_id: u64) -> IndexConfig {
        IndexConfig {
            cluster_id,
            member_id,
            checkpoint_bytes: crate::limits::CHECKPOINT_BYTES,
            dirty_bytes_max: crate::limits::DIRTY_BYTES_MAX,
        }
    }
}

/// How far a checkpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointProgress {
    /// What it has yet to hand out for writing.
    pub left_bytes: u64,
    /// What it writes in all.
    pub total_bytes: u64,
}

/// A checkpoint is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointDone {
    /// What the log had applied in it.
    pub applied: Applied,
    /// The log's anchor that it carries.
    pub anchor: Bytes,
    /// Whether it put a snapshot's image in the index's place.
    pub installed: bool,
}

/// What the meta page says at opening.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenFacts {
    /// The format version of the file.
    pub format_version: u32,
    /// The cluster that the file belongs to.
    pub cluster_id: u64,
    /// The member that the file belongs to.
    pub member_id: u64,
    /// What the log had applied.
    pub applied: Applied,
    /// The newest revision.
    pub revision: i64,
    /// The logical compaction floor; −1 before any compaction.
    pub compacted: i64,
    /// The log's anchor, opaque to the index.
    pub anchor: Bytes,
    /// The membership, opaque to the index.
    pub conf: Bytes,
}

/// Opening refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// No generation of the meta page can be trusted.
    #[error("the index has no valid meta page: {0}")]
    NoMeta(&'static str),
    /// The file has another format.
    #[error("the index has format version {found}, this program reads {expected}")]
    Format {
        /// What the file says.
        found: u32,
        /// What the program reads.
        expected: u32,
    },
    /// The file belongs to another member.
    #[error("the index belongs to member {member_id:x} of cluster {cluster_id:x}")]
    Identity {
        /// What the file says.
        cluster_id: u64,
        /// What the file says.
        member_id: u64,
    },
    /// The file is shorter than its meta page says.
    #[error("the index has {found} bytes, its meta page says {expected}")]
    Truncated {
        /// What the file has.
        found: u64,
        /// What it should have.
        expected: u64,
    },
    /// A page of the free map is damaged.
    #[error("the free map of the index is damaged")]
    FreeMap {
        /// Which page and why.
        #[source]
        source: PageError,
    },
}
