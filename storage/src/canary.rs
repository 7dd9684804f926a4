//! Deliberate bugs of the index, for tests; see [`garboard_canary`].

/// A deliberate bug of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// The meta page is written without the sync of the pages it leads to.
    MetaBeforePages,
    /// Both copies of a meta page are written without a sync between them.
    MetaCopiesTogether,
    /// The free map is written over the copy that the durable checkpoint uses.
    FreeMapInPlace,
    /// A dead page is used again although a reader has pinned a root that reaches it.
    PinsIgnored,
    /// The pages of an index that a snapshot replaced are used again although a reader has pinned a root that reaches them.
    RetiredPinsIgnored,
    /// A dead page is used again before a checkpoint without it is durable.
    ReusedBeforeCheckpoint,
    /// Compaction takes a tombstone at the floor itself, which watches from there on are to see.
    FloorTombstoneLost,
    /// Compaction takes a tombstone at the floor, and an index that is opened takes the newest revision that is left for
    /// the store's.
    RevisionFromRecords,
}

garboard_canary::switch!();
