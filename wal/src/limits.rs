//! Every bound of the log, with its reason.

/// Batches start at multiples of this and are padded to it: the strictest alignment O_DIRECT asks for on the devices we
/// support. A put that is alone in its batch therefore costs 4096 bytes on disk; in a full batch the padding is shared.
pub const ALIGNMENT: u64 = 4096;

/// What a crash may tear: the smallest unit a device writes as a whole.
pub const SECTOR_SIZE: usize = 512;

/// Size of a segment unless the number of shards asks for smaller ones.
pub const SEGMENT_SIZE_DEFAULT_BYTES: u64 = 16 * MIB;

/// Smallest segment that is allowed: room for a few batches and the seal slots.
pub const SEGMENT_SIZE_MIN_BYTES: u64 = 64 * 1024;

/// Largest segment that is allowed; a segment sized to fit an oversize batch is bounded by it too.
pub const SEGMENT_SIZE_MAX_BYTES: u64 = 1024 * MIB;

/// Segments that are kept open or prepared for each shard in use: the one being written and its successor.
pub const PREPARED_SEGMENTS: u64 = 2;

/// Segments of a shard beyond which one that is no longer needed is removed instead of being kept for reuse. Each is read
/// at a start, and a new one is written twice, first with zeros: so it is what a log under full load holds between two
/// checkpoints, and no more.
pub const KEPT_SEGMENTS_MAX: usize = 8;

/// What the log reserves on disk at start, whatever the number of cores. At the default segment size eight shards reach
/// it (8 × 2 × 16 MiB); with more shards, segments shrink: 64 × 2 × 2 MiB.
pub const RESERVED_AT_START_MAX_BYTES: u64 = 256 * MIB;

/// Most shards a log may be striped over.
pub const SHARDS_MAX: u16 = 64;

/// Synchronous writes in flight in each shard unless configured otherwise. One leaves the device idle while a batch is
/// encoded; more than a few make batches small.
pub const WRITES_IN_FLIGHT_DEFAULT: u16 = 2;

/// Most writes in flight in each shard.
pub const WRITES_IN_FLIGHT_MAX: u16 = 16;

/// A batch is closed before it grows beyond this, unless one entry alone is larger.
pub const BATCH_SIZE_DEFAULT_BYTES: u64 = MIB;

/// Most bytes of an entry's data and context together. A request of 32 MiB fits with its envelope.
pub const ENTRY_SIZE_MAX_BYTES: u64 = 33 * MIB;

/// Most bytes of a batch's body. Reading allocates no more than this for a batch, whatever a header says.
pub const BODY_SIZE_MAX_BYTES: u64 = ENTRY_SIZE_MAX_BYTES + MIB;

/// Most entries of a batch.
pub const BATCH_ENTRIES_MAX: usize = 64 * 1024;

/// How long nothing must have been written before a seal says that the last batch is durable.
pub const SEAL_AFTER_IDLE_DEFAULT_MS: u64 = 5;

/// How long the log waits before it tries again to prepare a segment on a full disk.
pub const PREPARE_RETRY_MS: u64 = 1_000;

/// Batches after which a log that never falls idle is sealed: what a segment that vanishes can take with it unnoticed is
/// bounded, at one small write for so many batches.
pub const SEAL_AFTER_BATCHES_DEFAULT: u64 = 256;

/// Seals alternate between this many slots at the start of a prepared segment, so that a torn one leaves its
/// predecessor. Batches of that segment start behind them.
pub const SEAL_SLOTS: u64 = 2;

/// Batches since the last anchor that are remembered one by one; beyond, every other one is forgotten.
pub const MARKS_MAX: usize = 4096;

/// What recovery reads at once.
pub const READ_CHUNK_BYTES: u64 = MIB;

/// No index, term, sequence number, epoch or generation of a log reaches this; a header that says so is not continued, so
/// that counting on never overflows.
pub const COUNTER_MAX: u64 = 1 << 62;

/// Most segment files recovery accepts in all shards together.
pub const SEGMENTS_MAX: usize = 1 << 20;

/// Room the replica should keep for deletes and compaction while the disk is full. Half of the smallest pair of segments
/// that [`PREPARED_SEGMENTS`] and [`SHARDS_MAX`] leave.
pub const ROOM_RESERVE_DEFAULT_BYTES: u64 = 2 * MIB;

const MIB: u64 = 1 << 20;

/// The largest segment with which `shards` shards stay within [`RESERVED_AT_START_MAX_BYTES`].
pub const fn segment_size_for(shards: u16) -> u64 {
    assert!(shards > 0 && shards <= SHARDS_MAX);
    // `as` because u64::from is not const; widening loses nothing.
    let fair = RESERVED_AT_START_MAX_BYTES / (PREPARED_SEGMENTS * shards as u64) / ALIGNMENT * ALIGNMENT;
    if fair < SEGMENT_SIZE_DEFAULT_BYTES { fair } else { SEGMENT_SIZE_DEFAULT_BYTES }
}

const _: () = {
    assert!(ALIGNMENT.is_multiple_of(512) && SECTOR_SIZE == 512);
    assert!(READ_CHUNK_BYTES.is_multiple_of(ALIGNMENT));
    assert!(SEGMENT_SIZE_DEFAULT_BYTES.is_multiple_of(ALIGNMENT) && SEGMENT_SIZE_MIN_BYTES.is_multiple_of(ALIGNMENT));
    assert!(BODY_SIZE_MAX_BYTES + ALIGNMENT <= SEGMENT_SIZE_MAX_BYTES);
    assert!(BATCH_SIZE_DEFAULT_BYTES + ALIGNMENT * (1 + SEAL_SLOTS) <= segment_size_for(SHARDS_MAX));
    assert!(PREPARED_SEGMENTS * SEGMENT_SIZE_DEFAULT_BYTES <= RESERVED_AT_START_MAX_BYTES);
    let mut shards = 1;
    while shards <= SHARDS_MAX {
        assert!(segment_size_for(shards) >= SEGMENT_SIZE_MIN_BYTES);
        assert!(segment_size_for(shards) * PREPARED_SEGMENTS * shards as u64 <= RESERVED_AT_START_MAX_BYTES);
        shards += 1;
    }
    assert!(ROOM_RESERVE_DEFAULT_BYTES <= segment_size_for(SHARDS_MAX));
};
