//! What goes into the log and what it asks of its shell.

use bytes::Bytes;

/// Raft's hard state: what must never be forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The current term.
    pub term: u64,
    /// The member voted for in this term; 0 = none.
    pub vote: u64,
    /// The highest index known to be committed.
    pub commit: u64,
}

/// What an entry is to Raft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryKind {
    /// Commands.
    #[default]
    Normal,
    /// A change of membership, first form.
    ConfChange,
    /// A change of membership, second form.
    ConfChangeV2,
}

/// One entry of the Raft log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its position; entries of a log are numbered without gaps.
    pub index: u64,
    /// The term in which it was proposed.
    pub term: u64,
    /// What it is.
    pub kind: EntryKind,
    /// Opaque to the log.
    pub context: Bytes,
    /// Opaque to the log.
    pub data: Bytes,
}

/// One step of the Raft state machine that must become durable as a whole before anything rests on it.
#[derive(Clone, Debug, Default)]
pub struct Append {
    /// New entries with consecutive indexes; may be empty. A first index at or below the last one replaces what follows.
    pub entries: Vec<Entry>,
    /// The hard state after this step.
    pub hard_state: HardState,
}

/// Numbers the appends of a log from 1 on, in the order in which they were made in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendNumber(pub u64);

/// Names one effect, so that its completion finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// What the shell must do for the log. Each is answered by exactly one [`Log::handle_done`](crate::Log::handle_done).
/// Effects are independent of each other: the log asks for what must come later only after it was told of what must come
/// first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Replace the manifest durably: write a temporary file, fsync it, rename it, fsync the folder.
    WriteManifest {
        /// Names this effect.
        op: OpId,
        /// The whole content.
        bytes: Vec<u8>,
    },
    /// Make a new segment. It must appear under its name only when it is complete: create it under a temporary name,
    /// allocate, fill with zeros, fsync, rename, fsync the folder. An existing file of that name is replaced.
    PrepareSegment {
        /// Names this effect.
        op: OpId,
        /// The shard, that is, the folder.
        shard: u16,
        /// The number in the file's name.
        segment: u64,
        /// The file's length.
        size_bytes: u64,
    },
    /// Write one batch synchronously: the completion says that it is durable. The content comes from
    /// [`Log::fill`](crate::Log::fill), which must be called once for each of these, in their order.
    Write {
        /// Names this effect.
        op: OpId,
        /// The shard, that is, the folder.
        shard: u16,
        /// The number in the file's name.
        segment: u64,
        /// Where in the file; a multiple of [`ALIGNMENT`](crate::limits::ALIGNMENT).
        offset: u64,
        /// How much; a multiple of [`ALIGNMENT`](crate::limits::ALIGNMENT).
        len: usize,
    },
    /// Remove a segment: one sized for a single batch, a surplus one, a damaged one.
    Remove {
        /// Names this effect.
        op: OpId,
        /// The shard, that is, the folder.
        shard: u16,
        /// The number in the file's name.
        segment: u64,
    },
}

/// How an effect or a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// No space is left on the device, or a quota is reached.
    #[error("no space left on device")]
    Full,
    /// Fewer bytes were written than asked for.
    #[error("short write of {bytes} bytes")]
    Short {
        /// How many bytes were written.
        bytes: usize,
    },
    /// Any other failure, with the system's error number where there is one.
    #[error("input/output error (os error {errno})")]
    Io {
        /// The system's error number; 0 = unknown.
        errno: i32,
    },
}

/// The log has failed and will do nothing more: the process must stop. What was not durable was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogFailure {
    /// A batch could not be written.
    #[error("writing the log failed: shard {shard}, segment {segment}, offset {offset}")]
    Write {
        /// The shard.
        shard: u16,
        /// The segment's number.
        segment: u64,
        /// Where in the segment.
        offset: u64,
        /// Why.
        source: DiskError,
    },
    /// A segment could not be prepared, for another reason than a full disk.
    #[error("preparing a log segment failed: shard {shard}, segment {segment}")]
    Prepare {
        /// The shard.
        shard: u16,
        /// The segment's number.
        segment: u64,
        /// Why.
        source: DiskError,
    },
    /// A segment could not be removed.
    #[error("removing a log segment failed: shard {shard}, segment {segment}")]
    Remove {
        /// The shard.
        shard: u16,
        /// The segment's number.
        segment: u64,
        /// Why.
        source: DiskError,
    },
    /// The manifest could not be written.
    #[error("writing the log's manifest failed")]
    Manifest {
        /// Why.
        source: DiskError,
    },
    /// The log had failed before.
    #[error("the log has failed before")]
    Poisoned,
}

/// What the log counted since it was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches that became durable, epoch starts included.
    pub batch_count: u64,
    /// Entries in them.
    pub entry_count: u64,
    /// Bytes of them on disk, padding included.
    pub written_bytes: u64,
    /// Bytes of them that are padding.
    pub padding_bytes: u64,
    /// Seals that became durable.
    pub seal_count: u64,
    /// Segments that were prepared.
    pub prepared_count: u64,
    /// Segments that were taken into use again without preparing.
    pub recycled_count: u64,
    /// Segments that were removed.
    pub removed_count: u64,
    /// How often preparing a segment found the disk full.
    pub disk_full_count: u64,
    /// Writes in flight now.
    pub in_flight_count: usize,
    /// Bytes that wait to be written now.
    pub waiting_bytes: u64,
    /// Sequence number up to which everything is durable.
    pub durable_sequence: u64,
    /// Bytes of all segment files.
    pub file_bytes: u64,
}
