//! Deliberate bugs, planted one at a time, with which tests prove that their nets catch.
//!
//! Only the feature `canaries` brings them in, which tests alone turn on: without it [`is_on`] is a constant `false`, and
//! nothing of a bug is left in the program.

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

#[cfg(not(feature = "canaries"))]
pub(crate) const fn is_on(_: Canary) -> bool {
    false
}

#[cfg(feature = "canaries")]
mod switch {
    use std::cell::Cell;

    use super::Canary;

    thread_local! {
        static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    pub(crate) fn is_on(canary: Canary) -> bool {
        PLANTED.get() == Some(canary)
    }

    /// Keeps a bug in this thread's indexes until it is dropped.
    #[derive(Debug)]
    #[must_use = "the bug is gone with it"]
    pub struct Planted(());

    /// Plants a bug in the indexes of this thread.
    pub fn plant(canary: Canary) -> Planted {
        assert!(PLANTED.replace(Some(canary)).is_none(), "one bug at a time");
        Planted(())
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(feature = "canaries")]
pub(crate) use switch::is_on;
#[cfg(feature = "canaries")]
pub use switch::{Planted, plant};
