//! Every bound of the index, in one place.

/// Addresses reserved for the mapping by default, which bounds the file.
pub const RESERVE_BYTES: usize = 256 << 30;
/// The longest value.
pub const VALUE_BYTES_MAX: usize = 32 << 20;
/// The longest anchor of the log in the meta page.
pub const ANCHOR_BYTES_MAX: usize = 128;
/// The longest membership record in the meta page.
pub const CONF_BYTES_MAX: usize = 1024;
/// Dirty bytes above which the index wants a checkpoint, by default.
pub const CHECKPOINT_BYTES: u64 = 128 << 20;
/// Dirty bytes above which new writes must wait, by default.
pub const DIRTY_BYTES_MAX: u64 = 256 << 20;
/// Pages of one extent that a single load reads ahead.
pub const READ_AHEAD_PAGES: u32 = 63;
/// Addresses for changed pages, in multiples of [`DIRTY_BYTES_MAX`] as configured: what one huge transaction may need
/// beyond the bound.
pub const ARENA_FACTOR: u64 = 8;
/// Memory for changed pages that is kept although no page is in it: what is used again next needs no new memory.
pub const RETAINED_BYTES: usize = 8 << 20;
/// Bytes of one checkpoint write at most.
pub const WRITE_BYTES_MAX: usize = 64 << 10;
/// Checkpoint writes in flight at most.
pub const WRITES_IN_FLIGHT_MAX: usize = 2;
/// The file grows by at least this much.
pub const GROW_BYTES_MIN: u64 = 8 << 20;
/// The file grows by at most this much beyond what is needed.
pub const GROW_BYTES_MAX: u64 = 256 << 20;
/// Allocated bytes kept ahead of what is in use, so that deletes and compaction go on when the disk is full.
pub const RESERVED_BYTES: u64 = 16 << 20;
/// How often a scrub reads a page before it calls it damaged.
pub const SCRUB_READS: u32 = 3;
/// One step of a hash ends once it has gone over this many bytes of keys and values: a fraction of a millisecond.
pub const HASH_STEP_BYTES: usize = 1 << 20;
/// Versions whose checksum a compaction's hash remembers as one: what is read again when one of them dies.
pub const HASH_RUN_RECORDS: usize = 256;
/// Bytes of one chunk of a snapshot at most: what a step of reading one out, or of building one up, takes at a time.
pub const SNAPSHOT_CHUNK_BYTES: usize = 256 << 10;
/// The longest key that a snapshot may hold.
pub const KEY_BYTES_MAX: usize = 64 << 20;
