//! How much is read of a file that is not in memory.
//!
//! The kernel's own read-ahead knows nothing of the log: on a device whose read-ahead is set to megabytes, as some clouds
//! do, each read of a file in order keeps megabytes on their way, and a write of the log stands behind them for tens of
//! milliseconds. So it is turned off, and the second page that is missed of a block of the file brings the whole block:
//! who reads all there is waits once or twice a block, whatever the order, and who reads here and there waits for pages
//! alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// A block. A device gives it in a fraction of a millisecond.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks that are remembered.
const SLOTS: usize = 4096;

/// Blocks of which a page was missed.
#[derive(Debug)]
pub(crate) struct ReadAround {
    /// The number of a block, plus one, in the slot that its number names; a later one takes the place of an earlier one.
    missed: Box<[AtomicU64]>,
}

impl Default for ReadAround {
    fn default() -> ReadAround {
        ReadAround { missed: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl ReadAround {
    /// A page at this offset is not in memory and is about to be read. Returns where a block begins that is worth reading
    /// with it.
    pub(crate) fn handle_miss(&self, offset: u64) -> Option<u64> {
        let block = offset / BLOCK_BYTES;
        let slot = &self.missed[usize::try_from(block % SLOTS as u64).expect("less than the number of slots")];
        let again = slot.swap(block + 1, Ordering::Relaxed) == block + 1;
        again.then_some(block * BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_miss_brings_the_block() {
        let around = ReadAround::default();
        assert_eq!(around.handle_miss(3 * BLOCK_BYTES + 4096), None);
        assert_eq!(around.handle_miss(9 * BLOCK_BYTES), None, "another block");
        assert_eq!(around.handle_miss(3 * BLOCK_BYTES), Some(3 * BLOCK_BYTES));
    }

    #[test]
    fn a_block_that_was_missed_long_ago_is_forgotten() {
        let around = ReadAround::default();
        let beyond = BLOCK_BYTES * SLOTS as u64;
        assert_eq!(around.handle_miss(0), None);
        assert_eq!(around.handle_miss(beyond), None);
        assert_eq!(around.handle_miss(0), None);
    }
}
